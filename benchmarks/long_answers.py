"""Check that memory does not grow with gigabytes of long answers, such as reasoning traces, or with the longest answer.

    python benchmarks/long_answers.py [--gb GB ...] [--most-mb MB]

Each step is a process of its own, whose peak memory is printed: playing, where the first answer comes late; rebuilding
the tables from the journal, as after a kill; rebuilding the board; exports; commands that show and query. Sizes are
those of the answers; the disk needs nine times the largest.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from common import Measured, measured, temporary_folder

from tests.support.processes import command
from tests.support.runs import only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

LENGTH = 60_000
"""Characters of an answer."""
LONGEST = (32 << 20) - (1 << 16)
"""Characters of the longest answer that fits in the limit with its envelope and verdict."""
ANSWERS = 2
"""The answers of one game: the case and the verdict."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, nargs="+", default=[0.1, 1.0, 5.0], help="default: 0.1 1 5")
    parser.add_argument("--most-mb", type=float, default=700.0, help="the peak that no step may be above; default: 700")
    args = parser.parse_args()
    check = SoftAssertions()
    for size in args.gb:
        games = round(size * 1e9 / ANSWERS / LENGTH)
        with temporary_folder() as folder, run_chat_server(length=LENGTH, first_latency=3.0) as server:
            _SizeCheck(check, folder, server, f"{size:g} GB", args.most_mb).proved(games, concurrency=16)
    with temporary_folder() as folder, run_chat_server(length=LONGEST) as server:
        _SizeCheck(check, folder, server, "answers of 32 MiB", args.most_mb).proved(1, concurrency=1)
    return check.exit_code()


@dataclass(frozen=True)
class _SizeCheck:
    """The steps for one size of answers."""

    check: SoftAssertions
    folder: Path
    server: LoopbackServer
    name: str
    most_mb: float

    def proved(self, games: int, *, concurrency: int) -> None:
        agents = {name: {"max_response_words": 1} for name in ("prover", "verifier")}
        spec_file(
            self.folder, self.server.base_url, size=games, protocol={"use": "adp", "max_message_rounds": None},
            prompts="prompts/code_validation/adp", rollouts={"concurrency": concurrency}, fine_tune=None,
            models={"m": {"timeout": 120}}, agents=agents,
        )  # fmt: skip
        self._step("play", "spec.yaml", "-q")
        run, asked = only_run(self.folder / "results"), self.server.requests
        tables = sum(path.stat().st_size for path in run.glob("*.parquet"))
        print(f"      {games} games, {asked} answers, {tables / 1e9:.2f} GB of tables")
        rows = self._counts()
        self.check(rows == (games, games * ANSWERS, asked), f"{self.name}: rollouts, calls and requests: {rows}")
        self._unsealed(run)
        self._step("show what is in the journal", "show", run.name)
        self._step("seal what is in the journal", "spec.yaml", "-q")
        self.check(
            self._counts() == rows and self.server.requests == asked, f"{self.name}: and nothing was asked again"
        )
        (self.folder / "results" / "leaderboard.duckdb").unlink()
        self._step("rebuild the board", "leaderboard", "--rebuild")
        self._step("runs", "runs")
        self._step("show", "show", run.name)
        self._step("show all rollouts", "show", run.name, "--all")
        self._step("show a game", "show", run.name, "p0")
        self._step("show a prompt", "show", run.name, "p0", "--prompt", "verifier")
        for name in ("openai", "trl", "verl"):
            self._step(f"export {name}", "export", run.name, "--format", name, "--out", "exported")
            shutil.rmtree(self.folder / "exported")
        question = "SELECT count(*) AS calls, min(length(raw_message)) AS shortest FROM completions"
        (found,) = json.loads(self._step("sql", "sql", question, "--json").out)
        self.check(found["calls"] == asked and found["shortest"] > LENGTH * 0.9, f"{self.name}: {found}")

    def _unsealed(self, run: Path) -> None:
        """Make a run look as if it was killed, or the disk was full, before its tables were written."""
        for name in ("rollouts", "messages", "completions"):
            (run / f"{name}.parquet").unlink()
        (run / "metrics.json").unlink()
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**manifest, "status": "failed"}))

    def _counts(self) -> tuple[int, ...]:
        """Return the numbers of rollouts and calls in the manifest, and of requests to the server."""
        done = measured(command("runs", "--json"), self.folder)
        (run,) = json.loads(done.out)
        return run["rollouts"], run["completions"], self.server.requests

    def _step(self, what: str, *words: str) -> Measured:
        done = measured(command(*words), self.folder)
        claim = f"{self.name}: {what}: peak {done.peak_mb:.0f} MB in {done.wall:.1f} s"
        self.check(done.code == 0 and done.peak_mb <= self.most_mb, claim + _why(done))
        return done


def _why(done: Measured) -> str:
    return f"; exit {done.code}: {done.err.strip()[-300:]}" if done.code else ""


if __name__ == "__main__":
    sys.exit(main())
