"""A model group with three real servers, where one stops and returns: the run equals that on one server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import nip_run, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.fleet import run_fleet
from tests.support.specs import spec_file

RETRY = {"transient": {"first_wait": 0.02, "max_wait": 0.2, "attempts": None}, "breaker": {"failures": 4}}


def write_spec(folder: Path, base_urls: list[str], size: int, **model: object) -> Path:
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls, **model}
    rollouts = {"concurrency": 24}
    return spec_file(folder, None, size=size, models={"m": group}, retry=RETRY, rollouts=rollouts, fine_tune=None)


def test_games_stay_on_their_servers(tmp_path: Path) -> None:
    with run_fleet(3) as servers:
        result = run_spec(write_spec(tmp_path, servers.base_urls, 18), tmp_path / "results")
        assert result.status == "done"
        assert servers.affine_share() == 1.0
        assert min(servers.requests()) > 0


@pytest.mark.gate
def test_a_run_on_three_servers_equals_the_run_on_one_server(tmp_path: Path) -> None:
    with run_fleet(3, latency=(0.001, 0.004)) as servers, run_fleet(1) as alone:
        three_server_run = run_spec(
            write_spec(tmp_path / "three", servers.base_urls, 48), tmp_path / "three" / "results"
        )
        single_server_run = run_spec(
            write_spec(tmp_path / "one", alone.base_urls, 48, session_id=True), tmp_path / "one" / "results"
        )
        assert servers.warm_blocks() >= 0.95 * alone.warm_blocks()
        sessions = set().union(*servers.sessions())
        assert sessions == set().union(*alone.sessions()), "a session is the same on every server"
    assert three_server_run.run_id == single_server_run.run_id
    for name in ("rollouts", "messages"):
        assert table(three_server_run.path, name) == table(single_server_run.path, name)


@pytest.mark.gate
def test_a_server_that_stops_and_returns_costs_no_game(tmp_path: Path) -> None:
    with run_fleet(3, latency=0.2) as servers:
        write_spec(tmp_path, servers.base_urls, 120)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: sum(servers.requests()) > 80)
        servers.stop(1)
        wait_until(lambda: sum(servers.requests()) > 160)
        requests_before = servers.requests()[1]
        servers.change(latency=1.0)  # so that games are left when the third server has started, on a busy machine too
        servers.start(1)
        wait_until(lambda: servers.requests()[1] > requests_before + 10)  # it gets its games again, and new ones
        servers.change(latency=0.0)
        code, _, error = wait_for_exit(process)
        assert code == 0, error
    run = only_run(tmp_path / "results")
    assert json.loads((run / "metrics.json").read_text())["outcomes"]["transport_failed"] == 0
    assert f"cannot reach {servers.base_urls[1]}" in (run / "run.log").read_text()
    assert f"{servers.base_urls[1]} answers again" in (run / "run.log").read_text()
    errors = [row["error"] for row in table(run, "completions") if row["error"] is not None]
    assert errors
    assert all(servers.base_urls[1] in error for error in errors), "each error names the server"


@pytest.mark.full
def test_a_run_ends_if_all_servers_are_down_and_resumes_on_other_servers(tmp_path: Path) -> None:
    with run_fleet(3) as stopped_servers:
        pass
    write_spec(tmp_path, stopped_servers.base_urls, 12)
    first = nip_run("spec.yaml", cwd=tmp_path)
    assert first.returncode == 1
    assert all(url in first.stderr for url in stopped_servers.base_urls)
    with run_fleet(2) as servers:
        write_spec(tmp_path, servers.base_urls, 12)
        second = nip_run("spec.yaml", cwd=tmp_path)
        assert second.returncode == 0, second.stderr
        assert min(servers.requests()) > 0
