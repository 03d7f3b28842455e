"""Check that queries of a board of ten million rollouts answer within a second, in limited memory.

`python benchmarks/sql_large.py [--rollouts N]`. The script creates the board and the runs' messages in a temporary
folder (about 1 GB). Each query runs in its own process, and the start of the process counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import ROOT

from runner.base.storage.duckdb_connections import connect
from runner.base.storage.format_versions import LEADERBOARD
from runner.results.folder import RunFolder
from runner.results.leaderboard.database import BOARD_GROUP_ROWS, FILE
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.schema import definitions_sql
from tests.support.processes import environment
from tests.support.soft_assertions import SoftAssertions

RUNS = 1_000
MAX_RATIO = 6.0
"""The most seconds of a query, as a multiple of those of `SELECT 1`, most of which are the start of the command."""
MAX_MB = 700
"""The limit of a process: the memory that DuckDB may use, and that of Python with its packages."""

QUERIES = (
    "SELECT outcome, count(*) AS n FROM rollouts GROUP BY outcome",
    "FROM rollouts LIMIT 5",
    "SELECT run_id, avg(correct::INT) AS accuracy FROM rollouts GROUP BY run_id ORDER BY 2 DESC LIMIT 5",
    "SELECT run_id, accuracy, rank FROM leaderboard LIMIT 5",
    "PIVOT rollouts ON outcome USING count(*) GROUP BY run_id LIMIT 5",
    "FROM rollouts WHERE run_id = 'run-777' LIMIT 5",
    "DESCRIBE rollouts",
    "FROM messages LIMIT 5",
    "SELECT count(*) FROM messages",
)


def create_board(results: Path, rollouts: int, run: RunFolder) -> None:
    """Create a board with that many rollouts in a thousand runs, and the messages of these runs in their folders."""
    board = results / FILE
    connection = connect(memory="1GB", threads=2, spill=results)
    connection.execute(f"ATTACH '{board}' AS board (ROW_GROUP_SIZE {BOARD_GROUP_ROWS})")
    connection.execute("USE board")
    connection.execute(definitions_sql())
    connection.execute(f"CREATE TABLE format AS SELECT {LEADERBOARD} AS version")
    connection.execute(
        "INSERT INTO runs (run_id, name, kind, benchmark, protocol, status, rollouts, task) "
        f"SELECT 'run-' || i, 'run', 'benchmark', 'big/v1', 'nip', 'done', {rollouts // RUNS}, 't' "
        f"FROM range({RUNS}) t(i)"
    )
    connection.execute(
        "INSERT INTO metrics (run_id, metric, value, stderr, ci_low, ci_high, n, clusters) "
        f"SELECT 'run-' || i, 'accuracy', i / 1000, 0.1, 0.4, 0.6, 10000, 500 FROM range({RUNS}) t(i)"
    )
    connection.execute(
        "INSERT INTO rollouts BY NAME SELECT 'run-' || (i // $each) AS run_id, substr(md5(i::VARCHAR), 1, 16) AS "
        "rollout_id, 'p' || (i % 500) AS datapoint_id, (i // 500) % 20 AS repeat, hash(i) % 1000000 AS seed, i % 2 AS "
        "y, (i // 7) % 2 AS decision, (i // 7) % 2 = i % 2 AS correct, if(i % 17 = 0, 'no_decision', 'decided') AS "
        'outcome, 4 AS rounds, \'{"prover": 1.0, "verifier": 0.0}\' AS rewards FROM range($all) t(i)',
        {"each": rollouts // RUNS, "all": rollouts},
    )
    connection.execute("CHECKPOINT")
    connection.close()
    messages = run.table("messages")
    for number in range(RUNS):
        folder = RunFolder(results / "runs" / f"run-{number}")
        folder.path.mkdir()
        shutil.copy(run.manifest_path, folder.manifest_path)
        os.link(messages, folder.table("messages"))


def run_query(results: Path, *arguments: str, first_line: bool = False) -> tuple[float, float, str]:
    """Run a query; return the seconds until its answer or first line, the peak megabytes, and the answer.

    The seconds of a whole answer are at most the CPU seconds of the process, so that other work of the machine does not
    count.
    """
    command = [sys.executable, "-m", "runner", "sql", *arguments, "--results", str(results)]
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.readline()
    seconds = time.monotonic() - start
    extra_bytes = 0
    while chunk := process.stdout.read(1 << 20):
        extra_bytes += len(chunk)
        if extra_bytes < 1 << 20:
            output += chunk
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    if not first_line:
        seconds = min(time.monotonic() - start, usage.ru_utime + usage.ru_stime)
    return seconds, usage.ru_maxrss / 1024, output.decode()


def check_queries(results: Path, rollouts: int, check: SoftAssertions) -> None:
    start = min(run_query(results, "SELECT 1")[0] for _ in range(3))
    for query in QUERIES:
        seconds, peak, _ = min(run_query(results, query) for _ in range(3))
        check(seconds < MAX_RATIO * start, f"{seconds:.2f} s ({seconds / start:.1f}), {peak:.0f} MB: {query}")
        check(peak < MAX_MB, f"at most {MAX_MB} MB")
    (count_row,) = json.loads(run_query(results, "SELECT count(*) AS n FROM rollouts", "--json")[2])
    check(count_row == {"n": rollouts}, f"{rollouts:,} rollouts are there")
    partial_query = f"FROM rollouts LIMIT {rollouts // 5}"
    seconds, peak, _ = run_query(results, partial_query, "--format", "csv", first_line=True)
    check(seconds < MAX_RATIO * start, f"{rollouts // 5:,} rows as CSV: the first after {seconds:.2f} s")
    check(peak < MAX_MB, f"and all of them in {peak:.0f} MB")
    target = results / "all.parquet"
    seconds, peak, _ = run_query(results, "FROM rollouts", "-o", str(target))
    check(
        peak < MAX_MB,
        f"{rollouts:,} rows as Parquet, {target.stat().st_size >> 20} MB, in {seconds:.1f} s and {peak:.0f} MB",
    )
    seconds, peak, _ = run_query(results, "FROM rollouts ORDER BY hash(rollout_id) LIMIT 10")
    check(peak < MAX_MB, f"sorted in {seconds:.1f} s and {peak:.0f} MB")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=10_000_000)
    rollouts: int = parser.parse_args(arguments).rollouts
    check = SoftAssertions()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        command = [sys.executable, "-m", "runner", "specs/quickstart.yaml", "-q", "--results", str(results)]
        subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, check=True)
        (results / FILE).unlink()
        if (child := os.fork()) == 0:  # later processes would inherit the peak memory of this one
            create_board(results, rollouts, next(Results(results).runs()))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("the board was not made")
        check_queries(results, rollouts, check)
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
