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

TWO = "execution.processes=2"


def at_servers(folder: Path, base_urls: list[str], size: int, concurrency: int = 12, **model: object) -> Path:
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls, **model}
    return spec_file(folder, None, size=size, models={"m": group}, rollouts={"concurrency": concurrency})


@pytest.mark.full
def test_games_stick_to_their_servers_whichever_worker_plays_them(tmp_path: Path) -> None:
    with run_fleet(2) as servers, run_fleet(1) as alone:
        whole = run_spec(at_servers(tmp_path / "one", alone.base_urls, 16), tmp_path / "one")
        result = run_spec(at_servers(tmp_path / "two", servers.base_urls, 16), tmp_path / "two", TWO)
        assert servers.affine_share() == 1.0
        assert min(servers.requests()) > 0
    assert derived_files(result.path) == derived_files(whole.path)
    assert read_sorted_answers(result.path) == read_sorted_answers(whole.path)


@pytest.mark.full
def test_each_server_has_a_rate_of_its_own_which_all_workers_share(tmp_path: Path) -> None:
    with run_fleet(2) as servers:
        spec = at_servers(tmp_path, servers.base_urls, 60, requests_per_minute=600)
        begun = time.monotonic()
        run_spec(spec, tmp_path / "results", TWO)
        took = time.monotonic() - begun
        most = max(servers.requests())
    # A burst of 55, and then 10 a second: a bucket of each worker would let twice as many through at once.
    needed = (most - 55) / 10
    assert needed > 1
    assert took >= needed


@pytest.mark.full
def test_headers_of_the_environment_reach_the_servers_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENANT", "tenant-4711-of-many")
    with run_fleet(2, record=4) as servers:
        result = run_spec(at_servers(tmp_path, servers.base_urls, 4, headers={"X-Tenant": "$TENANT"}), tmp_path, TWO)
        seen = [call["headers"].get("x-tenant") for call in servers.recorded_requests()]
    assert seen
    assert set(seen) == {"tenant-4711-of-many"}
    assert not any(b"tenant-4711" in path.read_bytes() for path in result.path.rglob("*") if path.is_file())


@pytest.mark.full
def test_one_away_and_back_costs_no_game(tmp_path: Path) -> None:
    retry = {"transient": {"first_wait": 0.02, "max_wait": 0.2, "attempts": None}, "breaker": {"failures": 4}}
    with run_fleet(3) as servers:
        group = {"provider": "openai", "model": "tiny", "base_url": servers.base_urls}
        spec = spec_file(tmp_path, None, size=30, models={"m": group}, retry=retry, rollouts={"concurrency": 12})
        whole = run_spec(spec, tmp_path / "one")
        servers.stop(1)
        result = run_spec(spec, tmp_path / "two", TWO)
        log = (result.path / "run.log").read_text()
    assert result.status == "done"
    assert result.manifest.transport_failed == 0
    assert log.count(f"cannot reach {servers.base_urls[1]}") == 1
    assert "its games continue at the other servers" in log
    assert table(result.path, "messages") == table(whole.path, "messages")


@pytest.mark.full
def test_shards_by_workers_are_merged_into_the_run_of_one_process(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=8, rollouts={"concurrency": 8, "per_datapoint": 2})
    whole = run_spec(spec, tmp_path / "whole")
    for number in (1, 2):
        run_spec(spec, tmp_path / "parts", TWO, shard=f"{number}/2")
    merged = merge(only_run(tmp_path / "parts").name, Results(tmp_path / "parts"))
    assert derived_files(merged.folder.path) == derived_files(whole.path)
    assert read_sorted_answers(merged.folder.path) == read_sorted_answers(whole.path)


def test_check_says_who_plays_and_more_workers_than_cores_are_told(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2)
    said = nip_run_here("check", str(spec), "execution.processes=1000", cwd=tmp_path).stdout
    assert "Played by 1000 worker processes of this machine, which has " in said
    ray = ("execution.engine=ray", "execution.workers=8", "execution.address=head:6379")
    assert (
        "Played by 8 workers of the Ray cluster at head:6379."
        in nip_run_here("check", str(spec), *ray, cwd=tmp_path).stdout
    )
    assert "Played by" not in nip_run_here("check", str(spec), cwd=tmp_path).stdout
