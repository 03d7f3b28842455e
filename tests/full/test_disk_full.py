"""A disk that fills up during a run: a clear error, exit code 1, and a run that resumes once there is space.

First, the disk is filled at random sizes before a run, so that the journal runs out of space. Then the tables and the
leaderboard of a finished run are built again with every amount of free space from none to enough. The test mounts a
tmpfs, so it must run as root.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from runner.results.leaderboard.results_folder import Results
from tests.support.processes import nip_run
from tests.support.runs import derived_files, only_run, read_calls, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.small_disks import fill_disk, mount_small_disk
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

RUNS, SEED = 12, 1
SHORT_ANSWERS = {"max_response_words": 1}


def test_run_on_a_full_disk_fails_with_a_clear_error_and_resumes_with_space(
    tmp_path: Path, check: SoftAssertions
) -> None:
    with mount_small_disk(tmp_path / "disk"), run_chat_server() as server:
        # The limit on answers makes the estimated size of the run small, so that the run starts and fails later.
        path = spec_file(
            tmp_path, server.base_url, size=40, agents=dict.fromkeys(("prover", "verifier"), SHORT_ANSWERS)
        )
        expected_run = run_spec(path, tmp_path / "whole").folder.path
        check_full_journal(check, tmp_path, server, expected_run)
        check_full_tables(check, tmp_path, server, expected_run)
        check_full_board(check, tmp_path)


def check_full_journal(check: SoftAssertions, folder: Path, server: LoopbackServer, expected_run: Path) -> None:
    rng = random.Random(SEED)
    disk, expected = folder / "disk", derived_files(expected_run)
    needed = len(read_calls(expected_run))
    size = (expected_run / "journal.jsonl").stat().st_size
    codes: Counter[int] = Counter()
    unclear = lost = differing = repaid = 0
    for number in range(RUNS):
        results = disk / f"results-{number}"
        requests_before = server.requests
        with fill_disk(disk, rng.randrange(30_000, 30_000 + size + 60_000)):
            done = nip_run("spec.yaml", "-q", "--results", results, cwd=folder)
            codes[done.returncode] += 1
            if done.returncode:
                unclear += not is_clear_error(done.stderr, folder)
        resumed = nip_run("spec.yaml", "-q", "--results", results, cwd=folder)
        run = only_run(results)
        differing += resumed.returncode != 0 or derived_files(run) != expected
        samples = read_calls(run)
        lost += len(set(samples)) != needed or len(samples) != needed
        # The resumed run repeats at most the calls that were in flight.
        repaid += server.requests - requests_before > needed + 8
        shutil.rmtree(results)
    check(
        set(codes) <= {0, 1} and codes[1] > 0,
        f"some of {RUNS} runs on a disk that fills up fail with exit code 1: {dict(codes)}",
    )
    check(unclear == 0, f"every error is clear (except {unclear})")
    check(lost == 0, f"no resumed journal lost or repeated a record (except {lost})")
    check(repaid == 0, f"no resumed run repeated more calls than those in flight (except {repaid})")
    check(differing == 0, f"every resumed run equals the undisturbed one (except {differing})")


def check_full_tables(check: SoftAssertions, folder: Path, server: LoopbackServer, expected_run: Path) -> None:
    """Build the tables, metrics, fine-tuning files, manifest and board of a finished run with too little space."""
    disk, expected = folder / "disk", derived_files(expected_run)
    results = disk / "results"
    assert nip_run("spec.yaml", "-q", "--results", results, cwd=folder).returncode == 0
    run = only_run(results)
    requests_before = server.requests
    codes: Counter[int] = Counter()
    failures_by_file: Counter[str] = Counter()
    unclear = differing = unlisted = unreadable = 0
    is_enough = False
    free_bytes = 0
    while not is_enough and free_bytes < 12 << 20:
        remove_derived_files(results, run)
        with fill_disk(disk, free_bytes):
            done = nip_run("spec.yaml", "-q", "--results", results, cwd=folder)
            codes[done.returncode] += 1
            if done.returncode:
                unclear += not is_clear_error(done.stderr, folder)
                failures_by_file[failed_file(done.stderr)] += 1
            unreadable += not is_readable(results)
        resumed = nip_run("spec.yaml", "-q", "--results", results, cwd=folder)
        files = derived_files(run)
        if resumed.returncode != 0 or files != expected:
            differing += 1
            names = [name for name in expected | files if expected.get(name) != files.get(name)]
            print(f"      {free_bytes >> 10} KiB: exit {resumed.returncode}, {names} {resumed.stderr.strip()[:300]}")
        unlisted += read_board(results) != [(run.name, "done")]
        is_enough = done.returncode == 0
        free_bytes += 8 << 10 if free_bytes < 64 << 10 else 32 << 10
    check(
        set(codes) <= {0, 1} and is_enough,
        f"builds with 0 to {free_bytes >> 10} KiB fail with exit code 1 until there is enough space: {dict(codes)}",
    )
    print("      " + ", ".join(f"{count} x {name}" for name, count in failures_by_file.most_common()))
    check(unclear == 0, f"every error is clear (except {unclear})")
    check(differing == 0, f"all files are correct once there is space (except {differing})")
    check(unlisted == 0, f"the same command adds the run to the board once there is space (except {unlisted})")
    check(unreadable == 0, f"every board is readable (except {unreadable})")
    check(server.requests == requests_before, "no call was repeated")


def remove_derived_files(results: Path, run: Path) -> None:
    """Delete the leaderboard and all files of a run that follow from its journal, and mark the run as running."""
    for name in ("rollouts", "messages", "completions"):
        (run / f"{name}.parquet").unlink(missing_ok=True)
    (run / "metrics.json").unlink(missing_ok=True)
    if (run / "fine_tune").is_dir():
        shutil.rmtree(run / "fine_tune")
    (results / "leaderboard.duckdb").unlink(missing_ok=True)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))


def is_readable(results: Path) -> bool:
    """Return whether the leaderboard can be read, or does not exist."""
    try:
        read_board(results)
    except Exception as error:  # noqa: BLE001 - no error at all is expected
        print(f"      cannot read the board: {error}")
        return False
    return True


def read_board(results: Path) -> list[tuple[Any, ...]]:
    """Return the ids and states of the runs on the leaderboard, sorted; nothing if there is no leaderboard."""
    if not (results / "leaderboard.duckdb").exists():
        return []
    return sorted(Results(results).board.query("SELECT run_id, status FROM runs")[1])


def check_full_board(check: SoftAssertions, folder: Path) -> None:
    """Add a finished run to a board that has an older run, with too little space."""
    disk = folder / "disk"
    results = disk / "results"
    board, old_copy = results / "leaderboard.duckdb", folder / "kept.duckdb"
    assert nip_run("spec.yaml", "-q", "--results", results, "seed=8", cwd=folder).returncode == 0
    assert nip_run("leaderboard", "--rebuild", "--results", results, cwd=folder).returncode == 0
    both_rows = read_board(results)
    new_run = next(run_id for run_id, _ in both_rows if run_id != find_first_run(results))
    backup = folder / "aside"
    shutil.move(results / "runs" / new_run, backup)
    assert nip_run("leaderboard", "--rebuild", "--results", results, cwd=folder).returncode == 0
    shutil.move(backup, results / "runs" / new_run)
    shutil.copyfile(board, old_copy)
    old_rows = read_board(results)
    codes: Counter[int] = Counter()
    partial = unclear = unlisted = 0
    arguments = ("spec.yaml", "-q", "--results", results, "seed=8")
    for free_bytes in range(0, 8 << 20, 256 << 10):
        shutil.copyfile(old_copy, board)
        with fill_disk(disk, free_bytes):
            done = nip_run(*arguments, cwd=folder)
            codes[done.returncode] += 1
            unclear += done.returncode != 0 and not is_clear_error(done.stderr, folder)
            rows = read_board(results)
            is_intact = (
                rows == (old_rows if done.returncode else both_rows)
                and not (results / "leaderboard.duckdb.new").exists()
            )
            if not is_intact:
                names = sorted(path.name for path in results.iterdir())
                print(f"      at {free_bytes >> 10} KiB: exit {done.returncode}, {rows}, {names}")
            partial += not is_intact
        resumed = nip_run(*arguments, cwd=folder)
        unlisted += resumed.returncode != 0 or read_board(results) != both_rows
        if done.returncode == 0:
            break
    check(set(codes) == {0, 1}, f"some appends to the board fail with exit code 1, then one succeeds: {dict(codes)}")
    check(unclear == 0, f"every error is clear (except {unclear})")
    check(partial == 0, f"every board has the old run or both, and no copy is left (except {partial})")
    check(unlisted == 0, f"the same command adds the run to the board once there is space (except {unlisted})")


def find_first_run(results: Path) -> str:
    """Return the run that `check_full_tables` left."""
    return min((path for path in (results / "runs").iterdir()), key=lambda path: path.stat().st_ctime).name


def is_clear_error(text: str, folder: Path) -> bool:
    """Return whether an error names a file or folder and says that the disk is full; print other errors."""
    disk_errors = ("No space left", "not enough space", "disk is full", "database or disk is full")
    match = re.search("Resume with|Append its rows later with", text)
    is_clear = (
        match is not None and any(message in text for message in disk_errors) and str(folder) in text[: match.start()]
        and "Traceback" not in text and "bug in nip-run" not in text
    )  # fmt: skip
    if not is_clear:
        print("      " + text.strip().replace("\n", "\n      ")[:600])
    return is_clear


def failed_file(text: str) -> str:
    """Return the name of the file that could not be written, from an error message."""
    match = re.search(r"cannot (?:write|create|open) (?:the tables in )?(\S+?):? ", text)
    return Path(match[1]).name if match else text[:60]
