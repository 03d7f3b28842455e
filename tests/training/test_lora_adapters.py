"""LoRA adapters: loaded on every server of their group for its games, and unloaded afterwards."""

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
from runner.models.settings import FineTuneStep, ModelSettings
from runner.results.folder import RunFolder
from runner.spec.training_settings import TrainerSettings
from runner.training.adapters import Adapters
from runner.training.stage_log import output_folder, stage_log
from runner.training.weights import recorded_weights
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


def write_lora_spec(folder: Path, base_urls: list[str], **changes: Any) -> Path:
    """Write a spec that trains the provers' group on servers that load adapters, and freezes the verifier."""
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
    content = yaml.safe_load(path.read_text())
    del content["training"]["trainers"]["v"]
    path.write_text(yaml.safe_dump(content))
    return path


def list_events(servers: ServerFleet, kind: str) -> list[list[str]]:
    return [[name for event, name in status["events"] if event == kind] for status in servers.request_json("/adapters")]


@pytest.mark.full
def test_each_adapter_is_loaded_on_every_server_for_its_games_and_unloaded_at_the_end(tmp_path: Path) -> None:
    with run_fleet(2, "vllm") as servers:
        write_lora_spec(tmp_path, servers.base_urls)
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        loaded = list_events(servers, "loaded")
        assert [len(set(names)) for names in loaded] == [3, 3]
        assert loaded == list_events(servers, "unloaded"), (
            "adapters are unloaded in order, each when the next one is needed"
        )
        assert loaded[0] == loaded[1]
        assert list_events(servers, "missing") == [[], []]
        assert [status["loaded"] for status in servers.request_json("/adapters")] == [{}, {}]
        (run,) = (path.parent.name for path in (tmp_path / "results" / "runs").glob("*/stages.jsonl"))
        overrides = ("training.rerun_tests.run=" + run, "training.test.limit=2", "training.test.scheme=all")
        done = nip_run("spec.yaml", *overrides, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert list_events(servers, "loaded") == [[*names, *names] for names in loaded], (
            "the tests of another run load the adapters, too"
        )
        assert [status["loaded"] for status in servers.request_json("/adapters")] == [{}, {}]


@pytest.mark.parametrize("is_changed", [False, True])
def test_adapter_of_another_run_is_only_loaded_if_it_has_the_weights_of_the_model(
    tmp_path: Path, is_changed: bool
) -> None:
    """A downloaded run may have the id of a run in the same results folder, which trained other weights."""
    output = output_folder(RunFolder(tmp_path / "learn"), 1, "p")
    output.mkdir(parents=True)
    (output / "adapter_config.json").write_text("{}")
    weights_sha256 = recorded_weights(str(output))["weights_sha256"]
    (output / "adapter_config.json").write_text('{"r": 8}' if is_changed else "{}")
    step = FineTuneStep(
        model="tuned", from_model="tiny", run_id="learn", iteration=1, method="sft", dataset_sha256="ab",
        weights_sha256=weights_sha256,
    )  # fmt: skip
    notes: list[str] = []
    (tmp_path / "more").mkdir()
    with (
        run_loopback_server(LoopbackServer, "vllm") as server,
        stage_log(RunFolder(tmp_path / "more"), "me") as stages,
    ):
        model = ModelSettings(model="tuned", lineage=(step,), base_url=server.base_url, timeout=HANG_SECONDS)
        trainers = {"p": TrainerSettings(backend="command", load_lora=True)}
        loaded = Adapters(trainers, RunFolder(tmp_path / "more"), stages, notes.append).load_needed(0, {"p": model})
        events = server.request_json("/adapters")["events"]
    assert (list(loaded), events) == (([], []) if is_changed else (["tuned"], [["loaded", "tuned"]]))
    assert len(notes) == is_changed


@pytest.mark.full
def test_restarted_server_gets_its_adapter_again(tmp_path: Path) -> None:
    with run_fleet(2, "vllm") as servers:
        write_lora_spec(tmp_path, servers.base_urls)
        servers.change(latency=10.0)  # the games of the first adapter go on until the server is back
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: list_events(servers, "loaded")[0] != [])
        (adapter,) = list_events(servers, "loaded")[0]
        servers.stop(0)
        servers.start(0)
        wait_until(lambda: adapter in list_events(servers, "loaded")[0])
        servers.change(latency=0.0)
        code, _, stderr = wait_for_exit(process)
        assert code == 0, stderr
        assert [status["loaded"] for status in servers.request_json("/adapters")] == [{}, {}]


@pytest.mark.full
def test_adapters_left_by_a_killed_process_are_unloaded_by_the_next(tmp_path: Path) -> None:
    with run_fleet(2, "vllm", latency=(0.05, 0.1)) as servers:
        write_lora_spec(tmp_path, servers.base_urls)
        process = start_nip_run_silently("spec.yaml", cwd=tmp_path)
        wait_until(lambda: list_events(servers, "loaded")[1] != [])
        process.kill()
        process.wait()
        assert all(status["loaded"] for status in servers.request_json("/adapters"))
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [status["loaded"] for status in servers.request_json("/adapters")] == [{}, {}]
        assert [len(set(names)) for names in list_events(servers, "loaded")] == [3, 3]


@pytest.mark.full
def test_error_for_a_server_without_lora_loading_names_the_required_setting(tmp_path: Path) -> None:
    with run_fleet(1, "vllm", runtime_lora=False) as servers:
        write_lora_spec(tmp_path, servers.base_urls)
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert done.returncode == 1
        message = " ".join(done.stderr.split())
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in message
        assert servers.base_urls[0] in message


@pytest.mark.parametrize(
    ("change", "expected_error"),
    [
        ({"models.p": "{provider: dummy}"}, "only your own server can load adapters"),
        ({"training.trainers.p.command": "[train, '{dataset}', '{model_file}']"}, "read from {output}"),
        ({"training.trainers.p": "{backend: files, load_lora: true}"}, "works only with `command`"),
    ],
)
def test_check_rejects_load_lora_without_a_loadable_adapter(
    tmp_path: Path, change: dict[str, str], expected_error: str
) -> None:
    write_lora_spec(tmp_path, ["http://127.0.0.1:9/v1"])
    done = nip_run_here("check", "spec.yaml", *(f"{key}={value}" for key, value in change.items()), cwd=tmp_path)
    assert done.returncode == 2
    assert expected_error in " ".join(done.stderr.split())


def load_adapter(server: LoopbackServer, name: str, path: Path, *, reload: bool = False) -> None:
    """Load an adapter on a server."""
    settings = ModelSettings(model=name, base_url=server.base_url, timeout=HANG_SECONDS)

    async def connect_and_load() -> None:
        client = make_client(settings, "p", 1)
        try:
            await ServerAdapter(settings, "p", str(path)).load(client, reload=reload)
        finally:
            await close_client(client)

    run_sync(connect_and_load)


def test_adapter_is_loaded_once_and_name_conflicts_and_missing_paths_are_errors(tmp_path: Path) -> None:
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
