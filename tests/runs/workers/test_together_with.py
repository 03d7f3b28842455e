"""Worker processes together with shards, and with several servers of a group."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runner.results.leaderboard.results_folder import Results
from runner.runs.shards.merge import merge
from tests.support.processes import nip_run_here
from tests.support.runs import derived_files, only_run, run_spec, table
from tests.support.servers.fleet import run_fleet
from tests.support.specs import spec_file
from tests.support.worker_processes import read_sorted_answers

TWO_PROCESSES = "execution.processes=2"


def write_spec(folder: Path, base_urls: list[str], size: int, concurrency: int = 12, **model: object) -> Path:
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls, **model}
    return spec_file(folder, None, size=size, models={"m": group}, rollouts={"concurrency": concurrency})


@pytest.mark.full
def test_games_stay_on_their_servers_whichever_worker_plays_them(tmp_path: Path) -> None:
    with run_fleet(2) as servers, run_fleet(1) as alone:
        single_process_run = run_spec(write_spec(tmp_path / "one", alone.base_urls, 16), tmp_path / "one")
        result = run_spec(write_spec(tmp_path / "two", servers.base_urls, 16), tmp_path / "two", TWO_PROCESSES)
        assert servers.affine_share() == 1.0
        assert min(servers.requests()) > 0
    assert derived_files(result.path) == derived_files(single_process_run.path)
    assert read_sorted_answers(result.path) == read_sorted_answers(single_process_run.path)


@pytest.mark.full
def test_all_workers_share_the_rate_limit_of_each_server(tmp_path: Path) -> None:
    with run_fleet(2) as servers:
        spec = write_spec(tmp_path, servers.base_urls, 60, requests_per_minute=600)
        started = time.monotonic()
        run_spec(spec, tmp_path / "results", TWO_PROCESSES)
        elapsed = time.monotonic() - started
        max_requests = max(servers.requests())
    # A burst of 55, then 10 a second. Separate token buckets for each worker would allow twice the burst.
    needed = (max_requests - 55) / 10
    assert needed > 1
    assert elapsed >= needed


@pytest.mark.full
def test_headers_from_environment_variables_reach_the_servers_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENANT", "tenant-4711-of-many")
    with run_fleet(2, record=4) as servers:
        result = run_spec(
            write_spec(tmp_path, servers.base_urls, 4, headers={"X-Tenant": "$TENANT"}), tmp_path, TWO_PROCESSES
        )
        tenants = [call["headers"].get("x-tenant") for call in servers.recorded_requests()]
    assert tenants
    assert set(tenants) == {"tenant-4711-of-many"}
    assert not any(b"tenant-4711" in path.read_bytes() for path in result.path.rglob("*") if path.is_file())


@pytest.mark.full
def test_a_server_that_is_down_costs_no_game(tmp_path: Path) -> None:
    retry = {"transient": {"first_wait": 0.02, "max_wait": 0.2, "attempts": None}, "breaker": {"failures": 4}}
    with run_fleet(3) as servers:
        group = {"provider": "openai", "model": "tiny", "base_url": servers.base_urls}
        spec = spec_file(tmp_path, None, size=30, models={"m": group}, retry=retry, rollouts={"concurrency": 12})
        single_process_run = run_spec(spec, tmp_path / "one")
        servers.stop(1)
        result = run_spec(spec, tmp_path / "two", TWO_PROCESSES)
        log = (result.path / "run.log").read_text()
    assert result.status == "done"
    assert result.manifest.transport_failed == 0
    assert log.count(f"cannot reach {servers.base_urls[1]}") == 1
    assert "its games continue at the other servers" in log
    assert table(result.path, "messages") == table(single_process_run.path, "messages")


@pytest.mark.full
def test_shards_played_by_workers_merge_into_the_single_process_run(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=8, rollouts={"concurrency": 8, "per_datapoint": 2})
    single_process_run = run_spec(spec, tmp_path / "whole")
    for number in (1, 2):
        run_spec(spec, tmp_path / "parts", TWO_PROCESSES, shard=f"{number}/2")
    merged = merge(only_run(tmp_path / "parts").name, Results(tmp_path / "parts"))
    assert derived_files(merged.folder.path) == derived_files(single_process_run.path)
    assert read_sorted_answers(merged.folder.path) == read_sorted_answers(single_process_run.path)


def test_check_names_the_number_of_workers_and_the_cores_of_the_machine(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2)
    output = nip_run_here("check", str(spec), "execution.processes=1000", cwd=tmp_path).stdout
    assert "Played by 1000 worker processes of this machine, which has " in output
    ray_options = ("execution.engine=ray", "execution.workers=8", "execution.address=head:6379")
    assert (
        "Played by 8 workers of the Ray cluster at head:6379."
        in nip_run_here("check", str(spec), *ray_options, cwd=tmp_path).stdout
    )
    assert "Played by" not in nip_run_here("check", str(spec), cwd=tmp_path).stdout
