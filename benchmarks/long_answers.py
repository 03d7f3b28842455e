"""Check that memory does not grow with gigabytes of long answers, such as reasoning traces, or with the longest answer.

    python benchmarks/long_answers.py [--gb GB ...] [--most-mb MB]

Each step runs in its own process, and the script prints its peak memory: playing with a late first answer; rebuilding
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

from common import ProcessMeasurement, measure_process, temporary_folder

from tests.support.processes import command
from tests.support.runs import only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

ANSWER_LENGTH = 60_000
"""Characters of an answer."""
LONGEST_ANSWER = (32 << 20) - (1 << 16)
"""Characters of the longest answer that fits in the limit with its envelope and verdict."""
ANSWERS_PER_GAME = 2
"""The answers of one game: the case and the verdict."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, nargs="+", default=[0.1, 1.0, 5.0], help="default: 0.1 1 5")
    parser.add_argument("--most-mb", type=float, default=700.0, help="the highest peak of any step; default: 700")
    args = parser.parse_args()
    check = SoftAssertions()
    for size in args.gb:
        games = round(size * 1e9 / ANSWERS_PER_GAME / ANSWER_LENGTH)
        with temporary_folder() as folder, run_chat_server(length=ANSWER_LENGTH, first_latency=3.0) as server:
            _SizeCheck(check, folder, server, f"{size:g} GB", args.most_mb).check_steps(games, concurrency=16)
    with temporary_folder() as folder, run_chat_server(length=LONGEST_ANSWER) as server:
        _SizeCheck(check, folder, server, "answers of 32 MiB", args.most_mb).check_steps(1, concurrency=1)
    return check.exit_code()


@dataclass(frozen=True)
class _SizeCheck:
    """The steps for one size of answers."""

    check: SoftAssertions
    folder: Path
    server: LoopbackServer
    name: str
    most_mb: float

    def check_steps(self, games: int, *, concurrency: int) -> None:
        agents = {name: {"max_response_words": 1} for name in ("prover", "verifier")}
        spec_file(
            self.folder, self.server.base_url, size=games, protocol={"use": "adp", "max_message_rounds": None},
            prompts="prompts/code_validation/adp", rollouts={"concurrency": concurrency}, fine_tune=None,
            models={"m": {"timeout": 120}}, agents=agents,
        )  # fmt: skip
        self._measure_step("play", "spec.yaml", "-q")
        run, request_count = only_run(self.folder / "results"), self.server.requests
        tables = sum(path.stat().st_size for path in run.glob("*.parquet"))
        print(f"      {games} games, {request_count} answers, {tables / 1e9:.2f} GB of tables")
        rows = self._count_records()
        self.check(
            rows == (games, games * ANSWERS_PER_GAME, request_count),
            f"{self.name}: rollouts, calls and requests: {rows}",
        )
        self._remove_tables(run)
        self._measure_step("show what is in the journal", "show", run.name)
        self._measure_step("seal what is in the journal", "spec.yaml", "-q")
        self.check(
            self._count_records() == rows and self.server.requests == request_count,
            f"{self.name}: and nothing was asked again",
        )
        (self.folder / "results" / "leaderboard.duckdb").unlink()
        self._measure_step("rebuild the board", "leaderboard", "--rebuild")
        self._measure_step("runs", "runs")
        self._measure_step("show", "show", run.name)
        self._measure_step("show all rollouts", "show", run.name, "--all")
        self._measure_step("show a game", "show", run.name, "p0")
        self._measure_step("show a prompt", "show", run.name, "p0", "--prompt", "verifier")
        for name in ("openai", "trl", "verl"):
            self._measure_step(f"export {name}", "export", run.name, "--format", name, "--out", "exported")
            shutil.rmtree(self.folder / "exported")
        query = "SELECT count(*) AS calls, min(length(raw_message)) AS shortest FROM completions"
        (row,) = json.loads(self._measure_step("sql", "sql", query, "--json").out)
        self.check(row["calls"] == request_count and row["shortest"] > ANSWER_LENGTH * 0.9, f"{self.name}: {row}")

    def _remove_tables(self, run: Path) -> None:
        """Make a run look as if it was killed, or the disk was full, before its tables were written."""
        for name in ("rollouts", "messages", "completions"):
            (run / f"{name}.parquet").unlink()
        (run / "metrics.json").unlink()
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**manifest, "status": "failed"}))

    def _count_records(self) -> tuple[int, ...]:
        """Return the numbers of rollouts and calls in the manifest, and of requests to the server."""
        process = measure_process(command("runs", "--json"), self.folder)
        (run,) = json.loads(process.out)
        return run["rollouts"], run["completions"], self.server.requests

    def _measure_step(self, step: str, *arguments: str) -> ProcessMeasurement:
        process = measure_process(command(*arguments), self.folder)
        text = f"{self.name}: {step}: peak {process.peak_mb:.0f} MB in {process.wall:.1f} s"
        self.check(process.code == 0 and process.peak_mb <= self.most_mb, text + _describe_failure(process))
        return process


def _describe_failure(process: ProcessMeasurement) -> str:
    return f"; exit {process.code}: {process.err.strip()[-300:]}" if process.code else ""


if __name__ == "__main__":
    sys.exit(main())
