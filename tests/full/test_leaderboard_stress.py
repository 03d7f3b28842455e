"""The leaderboard with concurrent writers, killed writers, foreign programs and leftover files of torn appends."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb

from runner.base.errors import LeaderboardError
from runner.base.storage.locks import locked
from runner.results.folder import RunFolder
from runner.results.leaderboard.database import FILE, LOCK
from runner.results.leaderboard.results_folder import Results
from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.runs import run_spec
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

APPENDS = 100
MAX_WAIT = 20
"""Maximum number of other appends that may end while one waits. With a fair lock and 4 processes, it was 7."""
APPEND_SCRIPT = """
import sys, time
from pathlib import Path
from runner.results.leaderboard.results_folder import Results
results, names, times = Results(Path(sys.argv[1])), sys.argv[2].split(","), []
print("ready", flush=True)
sys.stdin.readline()
failed = []
for name in names:
    begun = time.monotonic()
    try:
        results.board.append(results.run(name))
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
    times.append(f"{begun} {time.monotonic()}")
print(",".join(times), len(failed), *failed[:3], sep="|", flush=True)
"""

FOREIGN_PROCESS_SCRIPT = """
import sys, time, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reader")
if sys.argv[2] == "writer":
    connection.execute("CREATE OR REPLACE TABLE theirs AS SELECT 1 AS x")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO theirs VALUES (2)")
print("open", flush=True)
sys.stdin.readline()
assert connection.execute("SELECT count(*) FROM runs").fetchone()[0] > 0
if sys.argv[2] == "writer":
    connection.execute("COMMIT")
print("read", flush=True)
sys.stdin.readline()
connection.close()
"""


def start_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, env=environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def send_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def copy_run(results: Path, original: Path, count: int, start: int = 0) -> list[str]:
    """Copy a run under new ids; return the ids."""
    names = []
    for index in range(start, start + count):
        name = f"copy-{index:04d}"
        target = results / "runs" / name
        shutil.copytree(original, target)
        manifest = json.loads((target / "manifest.json").read_text())
        (target / "manifest.json").write_text(json.dumps({**manifest, "run_id": name}))
        for table in ("rollouts", "messages", "completions"):
            path = target / f"{table}.parquet"
            connection = duckdb.connect(":memory:")
            connection.execute(
                f"COPY (SELECT * REPLACE ('{name}' AS run_id) FROM read_parquet('{path}')) "
                f"TO '{path}.new' (FORMAT parquet)"
            )
            connection.close()
            Path(f"{path}.new").replace(path)
        (target / "SHA256SUMS").unlink(missing_ok=True)  # the tables have changed
        names.append(name)
    return names


def count_rollouts(results: Path) -> dict[str, int]:
    """Return the number of rollouts of each run on the board, read through a read-only connection."""
    connection = duckdb.connect(str(results / FILE), read_only=True)
    try:
        rows = connection.execute(
            "SELECT run_id, (SELECT count(*) FROM rollouts o WHERE o.run_id = r.run_id) FROM runs r"
        ).fetchall()
    finally:
        connection.close()
    return dict(rows)


def append_run(results: Path, name: str) -> None:
    Results(results).board.append(Results(results).run(name))


def read_all_rows(results: Path) -> list[list[str]]:
    connection = duckdb.connect(str(results / FILE), read_only=True)
    try:
        return [
            sorted(map(repr, connection.execute(f"SELECT * FROM {table}").fetchall()))
            for table in ("runs", "agents", "metrics", "rollouts")
        ]
    finally:
        connection.close()


def test_leaderboard_survives_concurrent_writers_kills_and_foreign_programs(
    tmp_path: Path, check: SoftAssertions
) -> None:
    results = tmp_path / "results"
    original = run_spec(spec_file(tmp_path, size=4), results).folder.path
    check_concurrent_appends(check, results, original, APPENDS)
    check_killed_appends(check, results, APPENDS // 2, random.Random(1))
    check_foreign_process(check, results, "reader")
    check_foreign_process(check, results, "writer")
    check_killed_foreign_writer(check, results)
    check_leftover_files(check, results)
    check_lock_timeout(check, results)
    before = read_all_rows(results)
    Results(results).board.rebuild()
    check(
        read_all_rows(results) == before,
        f"a rebuild from the run folders yields the same rows of {len(before[0])} runs",
    )


def check_concurrent_appends(check: SoftAssertions, results: Path, original: Path, per_process: int) -> None:
    names = copy_run(results, original, 4 * per_process)
    processes = [start_python(APPEND_SCRIPT, results, ",".join(names[index::4])) for index in range(4)]
    for process in processes:
        read_line(process)
    started = time.monotonic()
    for process in processes:
        send_line(process)
    reports = [read_line(process).split("|") for process in processes]
    seconds = time.monotonic() - started
    for process in processes:
        process.communicate()
    errors = [error for report in reports for error in report[2:]]
    for error in errors[:3]:
        print("      " + error)
    rows_by_run = count_rollouts(results)
    lost = [name for name in names if name not in rows_by_run]
    failures = sum(int(report[1]) for report in reports)
    check(not errors, f"4 processes append {per_process} runs each in {seconds:.0f} s ({failures} failures)")
    check(not lost, f"no run is lost ({len(lost)} of {4 * per_process})")
    check(
        set(rows_by_run.values()) == {4}, f"every run has all rows (except {sum(c != 4 for c in rows_by_run.values())})"
    )
    # Appends that end while another one waits, which does not depend on the load of the machine.
    appends = [tuple(map(float, times.split())) for report in reports for times in report[0].split(",")]
    overtaken = max(sum(begun < end < own_end for _, end in appends) for begun, own_end in appends)
    check(
        overtaken <= MAX_WAIT,
        f"no append waits for more than {MAX_WAIT} others: {overtaken}",
    )
    for name in lost:
        append_run(results, name)


def check_killed_appends(check: SoftAssertions, results: Path, count: int, rng: random.Random) -> None:
    """Kill appends at random moments, some after a stop. The board must have the old rows or all new ones."""
    unreadable = changed = kills = 0
    original = find_original(results)
    for index in range(count):
        (name,) = copy_run(results, original, 1, start=5000 + index)
        before = count_rollouts(results)
        process = start_python(APPEND_SCRIPT, results, name)
        read_line(process)
        send_line(process)
        time.sleep(rng.uniform(0.0, 0.12))
        if rng.random() < 0.3:
            process.send_signal(signal.SIGSTOP)
            unreadable += not is_readable(results)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.communicate()
        try:
            after = count_rollouts(results)
            changed += after not in (before, {**before, name: 4})
        except duckdb.Error as error:
            print(f"      {error}")
            unreadable += 1
        append_run(results, name)
        changed += count_rollouts(results) != {**before, name: 4}
    check(
        unreadable == 0, f"the board is readable after {kills} of {count} appends were killed ({unreadable} times not)"
    )
    check(changed == 0, f"the board has the old rows or all new rows ({changed} times not)")


def is_readable(results: Path) -> bool:
    try:
        return bool(count_rollouts(results))
    except duckdb.Error:
        return False


def find_original(results: Path) -> Path:
    return next(path for path in (results / "runs").iterdir() if not path.name.startswith("copy-"))


def check_foreign_process(check: SoftAssertions, results: Path, kind: str) -> None:
    """Let another DuckDB process keep the file open for five seconds during an append."""
    process = start_python(FOREIGN_PROCESS_SCRIPT, results / FILE, kind)
    assert read_line(process) == "open", process.communicate()[1]
    (name,) = copy_run(results, find_original(results), 1, start=7000 + (kind == "writer"))
    started = time.monotonic()
    append_run(results, name)
    seconds = time.monotonic() - started
    time.sleep(max(5 - seconds, 0))
    send_line(process)
    last_line = read_line(process)
    send_line(process)
    process.communicate()
    check(last_line == "read" and process.returncode == 0, f"a foreign {kind} is not disturbed")
    check(
        is_readable(results) and name in count_rollouts(results),
        f"an append during a foreign {kind} is stored, after {seconds:.2f} s",
    )


def check_killed_foreign_writer(check: SoftAssertions, results: Path) -> None:
    """Kill a foreign writer, which leaves its write-ahead log next to the board, then append a run."""
    process = start_python(FOREIGN_PROCESS_SCRIPT, results / FILE, "writer")
    assert read_line(process) == "open", process.communicate()[1]
    send_line(process)
    read_line(process)
    process.kill()
    process.communicate()
    (name,) = copy_run(results, find_original(results), 1, start=7100)
    error = ""
    try:
        append_run(results, name)
        is_stored = name in count_rollouts(results) and name in dict(
            Results(results).board.query("SELECT run_id, 1 FROM runs")[1]
        )
    except Exception as raised:  # noqa: BLE001 - any error fails the check
        is_stored, error = False, f" ({type(raised).__name__}: {raised})"
    check(is_stored, f"an append after a foreign writer was killed is stored and can be read{error}")
    if not is_stored:
        (results / (FILE + ".wal")).unlink(missing_ok=True)
        Results(results).board.rebuild()


def check_leftover_files(check: SoftAssertions, results: Path) -> None:
    """Leave parts of a board's copy, as torn appends do. They must never be used as the board."""
    data = (results / FILE).read_bytes()
    before = count_rollouts(results)
    errors = 0
    original = find_original(results)
    cuts = [0, 1, 4096, 8192, 12288, len(data) // 2, len(data) - 1, len(data)]
    for index, cut in enumerate(cuts):
        (results / (FILE + ".new")).write_bytes(data[:cut])
        (results / (FILE + ".new.wal")).write_bytes(data[: cut // 2])
        errors += count_rollouts(results) != before
        (name,) = copy_run(results, original, 1, start=8000 + index)
        append_run(results, name)
        before[name] = 4
        errors += count_rollouts(results) != before
        errors += (results / (FILE + ".new")).exists() or (results / (FILE + ".new.wal")).exists()
    check(errors == 0, f"none of {len(cuts)} leftover copies is used as the board ({errors} errors)")


def check_lock_timeout(check: SoftAssertions, results: Path) -> None:
    """Append while another process has the lock: the append must fail and keep that process's files."""
    original, new_file = find_original(results), results / (FILE + ".new")
    with locked(results / LOCK, "the board"):
        new_file.write_bytes(b"a copy that the holder of the lock writes")
        try:
            Results(results).board.append(RunFolder(original), wait_seconds=0.05)
            error = "no error"
        except LeaderboardError as raised:
            error = str(raised)
        untouched = new_file.is_file()
        new_file.unlink(missing_ok=True)
    check("in use by process" in error, f"an append that cannot get the lock names the process that has it: {error}")
    check(untouched, "an append that cannot get the lock keeps the copy that the holder writes")
