"""Measure page size and CPU time of `nip-run report` for 1,000 games with answers of 2 KB and of 60 KB.

The texts of a report are everything that a reader can see: the columns of each datapoint, messages, answers, reasoning
and errors, each text once. Of a sent chat, only the parts that do not quote columns or messages count. The baseline is
one file of these texts as JSON lines, compressed with gzip at level 6 in the same run.

Limits: the page is at most 1.4 times as large as the baseline, since it has compressed data in base 64, plus 400 KB.
The page with 2 KB in each answer takes at most 3 s of CPU time (the minimum of `--repeat`). For 60 KB, the table has
the ratio of the CPU time to that of reading the journal and compressing the same texts. The exit code is 1 if a limit
is exceeded.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

from common import measure_child, measure_process, print_footer, print_table, temporary_folder

MAX_EXTRA_BYTES, MAX_RATIO = 400_000, 1.4
MAX_SECONDS = {2_000: 3.0}
"""The limit by the characters of an answer."""


def measure_baseline(folder: Path) -> None:
    """Read a run's journal and compress its texts, as any report must."""
    from runner.pages.report.games import games_of
    from runner.results.leaderboard.results_folder import Results

    (run,) = Results(folder / "results").runs()
    started = time.process_time()
    for line in run.journal.open("rb"):
        json.loads(line[9:])
    read_seconds = time.process_time() - started
    texts: dict[str, None] = {}
    for game in games_of(run):
        rollout = game.rollout
        messages = [message.text for played in rollout.rounds for message in played.messages]
        columns = [
            value if isinstance(value, str) else json.dumps(value) for value in rollout.job.datapoint.columns.values()
        ]
        quoted_texts = {*messages, *columns}
        texts.update(dict.fromkeys([*columns, *messages]))
        for call in rollout.calls:
            texts.update(dict.fromkeys(part for part in (call.raw_message, call.reasoning, call.error) if part))
        for chat in game.chats.values():
            for message in chat:
                unquoted = message["content"]
                for part in sorted(quoted_texts, key=len, reverse=True):
                    unquoted = unquoted.replace(part, "") if len(part) > 8 else unquoted
                texts[unquoted] = None
    data = b"".join(json.dumps(text, ensure_ascii=False).encode() + b"\n" for text in texts)
    started = time.process_time()
    gzip_size = len(gzip.compress(data, 6))
    gzip_seconds = time.process_time() - started
    best_size = len(gzip.compress(data, 9))
    print(
        json.dumps(
            {"read": read_seconds, "gzip": gzip_seconds, "texts": len(data), "packed": gzip_size, "best": best_size}
        )
    )


def play_run(folder: Path, letters: int, games: int) -> None:
    """Play a run against a loopback server whose answers have `letters` characters."""
    from tests.support.servers.chat_client import run_chat_server
    from tests.support.specs import spec_file

    agents = {name: {"max_response_words": 1} for name in ("prover", "verifier")}
    with run_chat_server(prose=letters) as server:
        spec_file(
            folder, server.base_url, size=games, models={"m": {"timeout": 120}}, agents=agents, fine_tune=None,
            rollouts={"concurrency": 32},
        )  # fmt: skip
        measure_process([sys.executable, "-m", "runner.cli.main", "spec.yaml", "-q"], folder)


def measure_report(letters: int, games: int, repeat: int) -> tuple[list[object], list[str]]:
    """Return a row of the table, and the exceeded limits."""
    with temporary_folder() as folder:
        play_run(folder, letters, games)
        baseline = measure_child(__file__, folder)
        command = [sys.executable, "-m", "runner.cli.main", "report", "last", "-o", "report.html"]
        reports = [measure_process(command, folder) for _ in range(repeat if letters in MAX_SECONDS else 1)]
        size = (folder / "report.html").stat().st_size
    limit = MAX_RATIO * baseline["packed"] + MAX_EXTRA_BYTES
    wall, cpu = min(report.wall for report in reports), min(report.cpu for report in reports)
    problems = [f"{letters} letters: {size:,} bytes, over {limit:,.0f}"] if size > limit else []
    if cpu > MAX_SECONDS.get(letters, cpu):
        problems.append(f"{letters} letters: {cpu:.1f} s of CPU time, over {MAX_SECONDS[letters]:g} s")
    size_columns = [baseline[name] / 1e6 for name in ("texts", "packed", "best")]
    minimum_cpu = baseline["read"] + baseline["gzip"]
    row = [
        letters,
        *size_columns,
        size / 1e6,
        size / limit,
        wall,
        cpu,
        cpu / minimum_cpu,
        max(report.peak_mb for report in reports),
    ]
    return row, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--letters", type=int, nargs="+", default=[2_000, 60_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--child", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.child is not None:
        measure_baseline(args.child)
        return 0
    results = [measure_report(letters, args.games, args.repeat) for letters in args.letters]
    columns = (
        "letters an answer",
        "texts MB",
        "gzip -6 MB",
        "gzip -9 MB",
        "report MB",
        "of the limit",
        "report s",
        "CPU s",
        "CPU over read and gzip -6",
        "peak MB",
    )
    print_table(f"`nip-run report` of {args.games} games", columns, [row for row, _ in results])
    print_footer(__file__)
    problems = [problem for _, row_problems in results for problem in row_problems]
    print("\n".join(problems) or "all within their limits")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
