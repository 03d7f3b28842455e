"""A model group with three real servers, where one refuses calls that the others accept.

The run has the outcomes of a single server, and reports how many calls the server refused.
A call that all servers refuse counts as refused by a single server.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import only_run, table
from tests.support.servers.fleet import ServerFleet, run_fleet
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

RETRY = {"transient": {"first_wait": 0.05, "max_wait": 1.0, "attempts": 3}, "breaker": {"failures": 4}}
TWO_PROCESSES = "execution.processes=2"


def write_spec(folder: Path, base_urls: list[str], size: int = 36) -> Path:
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls}
    return spec_file(
        folder, None, size=size, models={"m": group}, retry=RETRY, rollouts={"concurrency": 12}, fine_tune=None
    )


def read_outcomes(folder: Path) -> dict[str, int]:
    run = only_run(folder / "results")
    counts: dict[str, int] = json.loads((run / "metrics.json").read_text())["outcomes"]
    return {name: count for name, count in counts.items() if count}


def find_server_notes(output: str, server: str) -> list[str]:
    """Return the last note about a server that refuses calls; earlier notes may have lower counts."""
    matches = re.findall(rf"({re.escape(server)} refused ([\d,]+) calls? of .*)", output)
    return [line for line, _ in matches][-1:]


def change_last_server(servers: ServerFleet, **options: Any) -> str:
    """Change options of the last server and return its address."""
    servers.change(2, **options)
    return servers.base_urls[2]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("context_length_exceeded"),
        *(
            pytest.param(kind, marks=pytest.mark.full)
            for kind in ("malformed_request", "content_policy", "unknown_model", "unauthorized", "insufficient_quota")
        ),
    ],
)
def test_calls_refused_by_one_server_go_to_the_others_and_the_server_is_named(tmp_path: Path, kind: str) -> None:
    with run_fleet(3) as servers:
        refusing_url = change_last_server(servers, kind=kind)
        write_spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        request_counts = servers.requests()
    assert done.returncode == 0, done.stderr
    assert read_outcomes(tmp_path) == {"decided": 36}
    (note,) = find_server_notes(done.stderr, refusing_url)
    errors = [row["error"] for row in table(only_run(tmp_path / "results"), "completions") if row["error"]]
    assert len(errors) == request_counts[2]
    assert f"refused {request_counts[2]} calls of models.m that the group's other servers accepted" in note
    assert f"remove {refusing_url} from models.m.base_url" in note
    assert all(refusing_url in error for error in errors)
    assert request_counts[2] < sum(request_counts) / 4, "the run stops using it"
    assert refusing_url in (only_run(tmp_path / "results") / "run.log").read_text()
    assert refusing_url in done.stderr


@pytest.mark.parametrize("kind", ["context_length_exceeded", "malformed_request", "unknown_model"])
def test_worker_processes_send_refused_calls_to_the_other_servers(tmp_path: Path, kind: str) -> None:
    with run_fleet(3) as servers:
        refusing_url = change_last_server(servers, kind=kind)
        write_spec(tmp_path, servers.base_urls)
        done = nip_run("spec.yaml", TWO_PROCESSES, cwd=tmp_path)
        request_counts = servers.requests()
    assert done.returncode == 0, done.stderr
    assert read_outcomes(tmp_path) == {"decided": 36}
    (note,) = find_server_notes(done.stderr, refusing_url)
    assert f"refused {request_counts[2]} calls of models.m that the group's other servers accepted" in note
    assert request_counts[2] < sum(request_counts) / 4


@pytest.mark.parametrize(
    ("after", "processes"),
    [(8, 0), (0, 0), (8, 2)],
)
def test_a_failing_server_loses_no_game_that_the_others_can_play(tmp_path: Path, after: int, processes: int) -> None:
    with run_fleet(3) as servers:
        failing_url = change_last_server(servers, kind="server_error", after=after)
        write_spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", *([TWO_PROCESSES] if processes else []), cwd=tmp_path)
        request_counts = servers.requests()
    assert done.returncode == 0, done.stderr
    assert read_outcomes(tmp_path) == {"decided": 36}
    assert request_counts[2] < sum(request_counts) / 4, "the run stops using it"
    assert find_server_notes(done.stderr, failing_url) or after == 0
    assert failing_url in (only_run(tmp_path / "results") / "run.log").read_text()


def test_a_call_refused_by_all_servers_ends_its_game_with_a_correct_message(tmp_path: Path) -> None:
    with run_fleet(3, malformed="returns x + 5.") as servers:
        refusing_url = change_last_server(servers, kind="malformed_request")
        write_spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 1, "more than rollouts.max_transport_failed allows"
    assert read_outcomes(tmp_path) == {"decided": 35, "transport_failed": 1}
    (error,) = [row["error"] for row in table(only_run(tmp_path / "results"), "rollouts") if row["error"]]
    assert "no reachable server of models.m" in error
    assert "accepts other requests" not in error
    assert find_server_notes(done.stderr, refusing_url), done.stderr


def test_a_prompt_that_is_too_long_for_all_servers_ends_its_game_as_with_one_server(tmp_path: Path) -> None:
    with run_fleet(3, kind="context_length_exceeded") as servers:
        write_spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_outcomes(tmp_path) == {"context_exceeded": 36}
    assert not any(find_server_notes(done.stderr, url) for url in servers.base_urls), "all servers answer alike"


@pytest.mark.parametrize("kind", ["unknown_model", "malformed_request"])
def test_the_run_ends_if_all_servers_refuse_all_calls(tmp_path: Path, kind: str) -> None:
    with run_fleet(3, kind=kind) as servers:
        write_spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        request_count = sum(servers.requests())
    assert done.returncode == 4, done.stderr
    assert all(url in done.stderr for url in servers.base_urls)
    assert request_count <= 12 * 3


def test_a_refusal_is_not_final_while_the_other_servers_are_down(tmp_path: Path) -> None:
    with run_fleet(3, kind="context_length_exceeded") as servers:
        servers.stop(0)
        servers.stop(1)
        write_spec(tmp_path, servers.base_urls, 6)
        first = nip_run_here("spec.yaml", cwd=tmp_path)
        assert first.returncode == 1, first.stderr
        servers.start(0)
        servers.change(0, kind=None)
        second = nip_run_here("spec.yaml", cwd=tmp_path)
        assert second.returncode == 0, second.stderr
    assert read_outcomes(tmp_path) == {"decided": 6}
