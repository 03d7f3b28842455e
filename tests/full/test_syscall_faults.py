"""The command line with a fault in one of its writes, flushes, truncations or renames.

For an append to a leaderboard, each call fails in turn, with one of the faults. For a whole run, random calls fail with
random faults. A write that fails has written half of its data. The tests need gcc.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from runner.results.leaderboard.database import FILE
from runner.results.leaderboard.results_folder import Results
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run
from tests.support.runs import derived_files, only_run, run_spec
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file
from tests.support.syscall_faults import FAULTS, Fault, count_kinds, fault_library

WORKERS = 2
RUN_FAULTS = 40
BoardRows = list[tuple[object, ...]]


@dataclass(frozen=True)
class Result:
    """The result of one command: the fault, the number of the call, the exit code and the problems."""

    fault: Fault
    number: int
    code: int
    problems: tuple[str, ...]


def test_append_to_a_leaderboard_survives_every_fault_of_a_system_call(tmp_path: Path, check: SoftAssertions) -> None:
    check_append_faults(check, tmp_path, fault_library(tmp_path))


def test_run_survives_faults_of_system_calls(tmp_path: Path, check: SoftAssertions) -> None:
    check_run_faults(check, tmp_path, fault_library(tmp_path), RUN_FAULTS, random.Random(1))


@dataclass(frozen=True)
class Workspace:
    """A folder to run the command in, and the library that injects faults."""

    path: Path
    library: Path

    @property
    def results(self) -> Path:
        return self.path / "results"

    def command(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command with the library."""
        return nip_run(
            "spec.yaml", "-q", "--results", self.results, cwd=self.path, LD_PRELOAD=str(self.library),
            NIP_FAULT_FOLDER=str(self.results), timeout=HANG_SECONDS, **variables,
        )  # fmt: skip

    def calls(self) -> list[str]:
        """Run the command without a fault; return its calls."""
        log = self.path / "calls.log"
        done = self.command(NIP_FAULT_LOG=str(log))
        assert done.returncode == 0, done.stderr
        return log.read_text().splitlines()

    def run_with_fault(self, fault: Fault, number: int) -> tuple[int, list[str]]:
        """Run the command with a fault at a call; return the exit code, and problems with it."""
        done = self.command(NIP_FAULT_AT=str(number), **fault.variables)
        return done.returncode, find_exit_problems(self.results, fault, done.returncode, done.stderr)

    def copy_to(self, target: Path) -> Workspace:
        return Workspace(Path(shutil.copytree(self.path, target)), self.library)


def find_exit_problems(results: Path, fault: Fault, code: int, stderr: str) -> list[str]:
    """Return the problems with the exit code and the error message of a command."""
    if fault.how == "kill":
        return [] if code in (-signal.SIGKILL, 0) else [f"exit {code}: {stderr.strip()[:200]}"]
    if code == 0:
        return []
    is_clear = code == 1 and str(results) in stderr and "Traceback" not in stderr and "bug in nip-run" not in stderr
    return [] if is_clear else [f"unclear, exit {code}: {stderr.strip()[:200]}"]


def read_board(results: Path) -> BoardRows:
    """Return the runs on the leaderboard with their numbers of rollouts."""
    rollouts = "SELECT count(*) FROM rollouts o WHERE o.run_id = r.run_id"
    return sorted(Results(results).board.query(f"SELECT run_id, ({rollouts}) FROM runs r")[1])


def hash_files(run: Path) -> dict[str, str]:
    """Return the hashes of all files of a run except its lock."""
    paths = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def check_results(check: SoftAssertions, name: str, results: Sequence[Result]) -> None:
    """Check the results of each fault."""
    for fault in FAULTS:
        matching = [result for result in results if result.fault == fault]
        codes = dict(sorted(Counter(result.code for result in matching).items()))
        problems = [result for result in matching if result.problems]
        check(
            not problems,
            f"{name}, {fault.name}: no problem at {len(matching)} calls (except {len(problems)}), exit codes {codes}",
        )
        for result in problems[:3]:
            print(f"      at call {result.number}: " + "; ".join(result.problems))


# The leaderboard


def check_append_faults(check: SoftAssertions, folder: Path, library: Path) -> None:
    """Let each call of an append fail. The board must have the old or the new rows, and the run must not change."""
    origin = folder / "append"
    origin.mkdir()
    spec = spec_file(origin, size=2)
    run_spec(spec, origin / "results", "seed=8")
    shutil.copyfile(origin / "results" / FILE, origin / "old.duckdb")
    run = run_spec(spec, origin / "results").folder.path
    boards = [read_board(origin / "results")]
    shutil.copyfile(origin / "old.duckdb", origin / "results" / FILE)
    boards.insert(0, read_board(origin / "results"))
    workspace = Workspace(origin, library)
    calls = workspace.calls()
    assert read_board(origin / "results") == boards[1]
    print(f"an append makes {len(calls)} calls: {count_kinds(calls)}")
    points = [(FAULTS[number % len(FAULTS)], number) for number in range(len(calls))]

    def run_part(index: int) -> list[Result]:
        copy = workspace.copy_to(folder / f"append-{index}")
        return [append_with_fault(copy, *point, run.name, boards) for point in points[index::WORKERS]]

    check_results(check, "append", run_in_threads(run_part))


def append_with_fault(workspace: Workspace, fault: Fault, number: int, run: str, boards: list[BoardRows]) -> Result:
    results = workspace.results
    shutil.copyfile(workspace.path / "old.duckdb", results / FILE)
    before = hash_files(results / "runs" / run)
    code, problems = workspace.run_with_fault(fault, number)
    rows = read_board(results)
    if rows not in (boards if code else boards[1:]):
        problems.append(f"the board has {rows} after exit {code}")
    if hash_files(results / "runs" / run) != before:
        problems.append("the run's files have changed")
    run_spec(workspace.path / "spec.yaml", results)
    if read_board(results) != boards[1]:
        problems.append(f"the board has {read_board(results)} after the second command")
    if list(results.glob("*.new*")):
        problems.append("a copy of the board is left")
    return Result(fault, number, code, tuple(problems))


# A complete run


def check_run_faults(check: SoftAssertions, folder: Path, library: Path, count: int, rng: random.Random) -> None:
    """Let random calls of a complete run fail. The same command must then finish the run with equal files."""
    origin = folder / "run"
    origin.mkdir()
    spec_file(origin, size=2)
    workspace = Workspace(origin, library)
    calls = workspace.calls()
    expected, rows = derived_files(only_run(origin / "results")), read_board(origin / "results")
    print(f"a whole run makes {len(calls)} calls: {count_kinds(calls)}")
    shutil.rmtree(origin / "results")
    points = [(rng.choice(FAULTS), rng.randrange(len(calls))) for _ in range(count)]

    def run_part(index: int) -> list[Result]:
        copy = workspace.copy_to(folder / f"run-{index}")
        return [run_spec_with_fault(copy, *point, expected, rows) for point in points[index::WORKERS]]

    check_results(check, "run", run_in_threads(run_part))


def run_spec_with_fault(
    workspace: Workspace, fault: Fault, number: int, expected: dict[str, str], rows: BoardRows
) -> Result:
    results = workspace.results
    code, problems = workspace.run_with_fault(fault, number)
    if (results / FILE).is_file():
        read_board(results)
    if code == 0 and (derived_files(only_run(results)) != expected or read_board(results) != rows):
        problems.append("exit code 0, but the files or the board differ from those of the undisturbed run")
    run_spec(workspace.path / "spec.yaml", results)
    run = only_run(results)
    if derived_files(run) != expected or read_board(results) != rows:
        problems.append("the files or the board differ from those of the undisturbed run after the second command")
    if [*results.glob("*.new*"), *run.rglob("*.new")]:
        problems.append("a half-written file is left")
    shutil.rmtree(results)
    return Result(fault, number, code, tuple(problems))


def run_in_threads(run_part: Callable[[int], list[Result]]) -> list[Result]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return [result for results in pool.map(run_part, range(WORKERS)) for result in results]
