"""A downloaded spec cannot name a file outside its folder, with any key or link."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from runner import load_spec, run
from runner.base.errors import ReleaseError, SpecError, UsageError
from runner.base.hashing import tagged_hash
from runner.documents.fetched_files import MARKER, marker_bytes, read_marker
from runner.models.api_keys import allowed_commands, parse_allowed
from runner.registry.components.lockfile import LOCK, Lock
from runner.results.folder import RunFolder
from runner.runs.finished.reconstruction import played_plan
from runner.spec.experiment import Experiment
from runner.spec.loader import load_saved
from runner.spec.model_sources import ModelSource
from runner.spec.origin import PATH_LOOKUPS
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

SECRET = "the words that nobody may see"


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of the user with a dataset, templates, a protocol, a spec and a run."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "prompts").mkdir()
    for agent in ("prover", "verifier"):
        (folder / "prompts" / f"{agent}.jinja").write_text(f"{SECRET} {{{{ question }}}}")
    (folder / "secret.jsonl").write_text(
        json.dumps({"id": "a", "label": 1, "question": SECRET, "solution": "x"}) + "\n"
    )
    (folder / "protocol.yaml").write_text("extends: nip\n")
    (folder / "base.yaml").write_text(f"description: {SECRET}\n")
    run_spec(spec_file(folder, size=2), folder / "results", "fine_tune=null")
    return folder


@pytest.fixture
def fetched_folder(user_folder: Path, tmp_path: Path) -> Path:
    """Return a downloaded folder next to a folder of the user."""
    shutil.copytree(user_folder, tmp_path / "own")
    folder = tmp_path / "got"
    folder.mkdir()
    (folder / MARKER).write_bytes(marker_bytes("run/acme/x@1", "0" * 64, "file:/r"))
    return folder


def user_run(fetched_folder: Path) -> Path:
    return next((fetched_folder.parent / "own" / "results" / "runs").iterdir())


Changes = Callable[[Path], dict[str, Any]]

OUTSIDE_PATHS: dict[str, Changes] = {
    "dataset.path": lambda _: {"dataset": {"path": "../own/secret.jsonl"}},
    "dataset.path, absolute": lambda folder: {"dataset": {"path": str(folder.parent / "own" / "secret.jsonl")}},
    "dataset.path, on the Hub": lambda _: {"dataset": {"path": "hf://datasets/a/b"}},
    "prompts": lambda _: {"prompts": "../own/prompts"},
    "protocol.use": lambda _: {"protocol": {"use": "../own/protocol.yaml"}},
    "protocol.use, by a name": lambda folder: {"protocol": {"use": str(folder.parent / "own" / "protocol")}},
    "extends": lambda _: {"extends": "../own/base.yaml"},
    "extends, from the root": lambda folder: {"extends": str(folder.parent / "own" / "base.yaml")},
    "cache": lambda _: {"cache": "../own/cache.sqlite"},
    "models.m.run": lambda folder: {"models": {"m": {"provider": "replay", "run": str(user_run(folder))}}},
    "models.m.from_run": lambda folder: {"models": {"m": {"from_run": str(user_run(folder))}}},
    "models.m.from_run, by id": lambda folder: {"models": {"m": {"from_run": user_run(folder).name}}},
    "rejudge.run": lambda folder: {"rejudge": {"run": str(user_run(folder))}, "fine_tune": None},
    "rejudge.run, by id": lambda folder: {"rejudge": {"run": user_run(folder).name}, "fine_tune": None},
    "sweep of dataset.path": lambda _: {"sweep": {"dataset.path": ["data.jsonl", "../own/secret.jsonl"]}},
    "by another key": lambda _: {"description": "../own/prompts", "prompts": "${description}"},
    "training.rerun_tests.run": lambda folder: {
        "kind": "training",
        "fine_tune": None,
        "training": {"method": "expert_iteration", "trainers": {}, "rerun_tests": {"run": str(user_run(folder))}},
    },
    "tournament.players.a.prompts": lambda _: {
        "tournament": {"players": {"a": {"model": "m", "prompts": "../own/prompts"}, "b": {"model": "m"}}},
    },
    "training.from": lambda folder: {
        "kind": "training",
        "fine_tune": None,
        "training": {
            "method": "expert_iteration", "from": str(user_run(folder)), "trainers": {"m": {"backend": "dummy"}},
        },
    },
}  # fmt: skip

REFUSAL = "a downloaded file may only name|a downloaded spec must not"


@pytest.mark.parametrize("key", OUTSIDE_PATHS)
def test_path_outside_a_fetched_folder_is_refused_without_revealing_the_file(key: str, fetched_folder: Path) -> None:
    path = spec_file(fetched_folder, size=2, **OUTSIDE_PATHS[key](fetched_folder))
    done = nip_run_here(path, "--results", fetched_folder.parent / "own" / "results", cwd=fetched_folder.parent)
    assert done.returncode == 2, done.stdout + done.stderr
    expected_key = key.partition(",")[0].removeprefix("sweep of ")
    assert expected_key == "by another key" or expected_key in done.stderr
    assert re.search(REFUSAL, done.stderr)
    assert SECRET not in done.stdout + done.stderr
    assert not (fetched_folder.parent / "results").exists()


@pytest.mark.parametrize("key", [key for key in OUTSIDE_PATHS if key != "cache"])
def test_path_outside_a_fetched_folder_is_refused_in_a_saved_spec(key: str, fetched_folder: Path) -> None:
    path = spec_file(fetched_folder, size=2, **OUTSIDE_PATHS[key](fetched_folder))
    with pytest.raises(SpecError, match=REFUSAL):
        load_saved(path)


def make_link(link_path: Path, target: Path) -> None:
    link_path.parent.mkdir(parents=True, exist_ok=True)
    link_path.symlink_to(os.path.relpath(target, link_path.parent))


LINKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a dataset": ("linked.jsonl", "secret.jsonl", {"dataset": {"path": "linked.jsonl"}}),
    "a folder of templates": ("linked", "prompts", {"prompts": "linked"}),
    "a template": ("mine/prover.jinja", "prompts/prover.jinja", {"prompts": "mine"}),
    "a base": ("base.yaml", "base.yaml", {"extends": "base.yaml"}),
    "a protocol": ("protocol.yaml", "protocol.yaml", {"protocol": {"use": "protocol.yaml"}}),
    "a folder on the way": ("way", ".", {"dataset": {"path": "way/secret.jsonl"}}),
}


@pytest.mark.parametrize("case", LINKS)
def test_link_that_leads_outside_a_fetched_folder_is_refused(case: str, fetched_folder: Path) -> None:
    name, target, changes = LINKS[case]
    make_link(fetched_folder / name, fetched_folder.parent / "own" / target)
    with pytest.raises(SpecError, match=r"a downloaded file may only name|is a link to a file outside") as caught:
        load_spec(spec_file(fetched_folder, size=2, **changes))
    assert SECRET not in str(caught.value)


def test_fetched_spec_that_is_a_link_to_an_outside_file_is_refused(fetched_folder: Path) -> None:
    make_link(fetched_folder / "spec.yaml", fetched_folder.parent / "own" / "base.yaml")
    with pytest.raises(SpecError, match="a downloaded file may only name") as caught:
        load_spec(fetched_folder / "spec.yaml")
    assert SECRET not in str(caught.value)


def test_fetched_protocol_that_extends_an_outside_file_is_refused(fetched_folder: Path) -> None:
    (fetched_folder / "rules.yaml").write_text("extends: ../own/protocol.yaml\n")
    with pytest.raises(SpecError, match="a downloaded file may only name"):
        load_spec(spec_file(fetched_folder, size=2, protocol={"use": "rules.yaml"}))


def test_fetched_spec_may_use_files_in_its_folder_and_built_in_files(fetched_folder: Path) -> None:
    spec = load_spec(spec_file(fetched_folder, size=2))
    assert (spec.fetched, spec.got_from) == (fetched_folder, {"release": "run/acme/x@1", "sha256": "0" * 64})
    (fetched_folder / "inside").mkdir()
    make_link(fetched_folder / "inside" / "linked.jsonl", fetched_folder / "data.jsonl")
    assert load_spec(spec_file(fetched_folder, size=2, dataset={"path": "inside/linked.jsonl"})).dataset.datapoints


def test_overrides_and_specs_of_the_user_may_name_any_file(fetched_folder: Path) -> None:
    path = spec_file(fetched_folder, size=2, dataset={"path": "../own/secret.jsonl"})
    secret = fetched_folder.parent / "own" / "secret.jsonl"
    assert len(load_spec(path, {"dataset.path": str(secret)}).dataset.datapoints) == 1
    user_spec = fetched_folder.parent / "ours.yaml"
    user_spec.write_text(json.dumps({"extends": "got/spec.yaml", "dataset": {"path": "own/secret.jsonl"}}))
    assert len(load_spec(user_spec).dataset.datapoints) == 1


def text_keys(cls: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys of a spec whose values are or contain texts; `*` stands for any name."""
    for field in dataclasses.fields(cls):
        yield from _text_keys_of_type(get_type_hints(cls)[field.name], (*key, field.name.rstrip("_")))


def _text_keys_of_type(hint: Any, key: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if dataclasses.is_dataclass(hint):
        yield from text_keys(hint, key)
    elif hint is str:
        yield key
    else:
        type_arguments = getattr(hint, "__args__", ())
        is_mapping = "Mapping" in str(getattr(hint, "__origin__", ""))
        for type_argument in type_arguments[1:] if is_mapping else type_arguments:
            yield from _text_keys_of_type(type_argument, (*key, "*") if is_mapping else key)


KEYS_WITHOUT_PATHS = {
    "name", "description", "benchmark", "analysis", "until.compare", "sweep", "seats", "metrics",
    "dataset.columns", "dataset.split", "dataset.filter", "dataset.group_by", "dataset.labels", "dataset.ids",
    "dataset.unique_by", "dataset.answers", "dataset.right_answers", "dataset.checker",
    "dataset.explode", "dataset.transform", "dataset.transcripts", "dataset.revision", "agents", "decision_format",
    "verdict",
    "fine_tune.agents", "fine_tune.formats", "models.*.model", "models.*.from_group", "models.*.base_model",
    "models.*.lineage", "models.*.base_url", "models.*.api_key_env", "models.*.headers", "models.*.stop",
    "models.*.reasoning_effort", "models.*.service_tier", "models.*.prompt_cache_key",
    "training.trainers.*.command", "training.trainers.*.files", "training.trainers.*.suffix", "training.test.split",
    "training.rerun_tests.models", "execution", "tournament.players.*.model", "tournament.seats", "tournament.judges",
}  # fmt: skip
"""Keys that, with all keys below them, name no file. `until.compare` is checked when the run starts, trainer files by
`runner.spec.trainer_files`."""


def test_every_text_key_of_a_spec_is_classified_as_path_or_no_path() -> None:
    """Add a new text key to `PATH_LOOKUPS` if it names a file, or else to `KEYS_WITHOUT_PATHS`."""
    path_keys = {".".join(map(str, key)) for key in PATH_LOOKUPS}
    for key_parts in text_keys(Experiment):
        dotted = ".".join(key_parts)
        key_and_parents = {".".join(key_parts[:end]) for end in range(1, len(key_parts) + 1)}
        assert dotted in path_keys or key_and_parents & KEYS_WITHOUT_PATHS, f"is {dotted} a path?"


@pytest.mark.full
def test_fetched_spec_may_not_choose_the_run_to_compare_with(fetched_folder: Path) -> None:
    results = fetched_folder.parent / "own" / "results"
    path = spec_file(fetched_folder, size=2, until={"compare": user_run(fetched_folder).name}, fine_tune=None)
    with pytest.raises(UsageError, match=r"until\.compare: a downloaded spec may not choose a run of your results"):
        run(load_spec(path), results)
    result = run(load_spec(path, {"until.compare": user_run(fetched_folder).name, "seed": 8}), results)
    assert result.status == "done"


def test_lockfile_in_a_fetched_folder_is_ignored(fetched_folder: Path) -> None:
    (fetched_folder / LOCK).write_text("{")
    (fetched_folder.parent / LOCK).write_text("[")
    with pytest.raises(ReleaseError) as caught:
        Lock.find_nearest(fetched_folder / "data")
    assert str(fetched_folder.parent / LOCK) in str(caught.value)
    assert str(fetched_folder / LOCK) not in str(caught.value)


def test_env_files_in_a_fetched_folder_are_never_read(fetched_folder: Path) -> None:
    with run_chat_server(record=4) as server:
        path = spec_file(fetched_folder, server.base_url, size=2, models={"m": {"api_key_env": "ROW_VARIABLE"}})
        for name in (".env", "spec.env", "env"):
            (fetched_folder / name).write_text("ROW_VARIABLE=sk-planted-0123456789\n")
        pair = f"ROW_VARIABLE=127.0.0.1:{server.port}"
        done = nip_run_here(path, "--allow-key", pair, cwd=fetched_folder)
        assert (
            done.returncode,
            "is empty or not set; set ROW_VARIABLE to the API key" in done.stderr,
            server.requests,
        ) == (
            4,
            True,
            0,
        ), done.stderr


@pytest.mark.full
def test_trainer_command_needs_allow_command_and_is_shown_in_full(fetched_folder: Path) -> None:
    command = ["touch", str(fetched_folder / "here"), "{dataset}", "{output}", "x\n  OK"]
    training = {
        "iterations": 1, "method": "expert_iteration", "test": {"scheme": "none"}, "min_examples": 1,
        "trainers": {"m": {"backend": "command", "command": command}},
    }  # fmt: skip
    agents = {"verifier": {"model": "v", "freeze": True}}
    models = {"v": {"provider": "dummy"}}
    path = spec_file(
        fetched_folder, size=6, kind="training", training=training, fine_tune=None, models=models, agents=agents
    )
    refused = nip_run_here(path, "--allow-command", "other", cwd=fetched_folder.parent)
    assert refused.returncode == 2
    assert f"touch {fetched_folder / 'here'}" in refused.stderr
    assert "--allow-command PROGRAM" in refused.stderr
    assert "\n  OK" not in refused.stderr, "a stranger's words make no line"
    assert not (fetched_folder.parent / "results").exists()
    with pytest.raises(UsageError, match=r"allow_commands=\['PROGRAM'\]"):
        run(load_spec(path), fetched_folder.parent / "results")
    nip_run_here(path, "--allow-command", "touch", cwd=fetched_folder.parent)
    assert (fetched_folder / "here").exists(), "once it is allowed, it runs"
    assert allowed_commands(["touch"]) == parse_allowed(["*=command:touch"])
    with pytest.raises(UsageError, match="write --allow-command PROGRAM"):
        allowed_commands([""])


@pytest.mark.full
def test_fetched_spec_with_many_calls_needs_a_budget_and_shows_its_cost_first(fetched_folder: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(fetched_folder, server.base_url, size=2, rollouts={"per_datapoint": 5000}, fine_tune=None)
        host = f"127.0.0.1:{server.port}"
        refused = nip_run_here(path, "--allow-host", host, cwd=fetched_folder.parent)
        assert (refused.returncode, server.requests) == (2, 0)
        assert "60,000 calls" in refused.stderr
        assert "budget.completions=N" in refused.stderr
        assert not (fetched_folder.parent / "results").exists()
        allowed = nip_run_here(path, "budget.completions=1", "--allow-host", host, cwd=fetched_folder.parent)
        assert allowed.returncode == 3, allowed.stderr
        small_run = nip_run_here(path, "rollouts.per_datapoint=1", "--allow-host", host, cwd=fetched_folder.parent)
        assert (small_run.returncode, "2 to 12 calls, cost unknown" in small_run.stderr) == (0, True), small_run.stderr


@pytest.mark.full
def test_saved_run_of_a_fetched_spec_needs_the_same_approval(fetched_folder: Path) -> None:
    """Otherwise, a replay, which needs no approval, would turn it into a trusted spec."""
    with run_chat_server() as server:
        path = spec_file(fetched_folder, server.base_url, size=2, models={"m": {"api_key_env": "ROW_VARIABLE"}})
        pair = f"ROW_VARIABLE=127.0.0.1:{server.port}"
        key = {"ROW_VARIABLE": "sk-0123456789abcdef"}
        done = nip_run_here(path, "--allow-key", pair, cwd=fetched_folder.parent, **key)
        assert done.returncode == 0, done.stderr
        (saved,) = (fetched_folder.parent / "results" / "runs").iterdir()
        second_run = nip_run_here(saved, "--again", cwd=fetched_folder.parent, **key)
        assert (second_run.returncode, "--allow-key" in second_run.stderr) == (2, True), second_run.stderr
        rejudged = nip_run_here("rejudge", saved, "votes=3", cwd=fetched_folder.parent, **key)
        assert (rejudged.returncode, "--allow-key" in rejudged.stderr) == (2, True), rejudged.stderr
    assert read_marker(saved) == {"release": "run/acme/x@1", "sha256": "0" * 64}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"release": 3, "sha256": "0"}',
        b'{"release": "a b", "sha256"',
        b'{"release": "a b", "sha256": "0"}',
    ],
)
def test_invalid_marker_still_marks_a_fetched_folder(content: bytes, fetched_folder: Path) -> None:
    (fetched_folder / MARKER).write_bytes(content)
    spec = load_spec(spec_file(fetched_folder, size=2))
    assert (spec.fetched, spec.got_from, read_marker(fetched_folder)) == (fetched_folder, None, None)


def test_downloaded_runs_are_checked_despite_their_manifest(fetched_folder: Path) -> None:
    run = RunFolder(shutil.copytree(user_run(fetched_folder), fetched_folder / "run"))
    run.spec.write_text(re.sub("concurrency: [0-9]+", "concurrency: 0", run.spec.read_text()))
    manifest = {
        **json.loads(run.manifest_path.read_bytes()),
        "spec_sha256": tagged_hash("spec", ModelSource(run.path).spec),
    }
    run.manifest_path.write_text(json.dumps(manifest))
    with pytest.raises(SpecError, match="concurrency"):
        played_plan(run, trusts_manifest=True)
    (fetched_folder / MARKER).unlink()
    assert played_plan(run, trusts_manifest=True).spec.experiment.rollouts.concurrency == 0
    with pytest.raises(SpecError, match="concurrency"):
        played_plan(run)


@pytest.mark.parametrize(
    "execution", [{"engine": "ray", "workers": 8, "address": "elsewhere.example:6379"}, {"processes": 1024}]
)
def test_fetched_spec_may_not_choose_the_execution_engine(execution: dict[str, Any], fetched_folder: Path) -> None:
    """A cluster chosen by a publisher would receive the run and could control this process."""
    path = spec_file(fetched_folder, size=2, execution=execution)
    done = nip_run_here(path, cwd=fetched_folder.parent)
    assert done.returncode == 2
    assert all(f"execution.{key}: a downloaded spec must not choose" in done.stderr for key in execution)
    assert not (fetched_folder.parent / "results").exists()
    load_saved(path)
    spec = load_spec(path, [f"execution.{key}={value}" for key, value in execution.items()])
    assert spec.experiment.execution.by_workers
