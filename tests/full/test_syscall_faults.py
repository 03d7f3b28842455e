"""The command line with one write, flush, truncation or rename of its process gone wrong, for each in turn.

A finished run's append to a leaderboard that has another run: every call, each with one of the faults in turn. A whole
run, from nothing to the leaderboard: some random calls, each with a random fault. A write that fails or is killed has
written its half. Needs gcc: the faults are made by `syscall_faults.c`, which is loaded into the process before libc.
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
from tests.support.claims import Claims
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run
from tests.support.runs import derived_files, only_run, played
from tests.support.specs import spec_file
from tests.support.syscall_faults import FAULTS, Fault, count_kinds, fault_library

WORKERS = 2
RUN_FAULTS = 40
Rows = list[tuple[object, ...]]


@dataclass(frozen=True)
class Seen:
    """One command with a fault: which call it was, how the command ended, and what was wrong with that."""

    fault: Fault
    number: int
    code: int
    wrong: tuple[str, ...]


def test_an_append_to_a_board_survives_every_fault_of_a_system_call(tmp_path: Path, claims: Claims) -> None:
    append_faults(claims, tmp_path, fault_library(tmp_path))


def test_a_run_survives_faults_of_system_calls(tmp_path: Path, claims: Claims) -> None:
    run_faults(claims, tmp_path, fault_library(tmp_path), RUN_FAULTS, random.Random(1))


@dataclass(frozen=True)
class Place:
    """A folder to run the command in, and the library that disturbs it there."""

    path: Path
    library: Path

    @property
    def results(self) -> Path:
        return self.path / "results"

    def command(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """The command, with the library in its process."""
        return nip_run(
            "spec.yaml", "-q", "--results", self.results, cwd=self.path, LD_PRELOAD=str(self.library),
            NIP_FAULT_FOLDER=str(self.results), timeout=HANG_SECONDS, **variables,
        )  # fmt: skip

    def calls(self) -> list[str]:
        """The calls that the command makes, undisturbed."""
        log = self.path / "calls.log"
        done = self.command(NIP_FAULT_LOG=str(log))
        assert done.returncode == 0, done.stderr
        return log.read_text().splitlines()

    def disturbed(self, fault: Fault, number: int) -> tuple[int, list[str]]:
        """The exit code where the call of that number goes wrong, and what is wrong with such an end."""
        done = self.command(NIP_FAULT_AT=str(number), **fault.variables)
        return done.returncode, ending(self.results, fault, done.returncode, done.stderr)

    def copied(self, to: Path) -> Place:
        return Place(Path(shutil.copytree(self.path, to)), self.library)


def ending(results: Path, fault: Fault, code: int, said: str) -> list[str]:
    """What is wrong with how a command ended."""
    if fault.how == "kill":
        return [] if code in (-signal.SIGKILL, 0) else [f"exit {code}: {said.strip()[:200]}"]
    if code == 0:
        return []
    clear = code == 1 and str(results) in said and "Traceback" not in said and "bug in nip-run" not in said
    return [] if clear else [f"unclear, exit {code}: {said.strip()[:200]}"]


def board(results: Path) -> Rows:
    """Each run on the board, and how many rollouts it has there."""
    rollouts = "SELECT count(*) FROM rollouts o WHERE o.run_id = r.run_id"
    return sorted(Results(results).board.query(f"SELECT run_id, ({rollouts}) FROM runs r")[1])


def files(run: Path) -> dict[str, str]:
    """The hashes of all of a run's files but its lock."""
    paths = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def told(claims: Claims, what: str, seen: Sequence[Seen]) -> None:
    """A claim for each fault, with how the commands ended."""
    for fault in FAULTS:
        mine = [one for one in seen if one.fault == fault]
        codes = dict(sorted(Counter(one.code for one in mine).items()))
        wrong = [one for one in mine if one.wrong]
        claims(not wrong, f"{what}, {fault.name}: at {len(mine)} calls, exit codes {codes}, wrong {len(wrong)}")
        for one in wrong[:3]:
            print(f"      at call {one.number}: " + "; ".join(one.wrong))


# The leaderboard


def append_faults(claims: Claims, here: Path, library: Path) -> None:
    """Each call of an append with one of the faults: the board has the old or the new rows; the run is untouched."""
    origin = here / "append"
    origin.mkdir()
    spec = spec_file(origin, size=2)
    played(spec, origin / "results", "seed=8")
    shutil.copyfile(origin / "results" / FILE, origin / "old.duckdb")
    run = played(spec, origin / "results").folder.path
    old_new = [board(origin / "results")]
    shutil.copyfile(origin / "old.duckdb", origin / "results" / FILE)
    old_new.insert(0, board(origin / "results"))
    place = Place(origin, library)
    calls = place.calls()
    assert board(origin / "results") == old_new[1]
    print(f"an append makes {len(calls)} calls: {count_kinds(calls)}")
    points = [(FAULTS[number % len(FAULTS)], number) for number in range(len(calls))]

    def part(index: int) -> list[Seen]:
        own = place.copied(here / f"append-{index}")
        return [one_append(own, *point, run.name, old_new) for point in points[index::WORKERS]]

    told(claims, "append", in_parts(part))


def one_append(place: Place, fault: Fault, number: int, run: str, old_new: list[Rows]) -> Seen:
    results = place.results
    shutil.copyfile(place.path / "old.duckdb", results / FILE)
    before = files(results / "runs" / run)
    code, wrong = place.disturbed(fault, number)
    rows = board(results)
    if rows not in (old_new if code else old_new[1:]):
        wrong.append(f"the board has {rows} after exit {code}")
    if files(results / "runs" / run) != before:
        wrong.append("the run's files have changed")
    played(place.path / "spec.yaml", results)
    if board(results) != old_new[1]:
        wrong.append(f"the same command again leaves the board with {board(results)}")
    if list(results.glob("*.new*")):
        wrong.append("a copy of the board is left")
    return Seen(fault, number, code, tuple(wrong))


# A whole run


def run_faults(claims: Claims, here: Path, library: Path, count: int, rng: random.Random) -> None:
    """Random calls of a whole run: the same command again ends as if nothing had been."""
    origin = here / "run"
    origin.mkdir()
    spec_file(origin, size=2)
    place = Place(origin, library)
    calls = place.calls()
    wanted, rows = derived_files(only_run(origin / "results")), board(origin / "results")
    print(f"a whole run makes {len(calls)} calls: {count_kinds(calls)}")
    shutil.rmtree(origin / "results")
    points = [(rng.choice(FAULTS), rng.randrange(len(calls))) for _ in range(count)]

    def part(index: int) -> list[Seen]:
        own = place.copied(here / f"run-{index}")
        return [one_run(own, *point, wanted, rows) for point in points[index::WORKERS]]

    told(claims, "run", in_parts(part))


def one_run(place: Place, fault: Fault, number: int, wanted: dict[str, str], rows: Rows) -> Seen:
    results = place.results
    code, wrong = place.disturbed(fault, number)
    if (results / FILE).is_file():
        board(results)
    if code == 0 and (derived_files(only_run(results)) != wanted or board(results) != rows):
        wrong.append("exit 0, and the files or the board are not those of the undisturbed run")
    played(place.path / "spec.yaml", results)
    run = only_run(results)
    if derived_files(run) != wanted or board(results) != rows:
        wrong.append("the same command again does not end as the undisturbed run")
    if [*results.glob("*.new*"), *run.rglob("*.new")]:
        wrong.append("a half-written file is left")
    shutil.rmtree(results)
    return Seen(fault, number, code, tuple(wrong))


def in_parts(part: Callable[[int], list[Seen]]) -> list[Seen]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return [one for found in pool.map(part, range(WORKERS)) for one in found]
