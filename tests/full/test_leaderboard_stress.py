"""The leaderboard under four writers, kills, foreign readers and writers, and leftovers of torn appends.

Four processes append N runs each; then N // 2 appends are killed at random moments.
"""

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
from tests.support.claims import Claims
from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.runs import played
from tests.support.specs import spec_file

APPEND = """
import sys, time
from pathlib import Path
from runner.results.leaderboard.results_folder import Results
results, names, slowest = Results(Path(sys.argv[1])), sys.argv[2].split(","), 0.0
print("ready", flush=True)
sys.stdin.readline()
failed = []
for name in names:
    begun = time.monotonic()
    try:
        results.board.append(results.run(name))
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
    slowest = max(slowest, time.monotonic() - begun)
print(slowest, len(failed), *failed[:3], sep="|", flush=True)
"""

FOREIGN = """
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


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, env=environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def copies(results: Path, original: Path, count: int, start: int = 0) -> list[str]:
    """Copies of a run under new ids."""
    import duckdb

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
        (target / "SHA256SUMS").unlink(missing_ok=True)  # the tables are not those that the run wrote
        names.append(name)
    return names


def counts(results: Path) -> dict[str, int]:
    """How many rows each run has, over all tables; read as a reader does."""
    connection = duckdb.connect(str(results / FILE), read_only=True)
    try:
        rows = connection.execute(
            "SELECT run_id, (SELECT count(*) FROM rollouts o WHERE o.run_id = r.run_id) FROM runs r"
        ).fetchall()
    finally:
        connection.close()
    return dict(rows)


def append(results: Path, name: str) -> None:
    Results(results).board.append(Results(results).run(name))


def everything(results: Path) -> list[list[str]]:
    connection = duckdb.connect(str(results / FILE), read_only=True)
    try:
        return [
            sorted(map(repr, connection.execute(f"SELECT * FROM {table}").fetchall()))
            for table in ("runs", "agents", "metrics", "rollouts")
        ]
    finally:
        connection.close()


TIMES = 100


def test_a_leaderboard_survives_writers_kills_and_foreign_programs(tmp_path: Path, claims: Claims) -> None:
    results = tmp_path / "results"
    original = played(spec_file(tmp_path, size=4), results).folder.path
    many_writers(claims, results, original, TIMES)
    killed(claims, results, TIMES // 2, random.Random(1))
    foreign(claims, results, "reader")
    foreign(claims, results, "writer")
    killed_foreign_writer(claims, results)
    leftovers(claims, results)
    gives_up(claims, results)
    before = everything(results)
    Results(results).board.rebuild()
    claims(everything(results) == before, f"rebuilt from the run folders: the same {len(before[0])} runs' rows")


def many_writers(claims: Claims, results: Path, original: Path, each: int) -> None:
    names = copies(results, original, 4 * each)
    processes = [child(APPEND, results, ",".join(names[index::4])) for index in range(4)]
    for process in processes:
        heard(process)
    begun = time.monotonic()
    for process in processes:
        say(process)
    ends = [heard(process).split("|") for process in processes]
    seconds = time.monotonic() - begun
    for process in processes:
        process.communicate()
    errors = [error for end in ends for error in end[2:]]
    for error in errors[:3]:
        print("      " + error)
    found = counts(results)
    lost = [name for name in names if name not in found]
    claims(
        not errors, f"4 processes appended {each} runs each in {seconds:.0f} s; failed: {sum(int(e[1]) for e in ends)}"
    )
    claims(not lost, f"runs lost: {len(lost)} of {4 * each}")
    claims(set(found.values()) == {4}, f"runs with rows too few or too many: {sum(c != 4 for c in found.values())}")
    claims(max(float(end[0]) for end in ends) <= 10, f"worst wait: {max(float(end[0]) for end in ends):.2f} s")
    for name in lost:
        append(results, name)


def killed(claims: Claims, results: Path, count: int, rng: random.Random) -> None:
    """Appends killed, or stopped and then killed, at random moments: old rows or new ones, always whole."""
    unreadable = changed = kills = 0
    original = only_original(results)
    for index in range(count):
        (name,) = copies(results, original, 1, start=5000 + index)
        before = counts(results)
        process = child(APPEND, results, name)
        heard(process)
        say(process)
        time.sleep(rng.uniform(0.0, 0.12))
        if rng.random() < 0.3:
            process.send_signal(signal.SIGSTOP)
            unreadable += not readable(results)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.communicate()
        try:
            after = counts(results)
            changed += after not in (before, {**before, name: 4})
        except duckdb.Error as error:
            print(f"      {error}")
            unreadable += 1
        append(results, name)
        changed += counts(results) != {**before, name: 4}
    claims(unreadable == 0, f"{kills} of {count} appends killed in the middle: unreadable {unreadable}")
    claims(changed == 0, f"neither the old rows nor the new: {changed}")


def readable(results: Path) -> bool:
    try:
        return bool(counts(results))
    except duckdb.Error:
        return False


def only_original(results: Path) -> Path:
    return next(path for path in (results / "runs").iterdir() if not path.name.startswith("copy-"))


def foreign(claims: Claims, results: Path, kind: str) -> None:
    """Somebody's own DuckDB process keeps the file open for five seconds."""
    process = child(FOREIGN, results / FILE, kind)
    assert heard(process) == "open", process.communicate()[1]
    (name,) = copies(results, only_original(results), 1, start=7000 + (kind == "writer"))
    begun = time.monotonic()
    append(results, name)
    seconds = time.monotonic() - begun
    time.sleep(max(5 - seconds, 0))
    say(process)
    read = heard(process)
    say(process)
    process.communicate()
    claims(read == "read" and process.returncode == 0, f"a foreign {kind} of 5 s was not disturbed")
    claims(readable(results) and name in counts(results), f"and an append beside it was kept, after {seconds:.2f} s")


def killed_foreign_writer(claims: Claims, results: Path) -> None:
    """A foreign writer that dies leaves its log beside the file, and beside the one that takes its place."""
    process = child(FOREIGN, results / FILE, "writer")
    assert heard(process) == "open", process.communicate()[1]
    say(process)
    heard(process)
    process.kill()
    process.communicate()
    (name,) = copies(results, only_original(results), 1, start=7100)
    error = ""
    try:
        append(results, name)
        found = name in counts(results) and name in dict(Results(results).board.query("SELECT run_id, 1 FROM runs")[1])
    except Exception as raised:  # noqa: BLE001 - whatever it is, the claim fails
        found, error = False, f" ({type(raised).__name__}: {raised})"
    claims(found, f"a foreign writer was killed with its log left behind: the next append is kept and read{error}")
    if not found:
        (results / (FILE + ".wal")).unlink(missing_ok=True)
        Results(results).board.rebuild()


def leftovers(claims: Claims, results: Path) -> None:
    """What a torn append left beside the board is never taken for it."""
    data = (results / FILE).read_bytes()
    before = counts(results)
    wrong = 0
    original = only_original(results)
    cuts = [0, 1, 4096, 8192, 12288, len(data) // 2, len(data) - 1, len(data)]
    for index, cut in enumerate(cuts):
        (results / (FILE + ".new")).write_bytes(data[:cut])
        (results / (FILE + ".new.wal")).write_bytes(data[: cut // 2])
        wrong += counts(results) != before
        (name,) = copies(results, original, 1, start=8000 + index)
        append(results, name)
        before[name] = 4
        wrong += counts(results) != before
        wrong += (results / (FILE + ".new")).exists() or (results / (FILE + ".new.wal")).exists()
    claims(wrong == 0, f"{len(cuts)} torn copies left beside the board: taken for it {wrong}")


def gives_up(claims: Claims, results: Path) -> None:
    """Who waits in vain for the lock leaves alone what its holder is writing."""
    original, beside = only_original(results), results / (FILE + ".new")
    with locked(results / LOCK, "the board"):
        beside.write_bytes(b"the holder's copy")
        try:
            Results(results).board.append(RunFolder(original), wait_seconds=0.05)
            error = "it was let in"
        except LeaderboardError as raised:
            error = str(raised)
        untouched = beside.is_file()
        beside.unlink(missing_ok=True)
    claims("in use by process" in error, "an append that waits in vain says by whom the board is held")
    claims(untouched, "and does not take away the copy that the holder is writing")
