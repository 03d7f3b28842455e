"""Adapters that a trainer leaves are at every server of their group while they are played with, and then no more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.base.async_runner import run_sync
from runner.base.errors import RunError
from runner.models.providers.http_model import close_client
from runner.models.providers.lora_adapters import ServerAdapter
from runner.models.providers.openai import make_client
from runner.models.settings import ModelSettings
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import (
    nip_run,
    nip_run_here,
    start_nip_run,
    start_nip_run_silently,
    wait_for_exit,
    wait_until,
)
from tests.support.servers.client import LoopbackServer, run_loopback_server
from tests.support.servers.fleet import ServerFleet, run_fleet
from tests.support.training import training_spec

TRAINER = """\
import hashlib, pathlib, sys
data, output, name = map(pathlib.Path, sys.argv[1:])
(output / "adapter_config.json").write_text("{}")
name.write_text("lora-" + hashlib.sha256(data.read_bytes()).hexdigest()[:12])
"""


def spec(folder: Path, base_urls: list[str], **changes: Any) -> Path:
    """A training of the provers' group at servers that load adapters; the verifiers' stays as it is."""
    command = [sys.executable, "-c", TRAINER, "{dataset}", "{output}", "{model_file}"]
    model = {"provider": "openai", "model": "tiny", "base_url": base_urls, "timeout": HANG_SECONDS}
    path = training_spec(
        folder, models={"p": model, "v": {"provider": "dummy"}}, agents={"verifier": {"freeze": True}},
        retry={"transient": {"first_wait": 0.02, "max_wait": 0.1}, "breaker": {"failures": 2}},
        rollouts={"concurrency": 2},
        training={
            "iterations": 3, "selection": {"reward_threshold": 0.0}, "test": {"scheme": "last"},
            "trainers": {"p": {"backend": "command", "command": command, "load_lora": True, "poll_seconds": 0.02}},
        },
        **changes,
    )  # fmt: skip
    said = yaml.safe_load(path.read_text())
    del said["training"]["trainers"]["v"]
    path.write_text(yaml.safe_dump(said))
    return path


def happened(servers: ServerFleet, what: str) -> list[list[str]]:
    return [[name for event, name in one["events"] if event == what] for one in servers.request_json("/adapters")]


@pytest.mark.full
def test_each_adapter_is_at_every_server_while_it_is_played_with_and_at_none_in_the_end(tmp_path: Path) -> None:
    with run_fleet(2, "vllm") as servers:
        spec(tmp_path, servers.base_urls)
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        loaded = happened(servers, "loaded")
        assert [len(set(one)) for one in loaded] == [3, 3]
        assert loaded == happened(servers, "unloaded"), "in their order, the one before as the next is needed"
        assert loaded[0] == loaded[1]
        assert happened(servers, "missing") == [[], []]
        assert [one["loaded"] for one in servers.request_json("/adapters")] == [{}, {}]
        (run,) = (path.parent.name for path in (tmp_path / "results" / "runs").glob("*/stages.jsonl"))
        again = ("training.rerun_tests.run=" + run, "training.test.limit=2", "training.test.scheme=all")
        done = nip_run("spec.yaml", *again, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert happened(servers, "loaded") == [[*one, *one] for one in loaded], "for the tests of another run, too"
        assert [one["loaded"] for one in servers.request_json("/adapters")] == [{}, {}]


@pytest.mark.full
def test_a_server_that_was_started_again_gets_its_adapter_again(tmp_path: Path) -> None:
    with run_fleet(2, "vllm") as servers:
        spec(tmp_path, servers.base_urls)
        servers.change(latency=0.4)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: happened(servers, "loaded")[0] != [])
        servers.stop(0)
        servers.start(0)
        code, _, said = wait_for_exit(process)
        assert code == 0, said
        assert happened(servers, "missing")[0] != [], "it had lost it"
        assert [one["loaded"] for one in servers.request_json("/adapters")] == [{}, {}]


@pytest.mark.full
def test_what_a_killed_process_left_loaded_is_unloaded_by_the_next(tmp_path: Path) -> None:
    with run_fleet(2, "vllm", latency=(0.05, 0.1)) as servers:
        spec(tmp_path, servers.base_urls)
        process = start_nip_run_silently("spec.yaml", cwd=tmp_path)
        wait_until(lambda: happened(servers, "loaded")[1] != [])
        process.kill()
        process.wait()
        assert all(one["loaded"] for one in servers.request_json("/adapters"))
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [one["loaded"] for one in servers.request_json("/adapters")] == [{}, {}]
        assert [len(set(one)) for one in happened(servers, "loaded")] == [3, 3]


@pytest.mark.full
def test_a_server_that_loads_no_adapters_is_told_of_with_what_to_do(tmp_path: Path) -> None:
    with run_fleet(1, "vllm", runtime_lora=False) as servers:
        spec(tmp_path, servers.base_urls)
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert done.returncode == 1
        told = " ".join(done.stderr.split())
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in told
        assert servers.base_urls[0] in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"models.p": "{provider: dummy}"}, "only your own server can load adapters"),
        ({"training.trainers.p.command": "[train, '{dataset}', '{model_file}']"}, "read from {output}"),
        ({"training.trainers.p": "{backend: files, load_lora: true}"}, "works only with `command`"),
    ],
)
def test_a_trainer_that_leaves_no_adapter_for_a_server_is_told_before(
    tmp_path: Path, change: dict[str, str], said: str
) -> None:
    spec(tmp_path, ["http://127.0.0.1:9/v1"])
    done = nip_run_here("check", "spec.yaml", *(f"{key}={value}" for key, value in change.items()), cwd=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def load_adapter(server: LoopbackServer, name: str, path: Path, *, reload: bool = False) -> None:
    """Have one server load an adapter."""
    settings = ModelSettings(model=name, base_url=server.base_url, timeout=HANG_SECONDS)

    async def loads() -> None:
        client = make_client(settings, "p", 1)
        try:
            await ServerAdapter(settings, "p", str(path)).load(client, reload=reload)
        finally:
            await close_client(client)

    run_sync(loads)


def test_a_name_that_is_taken_and_a_path_that_is_none_are_errors_and_what_is_there_is_not_loaded_twice(
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    with run_loopback_server(LoopbackServer, "vllm") as server:
        load_adapter(server, "a", tmp_path / "one")
        load_adapter(server, "a", tmp_path / "one")
        assert server.request_json("/adapters")["events"] == [["loaded", "a"]]
        load_adapter(server, "a", tmp_path / "one", reload=True)
        assert server.request_json("/adapters")["events"] == [["loaded", "a"], ["unloaded", "a"], ["loaded", "a"]]
        with pytest.raises(RunError, match=f"already has a model 'a', loaded from {tmp_path}/one instead of"):
            load_adapter(server, "a", tmp_path / "two")
        with pytest.raises(RunError, match="No adapter found"):
            load_adapter(server, "b", tmp_path / "gone")
