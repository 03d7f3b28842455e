"""`nip-run report` of 1,000 games with answers of 2 KB and of 60 KB: the size of the page, and the CPU time.

The texts of a report are everything that a reader can see: the columns of each datapoint, messages, answers, reasoning
and errors, each text once. Of a chat as sent, only the parts that do not quote columns or messages count. The baseline
is one file of these texts as JSON lines, compressed with gzip at level 6 in the same run.

Limits: the page is at most 1.4 times as large as the baseline, since it has compressed data in base 64, plus 400 KB.
The page with 2 KB in each answer takes at most 3 s of CPU time (the minimum of `--repeat`). For 60 KB, the table has
the CPU time over that of reading the journal and compressing the same texts. Exit code 1: a limit is exceeded.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

from common import child, footer, measured, table, temporary_folder

ROOM, RATIO = 400_000, 1.4
SECONDS = {2_000: 3.0}
"""By letters an answer."""


def run_child(folder: Path) -> None:
    """Reads a run's journal and compresses its texts: what any report has to do."""
    from runner.pages.report.games import games_of
    from runner.results.leaderboard.results_folder import Results

    (run,) = Results(folder / "results").runs()
    begun = time.process_time()
    for line in run.journal.open("rb"):
        json.loads(line[9:])
    read = time.process_time() - begun
    texts: dict[str, None] = {}
    for game in games_of(run):
        rollout = game.rollout
        said = [message.text for played in rollout.rounds for message in played.messages]
        columns = [
            value if isinstance(value, str) else json.dumps(value) for value in rollout.job.datapoint.columns.values()
        ]
        known = {*said, *columns}
        texts.update(dict.fromkeys([*columns, *said]))
        for call in rollout.calls:
            texts.update(dict.fromkeys(one for one in (call.raw_message, call.reasoning, call.error) if one))
        for chat in game.chats.values():
            for message in chat:
                rest = message["content"]
                for one in sorted(known, key=len, reverse=True):
                    rest = rest.replace(one, "") if len(one) > 8 else rest
                texts[rest] = None
    data = b"".join(json.dumps(text, ensure_ascii=False).encode() + b"\n" for text in texts)
    begun = time.process_time()
    packed = len(gzip.compress(data, 6))
    took = time.process_time() - begun
    best = len(gzip.compress(data, 9))
    print(json.dumps({"read": read, "gzip": took, "texts": len(data), "packed": packed, "best": best}))


def made(folder: Path, letters: int, games: int) -> None:
    """A run whose answers have so many letters, from a server of ours; nothing is made of it besides its tables."""
    from tests.support.servers.chat_client import run_chat_server
    from tests.support.specs import spec_file

    agents = {name: {"max_response_words": 1} for name in ("prover", "verifier")}
    with run_chat_server(prose=letters) as server:
        spec_file(
            folder, server.base_url, size=games, models={"m": {"timeout": 120}}, agents=agents, fine_tune=None,
            rollouts={"concurrency": 32},
        )  # fmt: skip
        measured([sys.executable, "-m", "runner.cli.main", "spec.yaml", "-q"], folder)


def reported(letters: int, games: int, repeat: int) -> tuple[list[object], list[str]]:
    """Return a row of the table, and the exceeded limits."""
    with temporary_folder() as folder:
        made(folder, letters, games)
        found = child(__file__, folder)
        command = [sys.executable, "-m", "runner.cli.main", "report", "last", "-o", "report.html"]
        reports = [measured(command, folder) for _ in range(repeat if letters in SECONDS else 1)]
        size = (folder / "report.html").stat().st_size
    limit = RATIO * found["packed"] + ROOM
    wall, cpu = min(one.wall for one in reports), min(one.cpu for one in reports)
    failed = [f"{letters} letters: {size:,} bytes, over {limit:,.0f}"] if size > limit else []
    if cpu > SECONDS.get(letters, cpu):
        failed.append(f"{letters} letters: {cpu:.1f} s of CPU time, over {SECONDS[letters]:g} s")
    sizes = [found[name] / 1e6 for name in ("texts", "packed", "best")]
    least = found["read"] + found["gzip"]
    row = [letters, *sizes, size / 1e6, size / limit, wall, cpu, cpu / least, max(one.peak_mb for one in reports)]
    return row, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--letters", type=int, nargs="+", default=[2_000, 60_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--child", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.child is not None:
        run_child(args.child)
        return 0
    found = [reported(letters, args.games, args.repeat) for letters in args.letters]
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
    table(f"`nip-run report` of {args.games} games", columns, [row for row, _ in found])
    footer(__file__)
    failed = [one for _, some in found for one in some]
    print("\n".join(failed) or "all within their limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
