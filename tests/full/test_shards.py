"""A run in eight shards, with kills and resumes, compared with the same run in one process.

Other tests kill merges, let their system calls fail, let two shards end at the same time, and merge invalid parts. They
need gcc.
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
from tests.runs.test_merge_refused import INVALID_SHARDS, SHARD_COUNT, ShardFolders
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run, start_nip_run_silently
from tests.support.runs import journal_records, only_run, read_status, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.shards import all_shards
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file
from tests.support.syscall_faults import fault_library

SHARDS = 8
KILLED_SHARDS = (2, 4, 6)
REMOTE_SHARD = 8
"""The shard that runs in another folder, as on another machine."""
KILLS, SEED = 9, 1
DATAPOINTS, REPEATS, CONCURRENCY = 160, 2, 32
TIMES = {"started_at", "finished_at"}
LATENCY = "latency_ms"


def test_sharded_run_equals_the_run_of_one_process(tmp_path: Path, check: SoftAssertions) -> None:
    rng = random.Random(SEED)
    with run_chat_server(latency=[0.0, 0.06]) as server:
        spec = write_spec(tmp_path, server.base_url)
        single = run_spec(spec, tmp_path / "single").folder.path
        single_calls = server.requests
        in_flight = run_shards(tmp_path, server, rng)
        shard_calls = server.requests - single_calls
        run = only_run(tmp_path / "results")
        check(len(in_flight) == KILLS, f"each of {KILLS} kills interrupts a shard: {len(in_flight)}")
        max_open = server.stats()["max_open"]
        check(max_open <= CONCURRENCY, f"at most {CONCURRENCY} calls are open at the same time: {max_open}")

        remote_shard = move_remote_shard(tmp_path)
        refused = nip_run("merge", run.name, cwd=tmp_path)
        check(
            refused.returncode == 1 and f"missing: {REMOTE_SHARD}/{SHARDS}" in refused.stderr,
            f"a merge without the remote shard is refused: {refused.stderr.strip()}",
        )
        kills = kill_merges(tmp_path, run, remote_shard, rng)
        check(server.requests - single_calls == shard_calls, f"merges call no model, including {kills} killed ones")
        check_equal_runs(check, single, run, sum(in_flight))
        check(
            shard_calls == single_calls + sum(in_flight),
            f"only the {sum(in_flight)} calls in flight at the kills are repeated: {shard_calls - single_calls}",
        )
        second_merge = nip_run("merge", run.name, cwd=tmp_path)
        check(
            second_merge.returncode == 0 and "was merged already; nothing was changed" in second_merge.stderr,
            f"a second merge changes nothing: {second_merge.stderr.strip()}",
        )
        rows = Results(tmp_path / "results").board.query("SELECT run_id, status, rollouts FROM runs")[1]
        check(rows == [(run.name, "done", DATAPOINTS * REPEATS)], f"the leaderboard has the run once: {rows}")


def write_spec(folder: Path, base_url: str) -> Path:
    model = {"max_completion_tokens": 60, "price": {"input": 1.0, "output": 2.0}}
    return spec_file(
        folder, base_url, size=DATAPOINTS, models={"m": model}, budget={"usd": 50.0},
        rollouts={"concurrency": CONCURRENCY, "per_datapoint": REPEATS},
    )  # fmt: skip


def run_shards(folder: Path, server: LoopbackServer, rng: random.Random) -> list[int]:
    """Run all shards; kill some and resume them. Return the number of calls in flight at each kill."""
    remote_folder = folder / "remote"
    remote_folder.mkdir()
    for name in ("spec.yaml", "data.jsonl"):
        shutil.copy(folder / name, remote_folder / name)
    undisturbed = [number for number in range(1, SHARDS) if number not in KILLED_SHARDS]
    processes = [(number, start_shard(number, folder)) for number in undisturbed]
    processes.append((REMOTE_SHARD, start_shard(REMOTE_SHARD, remote_folder)))
    for number, process in processes:
        assert process.wait(600) == 0, f"shard {number} failed"
    results = [kill_shard(KILLED_SHARDS[kill % len(KILLED_SHARDS)], folder, server, rng) for kill in range(KILLS)]
    for number in KILLED_SHARDS:
        assert start_shard(number, folder).wait(600) == 0, f"shard {number} was not resumed"
    return [in_flight for in_flight in results if in_flight is not None]


def start_shard(number: int, folder: Path) -> subprocess.Popen[bytes]:
    return start_nip_run_silently("spec.yaml", "--shard", f"{number}/{SHARDS}", "-q", cwd=folder)


def kill_shard(number: int, folder: Path, server: LoopbackServer, rng: random.Random) -> int | None:
    """Kill a shard after a few calls; return the number of calls in flight, or None if the shard ended before."""
    requests_before, goal = server.requests, rng.randint(1, 12)
    recorded_before = count_recorded_calls(folder, number)
    process = start_shard(number, folder)
    while process.poll() is None and server.requests < requests_before + goal:
        time.sleep(0.002)
    process.kill()
    if process.wait() == 0:
        return None
    time.sleep(0.1)
    return server.requests - requests_before - (count_recorded_calls(folder, number) - recorded_before)


def count_recorded_calls(folder: Path, number: int) -> int:
    (part,) = [*(folder / "results/runs").glob(f"*/shards/{number}-of-{SHARDS}"), None][:1]
    if part is None or not (part / "journal.jsonl").is_file():
        return 0
    return sum(record["kind"] == "call" for record in journal_records(part))


def move_remote_shard(folder: Path) -> Path:
    """Copy the remote shard to a folder with another name, and delete the original."""
    shard = only_run(folder / "remote" / "results") / "shards" / f"{REMOTE_SHARD}-of-{SHARDS}"
    copy = folder / "copied" / "from-remote"
    shutil.copytree(shard, copy)
    shutil.rmtree(folder / "remote")
    return copy


def kill_merges(folder: Path, run: Path, remote_shard: Path, rng: random.Random) -> int:
    """Kill merges at random moments, then let one finish; return the number of merges that were killed."""
    kills = 0
    for _ in range(KILLS):
        process = start_nip_run_silently("merge", run.name, remote_shard, cwd=folder)
        try:
            process.wait(rng.uniform(0.5, 4.0))
        except subprocess.TimeoutExpired:
            process.kill()
        kills += process.wait() != 0
        if (run / "manifest.json").exists():
            break
    merged = nip_run("merge", run.name, remote_shard, cwd=folder, timeout=300)
    assert merged.returncode == 0, merged.stderr
    return kills


def check_equal_runs(check: SoftAssertions, single: Path, merged: Path, in_flight: int) -> None:
    """Compare every file of two runs. Only times, positions and the costs of lost calls may differ."""
    single_files, merged_files = read_files(single), read_files(merged)
    check(merged_files.keys() == single_files.keys(), f"both runs have the same {len(single_files)} files")
    different = {name for name, data in merged_files.items() if data != single_files.get(name)}
    check(
        different <= {"SHA256SUMS", "completions.parquet", "journal.jsonl", "manifest.json"},
        f"all other files are equal: {sorted(different)} differ",
    )
    single_rows, merged_rows = (read_completions(run / "completions.parquet") for run in (single, merged))
    check(single_rows == merged_rows, f"the {len(merged_rows)} completions are equal without {LATENCY}")
    single_records, merged_records = count_records(single), count_records(merged)
    check(single_records == merged_records, f"the {merged_records.total()} records of the journals are equal")
    lost = [record for record in journal_records(merged) if record["kind"] == "lost"]
    check_lost_calls(check, lost, in_flight)
    check_manifests(check, single, merged, lost)


def check_lost_calls(check: SoftAssertions, lost: list[dict[str, Any]], in_flight: int) -> None:
    """Check that the journal counts each call that a kill interrupted as lost.

    A call is recorded before it is sent. If a kill comes in between, the call is lost but never reaches the server.
    """
    calls = sum(record["charged"][2] for record in lost)
    max_unsent = len(lost) * CONCURRENCY // SHARDS - in_flight
    check(
        0 <= calls - in_flight <= max_unsent,
        f"{len(lost)} records count {calls} lost calls: {in_flight} were in flight, at most {max_unsent} unsent",
    )


def check_manifests(check: SoftAssertions, single: Path, merged: Path, lost: list[dict[str, Any]]) -> None:
    single_manifest, merged_manifest = (json.loads((run / "manifest.json").read_text()) for run in (single, merged))
    different = {
        name
        for name in single_manifest.keys() | merged_manifest.keys()
        if single_manifest.get(name) != merged_manifest.get(name)
    }
    check(
        different <= {"answers_from", "cost_usd_at_most", "journal"} | TIMES,
        f"the other fields of the manifests are equal: {sorted(different)} differ",
    )
    check(
        single_manifest["answers_from"] == {}
        and len(merged_manifest["answers_from"]) == SHARDS
        and sum(merged_manifest["answers_from"].values()) == merged_manifest["rollouts"],
        f"every rollout has its answers from the journal of one shard: {merged_manifest['answers_from']}",
    )
    extra_cost = merged_manifest["cost_usd_at_most"] - single_manifest["cost_usd_at_most"]
    lost_cost = sum(record["charged"][0] for record in lost)
    check(
        abs(extra_cost - lost_cost) < 1e-9, f"the extra cost is that of lost calls: ${extra_cost:.6f}, ${lost_cost:.6f}"
    )


def read_files(run: Path) -> dict[str, bytes]:
    """Return the content of the files of a run, without its lock, its log and its shards."""
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name not in (".lock", "run.log") and run / "shards" not in path.parents
    }


def read_completions(path: Path) -> list[tuple[Any, ...]]:
    with connect() as connection:
        return connection.execute(f"SELECT * EXCLUDE ({LATENCY}) FROM read_parquet('{path}')").fetchall()


def count_records(run: Path) -> Counter[str]:
    """Return the records of a journal, except lost calls, without positions and times."""
    records: Counter[str] = Counter()
    for record in journal_records(run):
        if record["kind"] != "lost":
            comparable = {name: value for name, value in record.items() if name not in ("seq", "ms", "from", "journal")}
            records[json.dumps(comparable, sort_keys=True)] += 1
    return records


def test_merge_survives_faults_of_system_calls(tmp_path: Path, check: SoftAssertions) -> None:
    """After a fault there is no merged run or a complete one, and the next merge completes it."""
    library, spec = fault_library(tmp_path), spec_file(tmp_path, size=6)
    for shard in all_shards(SHARD_COUNT):
        run_spec(spec, tmp_path / "results", shard=str(shard))
    run_id = only_run(tmp_path / "results").name
    expected = read_files(run_spec(spec, tmp_path / "single").folder.path)
    calls = record_merge_calls(tmp_path, run_id, library)
    results: Counter[str] = Counter()
    problems = []
    for number in sorted(random.Random(SEED).sample(range(len(calls)), min(KILLS, len(calls)))):
        copy = tmp_path / f"fault{number}"
        shutil.copytree(tmp_path / "results", copy)
        run = copy / "runs" / run_id
        fault = ("kill", str(errno.ENOSPC))[number % 2]
        variables = {"NIP_FAULT_FOLDER": str(copy), "NIP_FAULT_AT": str(number), "NIP_FAULT_HOW": fault}
        merge(tmp_path, run_id, copy, LD_PRELOAD=str(library), **variables)
        has_run = (run / "manifest.json").is_file()
        results["merged" if has_run else "not merged"] += 1
        is_partial = has_run and not is_complete(run, expected)
        second_merge = merge(tmp_path, run_id, copy)
        rows = Results(copy).board.query("SELECT status, rollouts FROM runs")[1] if second_merge.returncode == 0 else []
        is_left = (run / ".merging").exists()
        if is_partial or rows != [("done", 6)] or not is_complete(run, expected) or is_left:
            problems.append(f"{calls[number]}, {fault}: {second_merge.stderr[-300:]}")
        shutil.rmtree(copy)
    check(
        not problems,
        f"the run is complete after each of {results.total()} faults in {len(calls)} calls of a merge: {dict(results)} "
        f"{problems[:2]}",
    )


def merge(folder: Path, run_id: str, results: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return nip_run("merge", run_id, "--results", results, cwd=folder, timeout=HANG_SECONDS, **variables)


def record_merge_calls(folder: Path, run_id: str, library: Path) -> list[str]:
    """Merge a copy of the shards without a fault; return the system calls of the merge."""
    copy, log = folder / "counted", folder / "calls.log"
    shutil.copytree(folder / "results", copy)
    variables = {"LD_PRELOAD": str(library), "NIP_FAULT_FOLDER": str(copy), "NIP_FAULT_LOG": str(log)}
    done = merge(folder, run_id, copy, **variables)
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()


def is_complete(run: Path, expected: dict[str, bytes]) -> bool:
    """Return whether a merged run is done and has the expected files, apart from journal and manifest."""
    files = read_files(run)
    is_equal = all(
        files.get(name) == data for name, data in expected.items() if name not in ("journal.jsonl", "manifest.json")
    )
    return is_equal and files.keys() == expected.keys() and read_status(run) == "done"


def test_one_of_two_shards_that_end_together_merges_the_run(tmp_path: Path, check: SoftAssertions) -> None:
    merged = unfinished = 0
    for repeat in range(KILLS):
        folder = tmp_path / str(repeat)
        folder.mkdir()
        spec_file(folder, size=4)
        processes = [
            start_nip_run_silently("spec.yaml", "--shard", f"{number}/2", "-q", cwd=folder) for number in (1, 2)
        ]
        assert [process.wait(300) for process in processes] == [0, 0]
        run = only_run(folder / "results")
        is_done = (run / "manifest.json").is_file() and read_status(run) == "done"
        rows = Results(folder / "results").board.query("SELECT run_id FROM runs")[1] if is_done else []
        merged += rows == [(run.name,)]
        unfinished += (run / ".merging").exists()
    check(merged == KILLS, f"{KILLS} pairs of shards are merged, once each: {merged}")
    check(not unfinished, f"no merge leaves its temporary folder (except {unfinished})")


def test_invalid_shards_are_refused_with_the_reason(tmp_path: Path, check: SoftAssertions) -> None:
    spec = spec_file(tmp_path, size=6, fine_tune=None)
    for shard in all_shards(SHARD_COUNT):
        run_spec(spec, tmp_path / "results", shard=str(shard))
    run = only_run(tmp_path / "results")
    not_refused = []
    for number, (name, (damage, pattern)) in enumerate(INVALID_SHARDS.items()):
        copy = tmp_path / f"way{number}" / "results" / "runs" / run.name
        shutil.copytree(run, copy)
        parts = ShardFolders(spec, copy, copy.parents[2] / "elsewhere")
        damage(parts)
        if not re.search(pattern, parts.problems()):
            not_refused.append(name)
    check(
        not not_refused and len(INVALID_SHARDS) >= 20, f"{len(INVALID_SHARDS)} kinds are refused, except {not_refused}"
    )
