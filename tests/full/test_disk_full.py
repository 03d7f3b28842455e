"""A disk that fills up under a run: a clear error, exit 1, and a clean resume once there is room.

Needs the right to mount a tmpfs. First the disk is filled at N random sizes before a run, so that the journal
runs out of room; then a finished run's tables and leaderboard are made again with every amount of room from none to
enough.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

from runner.results.leaderboard.results_folder import Results
from tests.support.claims import Claims
from tests.support.processes import nip_run
from tests.support.runs import calls_of, derived_files, only_run, played
from tests.support.servers.chat_client import serving
from tests.support.servers.client import Loopback
from tests.support.small_disks import mounted, only_left
from tests.support.specs import spec_file

TIMES, SEED = 12, 1
SHORT = {"max_response_words": 1}


def test_a_run_on_a_full_disk_fails_clearly_and_resumes_once_there_is_room(tmp_path: Path, claims: Claims) -> None:
    with mounted(tmp_path / "disk"), serving() as server:
        # A whole run first, on the real disk, to know what must come out.
        # With short answers there is room by any estimate, so that it is the disk itself that refuses.
        path = spec_file(tmp_path, server.base_url, size=40, agents=dict.fromkeys(("prover", "verifier"), SHORT))
        whole = played(path, tmp_path / "whole").folder.path
        journal_full(claims, tmp_path, server, whole)
        derived_full(claims, tmp_path, server, whole)
        board_full(claims, tmp_path)


def journal_full(claims: Claims, here: Path, server: Loopback, whole: Path) -> None:
    rng = random.Random(SEED)
    disk, wanted = here / "disk", derived_files(whole)
    needed = len(calls_of(whole))
    size = (whole / "journal.jsonl").stat().st_size
    codes: Counter[int] = Counter()
    unclear = lost = differing = paid = 0
    for index in range(TIMES):
        results = disk / f"results-{index}"
        before = server.requests
        with only_left(disk, rng.randrange(30_000, 30_000 + size + 60_000)):
            done = nip_run("spec.yaml", "-q", "--results", results, cwd=here)
            codes[done.returncode] += 1
            if done.returncode:
                unclear += not clear(done.stderr, here)
        again = nip_run("spec.yaml", "-q", "--results", results, cwd=here)
        run = only_run(results)
        differing += again.returncode != 0 or derived_files(run) != wanted
        samples = calls_of(run)
        lost += len(set(samples)) != needed or len(samples) != needed
        # What was in the journal is not asked again; at most what was in flight is.
        paid += server.requests - before > needed + 8
        shutil.rmtree(results)
    claims(set(codes) <= {0, 1} and codes[1] > 0, f"{TIMES} runs on a disk that fills up; exit codes {dict(codes)}")
    claims(unclear == 0, f"messages that do not say what is wrong: {unclear}")
    claims(lost == 0, f"journals with a record lost or doubled after the resume: {lost}")
    claims(paid == 0, f"runs that paid for more than what was in flight twice: {paid}")
    claims(differing == 0, f"runs that differ from the undisturbed one after the resume: {differing}")


def derived_full(claims: Claims, here: Path, server: Loopback, whole: Path) -> None:
    """Everything is paid for; tables, metrics, fine-tune files, manifest and board are made with too little room."""
    disk, wanted = here / "disk", derived_files(whole)
    results = disk / "results"
    assert nip_run("spec.yaml", "-q", "--results", results, cwd=here).returncode == 0
    run = only_run(results)
    asked = server.requests
    codes: Counter[int] = Counter()
    where: Counter[str] = Counter()
    unclear = differing = unlisted = unreadable = 0
    enough = False
    room = 0
    while not enough and room < 12 << 20:
        for name in ("rollouts", "messages", "completions"):
            (run / f"{name}.parquet").unlink(missing_ok=True)
        for name in ("metrics.json", "fine_tune"):
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
        (results / "leaderboard.duckdb").unlink(missing_ok=True)
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        with only_left(disk, room):
            done = nip_run("spec.yaml", "-q", "--results", results, cwd=here)
            codes[done.returncode] += 1
            if done.returncode:
                unclear += not clear(done.stderr, here)
                where[told(done.stderr)] += 1
            with suppress(Exception):
                unreadable += (
                    bool((results / "leaderboard.duckdb").exists()) and not Results(results).board.query("SELECT 1")[1]
                )
        again = nip_run("spec.yaml", "-q", "--results", results, cwd=here)
        same = again.returncode == 0 and derived_files(run) == wanted
        if not same:
            found = derived_files(run)
            names = [name for name in wanted | found if wanted.get(name) != found.get(name)]
            print(f"      after {room >> 10} KiB: exit {again.returncode}, {names} {again.stderr.strip()[:300]}")
        differing += not same
        rows = (
            Results(results).board.query("SELECT run_id, status FROM runs")[1]
            if (results / "leaderboard.duckdb").exists()
            else []
        )
        if rows != [(run.name, "done")]:
            unlisted += 1
        enough = done.returncode == 0
        room += 8 << 10 if room < 64 << 10 else 32 << 10
    claims(set(codes) <= {0, 1} and enough, f"made again with no room to {room >> 10} KiB: exit codes {dict(codes)}")
    print("      " + ", ".join(f"{count} x {name}" for name, count in where.most_common()))
    claims(unclear == 0, f"messages that do not say what is wrong: {unclear}")
    claims(differing == 0, f"files that differ once there is room: {differing}")
    claims(unlisted == 0, f"runs that the same command does not put on the board once there is room: {unlisted}")
    claims(unreadable == 0, f"boards that cannot be read: {unreadable}")
    claims(server.requests == asked, "and nothing was asked again")


def board_full(claims: Claims, here: Path) -> None:
    """The run is whole; the board has an older run, and no room for this one."""
    disk = here / "disk"
    results = disk / "results"
    board, kept = results / "leaderboard.duckdb", here / "kept.duckdb"
    assert nip_run("spec.yaml", "-q", "--results", results, "seed=8", cwd=here).returncode == 0
    assert nip_run("leaderboard", "--rebuild", "--results", results, cwd=here).returncode == 0
    both = sorted(Results(results).board.query("SELECT run_id, status FROM runs")[1])
    new = next(run_id for run_id, _ in both if run_id != only_first(results))
    aside = here / "aside"
    shutil.move(results / "runs" / new, aside)
    assert nip_run("leaderboard", "--rebuild", "--results", results, cwd=here).returncode == 0
    shutil.move(aside, results / "runs" / new)
    shutil.copyfile(board, kept)
    old = Results(results).board.query("SELECT run_id, status FROM runs")[1]
    codes: Counter[int] = Counter()
    wrong = unclear = unlisted = 0
    words = ("spec.yaml", "-q", "--results", results, "seed=8")
    for room in range(0, 8 << 20, 256 << 10):
        shutil.copyfile(kept, board)
        with only_left(disk, room):
            done = nip_run(*words, cwd=here)
            codes[done.returncode] += 1
            unclear += done.returncode != 0 and not clear(done.stderr, here)
            rows = sorted(Results(results).board.query("SELECT run_id, status FROM runs")[1])
            whole = rows == (old if done.returncode else both) and not (results / "leaderboard.duckdb.new").exists()
            if not whole:
                there = sorted(path.name for path in results.iterdir())
                print(f"      at {room >> 10} KiB: exit {done.returncode}, {rows}, {there}")
            wrong += not whole
        again = nip_run(*words, cwd=here)
        unlisted += (
            again.returncode != 0 or sorted(Results(results).board.query("SELECT run_id, status FROM runs")[1]) != both
        )
        if done.returncode == 0:
            break
    claims(set(codes) == {0, 1}, f"a board with too little room for another run: exit codes {dict(codes)}")
    claims(unclear == 0, f"messages that do not say what is wrong: {unclear}")
    claims(wrong == 0, f"boards that are neither the old one nor the new, or left a copy: {wrong}")
    claims(unlisted == 0, f"runs that the same command does not put on the board once there is room: {unlisted}")


def only_first(results: Path) -> str:
    """The run that the first part left."""
    return min((path for path in (results / "runs").iterdir()), key=lambda path: path.stat().st_ctime).name


def clear(text: str, here: Path) -> bool:
    """The error names a file or folder and what is wrong with it, and is no traceback."""
    known = ("No space left", "not enough space", "disk is full", "database or disk is full")
    found = re.search("Resume with|Append its rows later with", text)
    good = (
        found is not None and any(words in text for words in known) and str(here) in text[: found.start()]
        and "Traceback" not in text and "bug in nip-run" not in text
    )  # fmt: skip
    if not good:
        print("      " + text.strip().replace("\n", "\n      ")[:600])
    return good


def told(text: str) -> str:
    """What could not be written."""
    found = re.search(r"cannot (?:write|create|open) (?:the tables in )?(\S+?):? ", text)
    return Path(found[1]).name if found else text[:60]
