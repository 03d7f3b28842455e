"""One model group at three real servers, of which one will not take what the others do: the same run as at one server.

The unlike one is named, with how many calls it refused; what all refuse is judged as one server's refusal.
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
TWO = "execution.processes=2"


def spec(folder: Path, base_urls: list[str], size: int = 36) -> Path:
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls}
    return spec_file(
        folder, None, size=size, models={"m": group}, retry=RETRY, rollouts={"concurrency": 12}, fine_tune=None
    )


def outcomes(folder: Path) -> dict[str, int]:
    run = only_run(folder / "results")
    found: dict[str, int] = json.loads((run / "metrics.json").read_text())["outcomes"]
    return {name: count for name, count in found.items() if count}


def notes_in(said: str, server: str) -> list[str]:
    """What the end of a run says of a server that is unlike the others; it may have been told before, with less."""
    found = re.findall(rf"({re.escape(server)} refused ([\d,]+) calls? of .*)", said)
    return [line for line, _ in found][-1:]


def unlike(servers: ServerFleet, **options: Any) -> str:
    """Let the last of the servers be unlike the others; its address."""
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
def test_what_one_server_refuses_the_others_are_asked_and_it_is_named(tmp_path: Path, kind: str) -> None:
    with run_fleet(3) as servers:
        refuses = unlike(servers, kind=kind)
        spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        asked = servers.requests()
    assert done.returncode == 0, done.stderr
    assert outcomes(tmp_path) == {"decided": 36}
    (note,) = notes_in(done.stderr, refuses)
    failed = [row["error"] for row in table(only_run(tmp_path / "results"), "completions") if row["error"]]
    assert len(failed) == asked[2]
    assert f"refused {asked[2]} calls of models.m that the group's other servers accepted" in note
    assert f"remove {refuses} from models.m.base_url" in note
    assert all(refuses in error for error in failed)
    assert asked[2] < sum(asked) / 4, "it is left"
    assert refuses in (only_run(tmp_path / "results") / "run.log").read_text()
    assert refuses in done.stderr


@pytest.mark.parametrize("kind", ["context_length_exceeded", "malformed_request", "unknown_model"])
def test_so_it_is_with_worker_processes(tmp_path: Path, kind: str) -> None:
    with run_fleet(3) as servers:
        refuses = unlike(servers, kind=kind)
        spec(tmp_path, servers.base_urls)
        done = nip_run("spec.yaml", TWO, cwd=tmp_path)
        asked = servers.requests()
    assert done.returncode == 0, done.stderr
    assert outcomes(tmp_path) == {"decided": 36}
    (note,) = notes_in(done.stderr, refuses)
    assert f"refused {asked[2]} calls of models.m that the group's other servers accepted" in note
    assert asked[2] < sum(asked) / 4


@pytest.mark.parametrize(
    ("after", "processes"),
    [(8, 0), (0, 0), (8, 2)],
)
def test_a_server_that_fails_loses_no_game_of_those_that_the_others_answer(
    tmp_path: Path, after: int, processes: int
) -> None:
    with run_fleet(3) as servers:
        fails = unlike(servers, kind="server_error", after=after)
        spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", *([TWO] if processes else []), cwd=tmp_path)
        asked = servers.requests()
    assert done.returncode == 0, done.stderr
    assert outcomes(tmp_path) == {"decided": 36}
    assert asked[2] < sum(asked) / 4, "it is left"
    assert notes_in(done.stderr, fails) or after == 0
    assert fails in (only_run(tmp_path / "results") / "run.log").read_text()


def test_what_all_servers_refuse_is_the_games_end_and_says_nothing_that_is_not_so(tmp_path: Path) -> None:
    with run_fleet(3, malformed="returns x + 5.") as servers:
        refuses = unlike(servers, kind="malformed_request")
        spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 1, "more than rollouts.max_transport_failed allows"
    assert outcomes(tmp_path) == {"decided": 35, "transport_failed": 1}
    (error,) = [row["error"] for row in table(only_run(tmp_path / "results"), "rollouts") if row["error"]]
    assert "no reachable server of models.m" in error
    assert "accepts other requests" not in error
    assert notes_in(done.stderr, refuses), done.stderr


def test_a_prompt_that_is_too_long_for_all_ends_its_game_as_at_one_server(tmp_path: Path) -> None:
    with run_fleet(3, kind="context_length_exceeded") as servers:
        spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert outcomes(tmp_path) == {"context_exceeded": 36}
    assert not any(notes_in(done.stderr, url) for url in servers.base_urls), "they are all alike"


@pytest.mark.parametrize("kind", ["unknown_model", "malformed_request"])
def test_what_all_servers_refuse_of_all_calls_ends_the_run(tmp_path: Path, kind: str) -> None:
    with run_fleet(3, kind=kind) as servers:
        spec(tmp_path, servers.base_urls)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        asked = sum(servers.requests())
    assert done.returncode == 4, done.stderr
    assert all(url in done.stderr for url in servers.base_urls)
    assert asked <= 12 * 3


def test_where_the_others_are_away_what_one_refuses_is_not_yet_judged(tmp_path: Path) -> None:
    with run_fleet(3, kind="context_length_exceeded") as servers:
        servers.stop(0)
        servers.stop(1)
        spec(tmp_path, servers.base_urls, 6)
        first = nip_run_here("spec.yaml", cwd=tmp_path)
        assert first.returncode == 1, first.stderr
        servers.start(0)
        servers.change(0, kind=None)
        second = nip_run_here("spec.yaml", cwd=tmp_path)
        assert second.returncode == 0, second.stderr
    assert outcomes(tmp_path) == {"decided": 6}
