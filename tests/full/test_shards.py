"""A run in eight shards, three of them killed and resumed, one played in another folder, is the run of one process.

N kills, each with SIGKILL, are shared out among three of the shards; then as many of merges, at random times, and N
times one of a merge's writes, flushes and renames kills it, or finds the disk full. Then two shards are ended at the
same moment, N times; and every way of wrong parts that the tests know is refused. Needs gcc.
"""

from __future__ import annotations

import errno
import json
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from runner.base.storage.duckdb_connections import connect
from runner.results.leaderboard.results_folder import Results
from tests.runs.test_merge_refused import OF, WRONG, Parts
from tests.support.claims import Claims
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run, started_silent
from tests.support.runs import journal_records, only_run, played, status_of
from tests.support.servers.chat_client import serving
from tests.support.servers.client import Loopback
from tests.support.shards import all_shards
from tests.support.specs import spec_file
from tests.support.syscall_faults import fault_library

SHARDS, KILLED, ELSEWHERE = 8, (2, 4, 6), 8
TIMES, SEED = 9, 1
DATAPOINTS, REPEATS, CONCURRENCY = 160, 2, 32
CLOCKS = {"started_at", "finished_at"}
LATENCY = "latency_ms"


def test_a_run_in_shards_is_the_run_of_one_process(tmp_path: Path, claims: Claims) -> None:
    here, rng = tmp_path, random.Random(SEED)
    with serving(latency=[0.0, 0.06]) as server:
        spec = _spec(here, server.base_url)
        whole = played(spec, here / "whole")
        needed = server.requests
        print(f"{DATAPOINTS} datapoints, {REPEATS} repeats, {needed} calls; {SHARDS} shards, seed {SEED}")
        in_flight = _play(here, server, TIMES, rng)
        asked = server.requests - needed
        run = only_run(here / "results")
        claims(len(in_flight) == TIMES, f"kills of shards {', '.join(map(str, KILLED))}: {len(in_flight)}")
        claims(server.stats()["max_open"] <= CONCURRENCY, f"calls at once at the server: {server.stats()['max_open']}")
        copy = _copied(here)
        refused = nip_run("merge", run.name, cwd=here)
        claims(
            refused.returncode == 1 and f"missing: {ELSEWHERE}/{SHARDS}" in refused.stderr, "refused without the 8th"
        )
        kills = _killed_merges(here, run, copy, TIMES, rng)
        claims(server.requests - needed == asked, f"and {kills} kills of merges, which asked for nothing")
        _same(claims, whole.folder.path, run, sum(in_flight))
        claims(asked == needed + sum(in_flight), f"asked again: {asked - needed}, in flight at kills: {sum(in_flight)}")
        again = nip_run("merge", run.name, cwd=here)
        claims("was merged already; nothing was changed" in again.stderr and again.returncode == 0, "merged once")
        rows = Results(here / "results").board.query("SELECT run_id, status, rollouts FROM runs")[1]
        claims(rows == [(run.name, "done", DATAPOINTS * REPEATS)], "the leaderboard has the run, once")


def _spec(here: Path, base_url: str) -> Path:
    limits = {"max_completion_tokens": 60, "price": {"input": 1.0, "output": 2.0}}
    return spec_file(
        here, base_url, size=DATAPOINTS, models={"m": limits}, budget={"usd": 50.0},
        rollouts={"concurrency": CONCURRENCY, "per_datapoint": REPEATS},
    )  # fmt: skip


def _play(here: Path, server: Loopback, kills: int, rng: random.Random) -> list[int]:
    """Play all shards, some killed on the way and resumed; how many calls each kill found in flight."""
    there = here / "there"
    there.mkdir()
    for name in ("spec.yaml", "data.jsonl"):
        shutil.copy(here / name, there / name)
    others = [number for number in range(1, SHARDS) if number not in KILLED]
    together = [(number, started_silent(*_words(number), cwd=here)) for number in others]
    together.append((ELSEWHERE, started_silent(*_words(ELSEWHERE), cwd=there)))
    for number, process in together:
        assert process.wait(600) == 0, f"shard {number} failed"
    in_flight = []
    for kill in range(kills):
        number = KILLED[kill % len(KILLED)]
        found = _killed(here, server, number, rng)
        if found is not None:
            in_flight.append(found)
    for number in KILLED:
        assert started_silent(*_words(number), cwd=here).wait(600) == 0, f"shard {number} was not resumed"
    return in_flight


def _words(number: int) -> list[str]:
    return ["spec.yaml", "--shard", f"{number}/{SHARDS}", "-q"]


def _killed(here: Path, server: Loopback, number: int, rng: random.Random) -> int | None:
    """Kill a shard a few calls after it has begun to ask; how many were in flight. None: it ended before."""
    before, goal = server.requests, rng.randint(1, 12)
    had = _calls(here, number)
    process = started_silent(*_words(number), cwd=here)
    while process.poll() is None and server.requests < before + goal:
        time.sleep(0.002)
    process.kill()
    if process.wait() == 0:
        return None
    time.sleep(0.1)
    return server.requests - before - (_calls(here, number) - had)


def _calls(here: Path, number: int) -> int:
    (part,) = [*(here / "results/runs").glob(f"*/shards/{number}-of-{SHARDS}"), None][:1]
    if part is None or not (part / "journal.jsonl").is_file():
        return 0
    return sum(record["kind"] == "call" for record in journal_records(part))


def _copied(here: Path) -> Path:
    """The part that was played elsewhere, copied to a folder of another name; its own is gone."""
    part = only_run(here / "there" / "results") / "shards" / f"{ELSEWHERE}-of-{SHARDS}"
    copy = here / "copied" / "from-there"
    shutil.copytree(part, copy)
    shutil.rmtree(here / "there")
    return copy


def _killed_merges(here: Path, run: Path, copy: Path, kills: int, rng: random.Random) -> int:
    """Kill merges at random times, then let one end; how many were killed before there was a run."""
    done = 0
    for _ in range(kills):
        process = started_silent("merge", run.name, copy, cwd=here)
        try:
            process.wait(rng.uniform(0.5, 4.0))
        except subprocess.TimeoutExpired:
            process.kill()
        done += process.wait() != 0
        if (run / "manifest.json").exists():
            break
    merged = nip_run("merge", run.name, copy, cwd=here, timeout=300)
    assert merged.returncode == 0, merged.stderr
    return done


def _same(claims: Claims, whole: Path, run: Path, in_flight: int) -> None:
    """Every file of both, with what differs named and bounded."""
    ours, theirs = _files(run), _files(whole)
    claims(ours.keys() == theirs.keys(), f"files: {len(ours)}, the same names")
    differ = sorted(name for name in ours if ours[name] != theirs.get(name))
    claims(
        set(differ) <= {"SHA256SUMS", "completions.parquet", "journal.jsonl", "manifest.json"},
        f"equal to the byte: {len(ours) - len(differ)}; others: {', '.join(differ)}",
    )
    (a, b), lost = (_table(path / "completions.parquet") for path in (run, whole)), _lost(run)
    claims(a == b, f"completions.parquet: {len(a)} rows, equal without {LATENCY}")
    ours_records, whole_records = (_records(path) for path in (run, whole))
    claims(
        ours_records == whole_records,
        f"journal.jsonl: {sum(ours_records.values())} records, equal without seq, checksum, ms, journal and `lost`",
    )
    most = sum(record["charged"][2] for record in lost)
    # A call is written down before it is sent: a kill in between is counted, and never came to the server.
    unsent = len(lost) * CONCURRENCY // SHARDS - in_flight
    claims(
        0 <= most - in_flight <= unsent,
        f"`lost` records: {len(lost)}, of {most} calls; in flight at the server at the kills: {in_flight}",
    )
    mine, one = (json.loads((path / "manifest.json").read_text()) for path in (run, whole))
    other = {name for name in mine.keys() | one.keys() if mine.get(name) != one.get(name)} - CLOCKS - {"journal"}
    claims(
        other <= {"answers_from", "cost_usd_at_most"},
        f"manifest.json: besides {', '.join(sorted(CLOCKS))} and journal differ {sorted(other)}",
    )
    claims(
        one["answers_from"] == {}
        and len(mine["answers_from"]) == SHARDS
        and sum(mine["answers_from"].values()) == mine["rollouts"],
        "answers_from: every verdict is of one of the shards' journals",
    )
    more = mine["cost_usd_at_most"] - one["cost_usd_at_most"]
    counted = sum(record["charged"][0] for record in lost)
    claims(abs(more - counted) < 1e-9, f"cost_usd_at_most: more by ${more:.6f}, the lost calls' worst case")


def _files(run: Path) -> dict[str, bytes]:
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name not in (".lock", "run.log") and run / "shards" not in path.parents
    }


def _table(path: Path) -> list[tuple[Any, ...]]:
    with connect() as connection:
        return connection.execute(f"SELECT * EXCLUDE ({LATENCY}) FROM read_parquet('{path}')").fetchall()


def _records(run: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for record in journal_records(run):
        if record["kind"] == "lost":
            continue
        kept = {name: value for name, value in record.items() if name not in ("seq", "ms", "from", "journal")}
        found[json.dumps(kept, sort_keys=True)] += 1
    return found


def _lost(run: Path) -> list[dict[str, Any]]:
    return [record for record in journal_records(run) if record["kind"] == "lost"]


def test_a_merge_survives_faults_of_system_calls(tmp_path: Path, claims: Claims) -> None:
    """A merge goes wrong at one of its calls: there is no run, or the whole one, and the next merge makes it."""
    here, rng = tmp_path, random.Random(SEED)
    library, spec = fault_library(here), spec_file(here, size=6)
    for shard in all_shards(OF):
        played(spec, here / "results", shard=str(shard))
    run, whole = only_run(here / "results"), _files(played(spec, here / "whole").folder.path)
    log = here / "calls.log"
    shutil.copytree(here / "results", here / "counted")
    preload = {"LD_PRELOAD": str(library), "NIP_FAULT_FOLDER": str(here / "counted"), "NIP_FAULT_LOG": str(log)}
    assert (
        nip_run("merge", run.name, "--results", here / "counted", cwd=here, timeout=HANG_SECONDS, **preload).returncode
        == 0
    )
    calls = log.read_text().splitlines()
    found, wrong = Counter[str](), []
    for number in sorted(rng.sample(range(len(calls)), min(TIMES, len(calls)))):
        there = here / f"fault{number}"
        shutil.copytree(here / "results", there)
        how = ("kill", str(errno.ENOSPC))[number % 2]
        fault = {"NIP_FAULT_FOLDER": str(there), "NIP_FAULT_AT": str(number), "NIP_FAULT_HOW": how}
        nip_run("merge", run.name, "--results", there, cwd=here, timeout=HANG_SECONDS, LD_PRELOAD=str(library), **fault)
        place = there / "runs" / run.name
        is_there = (place / "manifest.json").is_file()
        found["the run" if is_there else "none"] += 1
        half = is_there and not _is_whole(place, whole)
        again = nip_run("merge", run.name, "--results", there, cwd=here)
        rows = Results(there).board.query("SELECT status, rollouts FROM runs")[1] if again.returncode == 0 else []
        if half or rows != [("done", 6)] or not _is_whole(place, whole) or (place / ".merging").exists():
            wrong.append(f"{calls[number]}, {how}: {again.stderr[-300:]}")
        shutil.rmtree(there)
    claims(not wrong, f"{sum(found.values())} of {len(calls)} calls of a merge gone wrong: {dict(found)} {wrong[:2]}")


def _is_whole(run: Path, whole: dict[str, bytes]) -> bool:
    ours = _files(run)
    left_out = ("journal.jsonl", "manifest.json")
    same = all(ours.get(name) == data for name, data in whole.items() if name not in left_out)
    return same and ours.keys() == whole.keys() and status_of(run) == "done"


def test_one_of_two_shards_that_end_together_merges(tmp_path: Path, claims: Claims) -> None:
    """Two shards that end at the same moment: one of them merges."""
    merged, left = 0, 0
    for number in range(TIMES):
        here = tmp_path / str(number)
        here.mkdir()
        spec_file(here, size=4)
        both = [started_silent("spec.yaml", "--shard", f"{number}/2", "-q", cwd=here) for number in (1, 2)]
        assert [process.wait(300) for process in both] == [0, 0]
        run = only_run(here / "results")
        done = (run / "manifest.json").is_file() and status_of(run) == "done"
        rows = Results(here / "results").board.query("SELECT run_id FROM runs")[1] if done else []
        merged += rows == [(run.name,)]
        left += (run / ".merging").exists()
    claims(merged == TIMES and not left, f"two shards ended together: {merged} of {TIMES} merged, once each")


def test_every_way_of_wrong_parts_is_refused_by_name(tmp_path: Path, claims: Claims) -> None:
    here = tmp_path
    spec = spec_file(here, size=6, fine_tune=None)
    for shard in all_shards(OF):
        played(spec, here / "results", shard=str(shard))
    run = only_run(here / "results")
    named = []
    for number, (name, (spoil, why)) in enumerate(WRONG.items()):
        copy = here / f"way{number}" / "results" / "runs" / run.name
        shutil.copytree(run, copy)
        parts = Parts(spec, copy, copy.parents[2] / "elsewhere")
        spoil(parts)
        if re.search(why, parts.problems()):
            named.append(name)
    claims(len(named) == len(WRONG) >= 20, f"ways of wrong parts refused by name: {len(named)} of {len(WRONG)}")
