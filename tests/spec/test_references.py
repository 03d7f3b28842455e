"""Specs that name installed releases play the same games as with files, record them, and need approval."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base import package_data
from runner.base.errors import SpecError
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.components.lookup import make_finder
from runner.registry.components.store import Store
from runner.registry.transports.locations import connect
from runner.results.provenance.manifest_writer import new_manifest
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec, load_spec, load_specs
from tests.support.components import Project, component_naming, publish_component
from tests.support.processes import nip_run_here
from tests.support.specs import dataset_file, spec_file

SIZE = 4
SERVED_MODELS: dict[str, Any] = {
    "models": {"m": {"provider": "openai", "model": "tiny", "base_url": "http://gpu7.lab:8000/v1", "temperature": 0.5}}
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a registry with a release of each kind, published from the spec that the tests also use as files."""
    root = tmp_path_factory.mktemp("registry")
    registry_path, source = root / "registry", root / "source"
    path = spec_file(source, size=SIZE)
    shutil.copy(package_data.PROTOCOLS / "nip.yaml", source / "council.yaml")
    publish_component(registry_path, source / "council.yaml", Kind.PROTOCOL, component_naming("council", "1.2.0"))
    publish_component(
        registry_path,
        package_data.root() / "prompts" / "code_validation" / "nip",
        Kind.PROMPTS,
        component_naming("terse"),
    )
    publish_component(registry_path, source / "data.jsonl", Kind.DATASET, component_naming("sums"))
    publish_component(registry_path, path, Kind.SPEC, component_naming("tiny"))
    publish_component(registry_path, path, Kind.AGENT, component_naming("weak"), "verifier")
    served = spec_file(root / "served", size=SIZE, **SERVED_MODELS)
    publish_component(registry_path, served, Kind.AGENT, component_naming("strong"), "prover")
    publish_component(registry_path, served, Kind.MODEL, component_naming("served"), "m")
    training = {
        "method": "expert_iteration", "test": {"scheme": "none"},
        "trainers": {"m": {"backend": "command", "command": ["evil", "{dataset}", "{model_file}"]}},
    }  # fmt: skip
    publish_component(
        registry_path,
        spec_file(root / "t", size=SIZE, kind="training", training=training),
        Kind.TRAINER,
        component_naming("tr"),
    )
    return registry_path


REFERENCES = (
    "protocol/acme/council@1.2.0", "prompts/acme/terse", "dataset/acme/sums@1", "spec/acme/tiny@1", "agent/acme/weak@1",
    "agent/acme/strong@1", "model/acme/served@1", "trainer/acme/tr@1",
)  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, registry: Path) -> Project:
    """Return a project with all releases installed."""
    user_project = Project.create(tmp_path_factory.mktemp("user"), registry)
    user_project.install(*REFERENCES)
    return user_project


def write_spec(project: Project, **changes: Any) -> Path:
    return spec_file(project.folder, size=SIZE, **changes)


def load_with_releases(project: Project, path: Path, *overrides: str) -> Spec:
    return load_spec(path, overrides, find_component=make_finder(path, Store(project.store)))


def load_problems(project: Project, path: Path, *overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_with_releases(project, path, *overrides)
    return [
        f"{problem.place.line}:{problem.place.column}: {problem.key}: {problem.message}"
        for problem in caught.value.problems
    ]


CHANGES_BY_KIND: dict[str, dict[str, Any]] = {
    "protocol": {"protocol": {"use": "acme/council@1.2.0"}},
    "protocol, with its kind": {"protocol": {"use": "protocol/acme/council@1.2.0"}},
    "prompts": {"prompts": "acme/terse@1"},
    "prompts, the newest": {"prompts": "acme/terse@latest"},
    "dataset": {"dataset": {"path": "acme/sums@1"}},
    "agent": {"agents": {"verifier": {"use": "acme/weak@1", "model": None}}, "models": None},
    "extends": {"extends": "acme/tiny@1", "protocol": {"use": None}},
}
SLOTS = {"agent": "agents.verifier", "extends": "extends:0"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CHANGES_BY_KIND)
def test_reference_and_file_give_the_same_game(tmp_path: Path, project: Project, name: str) -> None:
    by_file = Plan(load_spec(spec_file(tmp_path, size=SIZE)))
    changes = CHANGES_BY_KIND[name]
    if name == "agent":  # the agent has its own model group
        changes = {**changes, "agents": {"verifier": {"use": "acme/weak@1", "model": None}}}
    spec = load_with_releases(project, write_spec(project, **changes))
    assert Plan(spec).identity == by_file.identity
    (slot,) = spec.components
    assert slot == SLOTS.get(name, name.partition(",")[0])
    use = spec.components[slot]
    assert use.release.endswith(("@1", "@1.2.0"))
    assert use.sha256 == Store(project.store).check(_reference_of(use.release, project)).sha256


def _reference_of(release: str, project: Project) -> Any:
    return next(entry.reference for entry in Store(project.store).entries() if str(entry.reference) == release)


def test_reference_by_hash_needs_no_pin(tmp_path: Path, project: Project) -> None:
    pinned = json.loads((project.folder / "nip-run.lock").read_text("utf-8"))["releases"]["prompts/acme/terse@1"]
    path = spec_file(tmp_path, size=SIZE, prompts=f"sha256:{pinned['sha256'][:16]}")
    assert load_with_releases(project, path).components["prompts"].release == "prompts/acme/terse@1"


def test_overrides_and_sweeps_may_name_releases(project: Project) -> None:
    path = write_spec(project)
    assert load_with_releases(project, path, "prompts=acme/terse@1").components.keys() == {"prompts"}
    path = write_spec(project, sweep={"prompts": ["prompts/code_validation/nip", "acme/terse@1"]})
    points = load_specs(path, (), find_component=make_finder(path, Store(project.store)))
    assert [sorted(point.components) for point in points] == [[], ["prompts"]]
    assert points[0].prompts.sources == points[1].prompts.sources


def test_file_takes_precedence_over_a_release_of_the_same_name(tmp_path: Path) -> None:
    shutil.copytree(package_data.root() / "prompts" / "code_validation" / "nip", tmp_path / "acme" / "terse@1")
    assert load_spec(spec_file(tmp_path, size=SIZE, prompts="acme/terse@1")).components == {}


def test_installed_agent_uses_the_specs_group_if_the_model_is_the_same(
    project: Project,
) -> None:
    weak = {"agents": {"verifier": {"use": "acme/weak@1", "model": None}}}
    spec = load_with_releases(project, write_spec(project, **weak))
    assert set(spec.experiment.models) == {"m"}
    strong = {"agents": {"verifier": {"use": "acme/strong@1", "model": None}}}
    local_model = {**SERVED_MODELS["models"]["m"], "base_url": "http://127.0.0.1:9/v1"}
    spec = load_with_releases(project, write_spec(project, **strong, models={"m": local_model}))
    assert {name: model.base_url for name, model in spec.experiment.models.items()} == {"m": "http://127.0.0.1:9/v1"}


def test_group_of_an_installed_agent_is_renamed_if_its_name_is_taken(
    project: Project,
) -> None:
    changes = {"agents": {"verifier": {"use": "acme/strong@1", "model": None}}}
    served = "models.verifier_m.base_url=http://127.0.0.1:9/v1"
    spec = load_with_releases(project, write_spec(project, **changes), served)
    assert spec.experiment.agents["verifier"].model == "verifier_m"
    assert spec.experiment.agents["prover"].model == "m"
    models = spec.experiment.models
    assert (models["m"].provider, models["verifier_m"].model) == ("dummy", "tiny")
    assert models["verifier_m"].base_url == "http://127.0.0.1:9/v1"


def test_agents_with_equally_named_groups_keep_their_own_models(project: Project) -> None:
    agents = {
        name: {"use": f"acme/{kind}@1", "model": None} for name, kind in (("prover", "weak"), ("verifier", "strong"))
    }
    text = json.loads(write_spec(project, agents=agents).read_text("utf-8"))
    del text["models"]
    path = project.folder / "own.yaml"
    path.write_text(json.dumps(text), "utf-8")
    spec = load_with_releases(project, path, "models.verifier_m.base_url=null")
    models = {name: spec.experiment.models[agent.model].provider for name, agent in spec.experiment.agents.items()}
    assert models == {"prover": "dummy", "verifier": "openai"}


def test_spec_values_take_precedence_over_the_release(project: Project) -> None:
    changes = {
        "agents": {"prover": {"use": "acme/strong@1", "model": None, "max_response_words": 9}},
        "models": {"m": None},
    }
    path = project.folder / "own.yaml"
    text = json.loads(write_spec(project, **changes).read_text("utf-8"))
    text["models"] = {"m": {"base_url": "http://127.0.0.1:9/v1", "temperature": 0.1}}
    path.write_text(json.dumps(text), "utf-8")
    spec = load_with_releases(project, path)
    model = spec.experiment.models["m"]
    assert (model.model, model.temperature, model.base_url) == ("tiny", 0.1, "http://127.0.0.1:9/v1")
    assert spec.experiment.agents["prover"].max_response_words == 9
    assert spec.fetched == project.store / "agent" / "acme" / "strong" / "1"


UNUSABLE_REFERENCES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "not installed": (
        {"prompts": "acme/quick@1", "dataset": {"path": "acme/sums@2"}},
        [
            "dataset.path: dataset/acme/sums@2 is not installed; nip-run install dataset/acme/sums@2. Or did you mean",
            "prompts: prompts/acme/quick@1 is not installed; nip-run install prompts/acme/quick@1",
        ],
    ),
    "of another kind": (
        {"prompts": "dataset/acme/sums@1"},
        ["prompts: 'dataset/acme/sums@1' is a dataset; name a prompts here"],
    ),
    "another mistake beside it": (
        {"prompts": "acme/quick@1", "seed": -1},
        ["prompts: prompts/acme/quick@1 is not installed; nip-run install prompts/acme/quick@1", "seed: -1 is"],
    ),
    "a path in an entry": (
        {"agents": {"verifier": {"use": "verifier.yaml"}}},
        ["agents.verifier.use: `use` must be a reference such as OWNER/NAME@VERSION; a path is not allowed here"],
    ),
    "groups of both names": (
        {
            "agents": {"verifier": {"use": "acme/weak@1", "model": None}},
            "models": {"m": {"temperature": 0.1}, "verifier_m": {"provider": "dummy", "temperature": 0.9}},
        },
        [
            "agents.verifier: agent/acme/weak@1 adds a model group 'm', but the spec has other groups called 'm' and "  # noqa: ISC004
            "'verifier_m'; rename one of those, or set agents.verifier.model to the group to use",
        ],
    ),
    "an extended spec": (
        {"extends": "acme/tinny@1"},
        ["extends: spec/acme/tinny@1 is not installed; nip-run install spec/acme/tinny@1. Or did you mean 'spec"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSABLE_REFERENCES)
def test_unusable_reference_is_reported_at_its_position(project: Project, name: str) -> None:
    changes, expected = UNUSABLE_REFERENCES[name]
    path = write_spec(project, **changes)
    line = path.read_text("utf-8")
    messages = load_problems(project, path)
    assert len(messages) == len(expected)
    for message_with_position, start in zip(
        sorted(messages, key=lambda text: text.split(": ")[1]), expected, strict=True
    ):
        position, _, message = message_with_position.partition(": ")
        assert message.startswith(start)
        column = int(position.partition(":")[2])
        assert line[column - 1] == '"'  # the key that contains the reference


def test_damaged_release_is_reported_with_its_file(tmp_path: Path, registry: Path) -> None:
    user_project = Project.create(tmp_path / "user", registry)
    user_project.install("dataset/acme/sums@1")
    file = user_project.store / "dataset" / "acme" / "sums" / "1" / "dataset.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"label": 1', b'"label": 0', 1))
    (message,) = load_problems(user_project, write_spec(user_project, dataset={"path": "acme/sums@1"}))
    assert "dataset/acme/sums@1 is damaged" in message
    assert "dataset.jsonl is damaged: its SHA-256 differs" in message
    assert "nip-run uninstall dataset/acme/sums@1" in message


def test_release_that_differs_from_the_lock_is_refused(project: Project, tmp_path: Path) -> None:
    lock = json.loads((project.folder / "nip-run.lock").read_text("utf-8"))
    lock["releases"]["dataset/acme/sums@1"]["sha256"] = "0" * 64
    (tmp_path / "nip-run.lock").write_text(json.dumps(lock), "utf-8")
    path = spec_file(tmp_path, size=SIZE, dataset={"path": "acme/sums@1"})
    (message,) = load_problems(project, path)
    assert "pins sha256:000000000000" in message


def test_installed_release_without_a_pin_is_refused(tmp_path: Path, project: Project) -> None:
    path = spec_file(tmp_path, size=SIZE, dataset={"path": "acme/sums@1"})
    (tmp_path / "nip-run.lock").write_text('{"format": 1, "releases": {}}', "utf-8")
    (message,) = load_problems(project, path)
    assert "does not pin it; run nip-run install dataset/acme/sums@1" in message


def test_keys_and_commands_of_a_release_need_approval(project: Project) -> None:
    agents = {"prover": {"use": "acme/strong@1", "model": None}}
    path = write_spec(project, agents=agents, models={"m": None, "v": {"provider": "dummy"}})
    path.write_text(
        path.read_text("utf-8").replace('"verifier": {"model": "m"}', '"verifier": {"model": "v"}'), "utf-8"
    )
    spec = ("models.m.base_url=null", "models.m.api_key_env=SECRET_KEY")
    done = project.nip_run(path, *spec)
    assert done.returncode == 2
    assert "SECRET_KEY -> api.openai.com" in done.stderr
    assert "Nothing was sent" in done.stderr
    training = {"method": "expert_iteration", "test": {"scheme": "none"}, "trainers": {"m": {"use": "acme/tr@1"}}}
    done = project.nip_run(write_spec(project, kind="training", training=training))
    assert done.returncode == 2
    assert "* -> command:evil" in done.stderr
    assert "--allow-command PROGRAM" in done.stderr


def test_redacted_server_address_must_be_set(project: Project) -> None:
    path = write_spec(project, models={"m": {"use": "acme/served@1", "provider": None}})
    done = project.nip_run(path)
    assert done.returncode == 2
    assert "models.m.base_url" in done.stderr


@pytest.mark.full
def test_run_records_the_releases_it_was_played_with(project: Project) -> None:
    path = write_spec(project, name="recorded", prompts="acme/terse@latest", dataset={"path": "acme/sums@1"})
    done = project.nip_run(path, "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = (project.folder / "results" / "runs").glob("recorded-*")
    components = json.loads((folder / "manifest.json").read_text("utf-8"))["components"]
    assert {slot: use["release"] for slot, use in components.items()} == {
        "dataset": "dataset/acme/sums@1", "prompts": "prompts/acme/terse@1",
    }  # fmt: skip
    assert all(len(use["sha256"]) == 64 for use in components.values())


def test_spec_that_uses_only_files_records_no_releases(project: Project) -> None:
    manifest = new_manifest(Plan(load_with_releases(project, write_spec(project))), "r", "i")
    assert "components" not in manifest.to_json()


def test_published_spec_may_not_name_files_outside_its_release(tmp_path: Path) -> None:
    """The release is malicious: `nip-run publish` could not have built it."""
    registry_path, secret = tmp_path / "evil", dataset_file(tmp_path, SIZE)
    release = Release(kind=Kind.SPEC, owner="acme", name="evil", version="1")
    for name, text in {"path": f"dataset: {{path: {secret}}}\n", "base": f"extends: {secret}\n"}.items():
        with connect(str(registry_path)) as connection:
            connection.publish([Bundle.of(replace(release, name=name), {"spec.yaml": text.encode()})], "a test")
        user_project = Project.create(tmp_path / name, registry_path)
        user_project.install(f"spec/acme/{name}@1")
        changes: dict[str, Any] = {"extends": f"acme/{name}@1", "dataset": None}
        assert any(
            "a downloaded file may only name" in message
            for message in load_problems(user_project, write_spec(user_project, **changes))
        )


def test_published_starter_agent_works_in_a_starter_with_another_model(tmp_path: Path) -> None:
    first, second = tmp_path / "first", Project.create(tmp_path / "second", tmp_path / "registry")
    assert nip_run_here("init", first, cwd=tmp_path).returncode == 0
    publish_component(second.registry, first / "spec.yaml", Kind.AGENT, component_naming("judge"), "verifier")
    second.install("agent/acme/judge@1")
    assert second.nip_run("init").returncode == 0
    spec = second.folder / "spec.yaml"
    text = spec.read_text("utf-8").replace("verifier: {model: model, max_response_words: 100}",
                                           "verifier: {use: acme/judge@1}")  # fmt: skip
    spec.write_text(text, "utf-8")
    assert set(load_with_releases(second, spec).experiment.models) == {"model"}, "both are the same model"
    text = text.replace(
        "model: {provider: dummy}", "model: {provider: openai, model: gpt-5-mini, base_url: 'http://h/v1'}"
    )
    spec.write_text(text, "utf-8")
    experiment = load_with_releases(second, spec).experiment
    provider_by_agent = {name: experiment.models[agent.model].provider for name, agent in experiment.agents.items()}
    assert provider_by_agent == {"prover": "openai", "verifier": "dummy"}
