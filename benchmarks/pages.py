"""`nip-run report` of 1,000 games with answers of 2 KB and of 60 KB: how long it takes, and how large the page is.

Beside it, in the same run: to read the journal and to gzip its texts (level 6), in a process of its own. The texts are
what a reader can see of the games: each message, answer, reasoning, column and message of a chat that is no other one,
once each, as one file of JSON lines. A page may be 1.3 times as large, and 400 KB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

from common import child, footer, measured, median, table, temporary_folder

ROOM = 400_000


def run_child(folder: Path) -> None:
    """Reads a run's journal and compresses its texts: what any report has to do."""
    from runner.pages.games import games_of
    from runner.results.results import Results

    (run,) = Results(folder / "results").runs()
    begun = time.perf_counter()
    for line in run.journal.open("rb"):
        json.loads(line[9:])
    read = time.perf_counter() - begun
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
    begun = time.perf_counter()
    packed = len(gzip.compress(data, 6))
    print(json.dumps({"read": read, "gzip": time.perf_counter() - begun, "texts": len(data), "packed": packed}))


def made(folder: Path, letters: int, games: int) -> None:
    """A run whose answers have so many letters, from a server of ours."""
    from tests.support.servers.chat_client import serving
    from tests.support.specs import spec_file

    agents = {name: {"max_response_words": 1} for name in ("prover", "verifier")}
    with serving(prose=letters) as server:
        spec_file(
            folder, server.base_url, size=games, models={"m": {"timeout": 120}}, agents=agents, fine_tune=None,
            rollouts={"concurrency": 32},
        )  # fmt: skip
        measured([sys.executable, "-m", "runner.cli.main", "spec.yaml", "-q"], folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--letters", type=int, nargs="+", default=[2_000, 60_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--child", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.child is not None:
        run_child(args.child)
        return
    rows = []
    for letters in args.letters:
        with temporary_folder() as folder:
            made(folder, letters, args.games)
            found, reports = [], []
            for _ in range(args.repeat):
                found.append(child(__file__, folder))
                reports.append(
                    measured([sys.executable, "-m", "runner.cli.main", "report", "last", "-o", "report.html"], folder)
                )
            size, packed = (folder / "report.html").stat().st_size, found[0]["packed"]
            wall, least = median([one.wall for one in reports]), median([one["read"] + one["gzip"] for one in found])
            limit = 1.3 * packed + ROOM
            rows.append((letters, found[0]["texts"] / 1e6, packed / 1e6, size / 1e6, size / limit, wall, wall / least))
    columns = (
        "letters an answer",
        "texts MB",
        "gzip MB",
        "report MB",
        "of the limit",
        "report s",
        "over read and gzip",
    )
    table(f"`nip-run report` of {args.games} games", columns, rows)
    footer(__file__)


if __name__ == "__main__":
    main()
