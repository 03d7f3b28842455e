"""Somebody's files into a component: what its release holds, what it is equal to, and what cannot be published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runner.base import package_data
from runner.base.errors import NipRunError, ReleaseError, SpecError, UsageError
from runner.base.hashing import tagged_hash
from runner.documents.releases.bundle import Bundle, Content, open_content
from runner.documents.releases.reference import Kind
from runner.documents.yaml_reader import read_yaml
from runner.game.protocols.loader import load_protocol
from runner.registry.components.drafts import build_component_draft
from runner.results.provenance.manifest_writer import new_manifest
from runner.rollouts.identity import protocol_content
from runner.rollouts.plan import Plan
from runner.spec.loader import load_spec, load_specs
from tests.support.components import component_naming, publish_component
from tests.support.hidden_passages import passages_spec
from tests.support.processes import nip_run_here
from tests.support.specs import dataset_file, spec_file

PROMPTS = package_data.root() / "prompts" / "code_validation" / "nip"


def bundle(path: Path, kind: Kind, part: str | None = None) -> Bundle:
    return build_component_draft(path, kind, component_naming("one"), part).bundle()


def unpacked(made: Bundle, folder: Path) -> Path:
    """The files of a release, in a folder."""
    for path, content in made.contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data(content))
    return folder


def every_byte(made: Bundle) -> bytes:
    return made.manifest + b"".join(map(data, made.contents.values()))


def data(content: Content) -> bytes:
    with open_content(content) as source:
        return source.read()


def test_a_protocol_has_the_hash_that_runs_of_it_have(tmp_path: Path) -> None:
    file = shutil.copy(package_data.PROTOCOLS / "debate.yaml", tmp_path / "council.yaml")
    made = bundle(Path(file), Kind.PROTOCOL)
    assert made.contents["protocol.yaml"] == (package_data.PROTOCOLS / "debate.yaml").read_bytes()
    assert made.release.identity == {"protocol": tagged_hash("protocol", protocol_content(load_protocol("debate")))}
    assert made.release.facts["agents"] == {"prover0": "prover", "prover1": "prover", "verifier": "verifier"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("base", ["nip", "debate", "merlin_arthur"])
def test_a_protocol_that_extends_another_travels_with_all_of_it(tmp_path: Path, base: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: {base}\nname: mine\n", "utf-8")
    folder = unpacked(bundle(tmp_path / "mine.yaml", Kind.PROTOCOL), tmp_path / "out")
    assert "extends" not in read_yaml(folder / "protocol.yaml").data
    ours, theirs = (load_protocol(name, folder=at) for name, at in (("mine.yaml", tmp_path), ("protocol.yaml", folder)))
    assert ours == theirs


def test_prompts_have_the_hashes_that_runs_have_and_say_what_they_use(tmp_path: Path) -> None:
    made = bundle(PROMPTS, Kind.PROMPTS)
    spec = load_spec(spec_file(tmp_path))
    hashes = dict(new_manifest(Plan(spec), "r", "i").prompts_sha256)
    templates = made.release.facts["templates"]
    assert hashes.items() <= {name: one["sha256"] for name, one in templates.items()}.items()
    everything = {name: one["sha256"] for name, one in templates.items()}
    assert made.release.identity == {"prompts": tagged_hash("prompts", everything)}
    assert made.release.facts["columns"] == ["question", "solution"]
    assert "max_response_words" in templates["prover"]["variables"]


def test_a_dataset_says_its_rows_and_has_the_hashes_of_runs(tmp_path: Path) -> None:
    made = bundle(dataset_file(tmp_path, 6), Kind.DATASET)
    dataset = load_spec(spec_file(tmp_path, size=6)).dataset
    assert made.release.identity == {"dataset": dataset.sha256, "source": dataset.source_sha256}
    facts = made.release.facts
    assert (facts["rows"], facts["labels"], facts["columns"]) == (6, {"0": 3, "1": 3}, ["question", "solution"])
    croissant = json.loads(data(made.contents["croissant.json"]))
    assert croissant["name"] == "one"
    assert "dataset.jsonl" in json.dumps(croissant)


SERVED: dict[str, Any] = {
    "models": {"m": {"provider": "openai", "model": "/srv/models/Llama-3", "base_url": "http://gpu7.lab:8000/v1"}}
}


def test_an_agent_is_cut_out_with_its_model_and_without_its_address(tmp_path: Path) -> None:
    path = spec_file(tmp_path, **SERVED, agents={"verifier": {"max_response_words": 77}})
    draft = build_component_draft(path, Kind.AGENT, component_naming("one"), "verifier")
    said = read_yaml(unpacked(draft.bundle(), tmp_path / "out") / "agent.yaml").data
    assert said["max_response_words"] == 77
    assert said["model_group"] == {
        "provider": "openai", "model": "Llama-3", "base_url": "???", "chat_format": "alternating",
        "system_role": "user",
    }  # fmt: skip
    assert len(draft.notes) == 2
    assert not any(word in every_byte(draft.bundle()) for word in (b"gpu7", b"/srv", b"8000"))
    with pytest.raises(UsageError, match="choose --part from prover, verifier"):
        build_component_draft(path, Kind.AGENT, component_naming("one"), "verifer")


def test_a_spec_travels_with_all_that_it_names_and_is_the_same_runs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PROMPTS, source / "other")
    path = spec_file(source, size=4, sweep={"prompts": ["prompts/code_validation/nip", "other"]})
    folder = unpacked(bundle(path, Kind.SPEC), tmp_path / "out")
    shutil.rmtree(source / "other")
    ours = load_specs(folder / "spec.yaml")
    assert len(ours) == 2
    shutil.copytree(PROMPTS, source / "other")
    assert [Plan(one).identity for one in ours] == [Plan(one).identity for one in load_specs(path)]
    assert sorted(one.name for one in folder.iterdir()) == ["README.md", "data", "prompts", "protocols", "spec.yaml"]


def test_a_served_spec_leaves_its_addresses_and_is_asked_in_the_same_format(tmp_path: Path) -> None:
    made = bundle(spec_file(tmp_path / "s", **SERVED, cache="cache.sqlite"), Kind.SPEC)
    assert not any(word in every_byte(made) for word in (b"gpu7", b"/srv", b"8000", str(tmp_path).encode()))
    models = load_spec(unpacked(made, tmp_path / "out") / "spec.yaml").experiment.models
    assert (models["m"].base_url, models["m"].chat_format, models["m"].model) == ("???", "alternating", "Llama-3")


def test_of_a_list_of_servers_no_address_is_left_in_a_swept_spec_nor_in_an_agent(tmp_path: Path) -> None:
    at = [f"http://gpu{number}.lab:8000/v1" for number in (7, 8)]
    model = {"provider": "openai", "model": "tiny", "base_url": at, "headers": {"X-Team": "$TEAM_ID"}}
    path = spec_file(tmp_path / "s", models={"m": model}, sweep={"models.m.base_url": [at, at[:1], at[1]]})
    made = bundle(path, Kind.SPEC)
    assert not any(word in every_byte(made) for word in (b"gpu7", b"gpu8", b"8000"))
    specs = load_specs(unpacked(made, tmp_path / "out") / "spec.yaml")
    assert {one.experiment.models["m"].base_url for one in specs} == {"???"}
    draft = build_component_draft(
        spec_file(tmp_path / "a", models={"m": model}), Kind.AGENT, component_naming("one"), "verifier"
    )
    said = read_yaml(unpacked(draft.bundle(), tmp_path / "agent") / "agent.yaml").data["model_group"]
    assert (said["base_url"], said["headers"]) == ("???", {"X-Team": "$TEAM_ID"})


def test_a_model_is_described_by_hand_with_what_is_known_of_its_weights(tmp_path: Path) -> None:
    sha256 = tagged_hash("weights", "w")
    text = f"model: tiny\nbase_model: big\nbase_url: http://h:1/v1\nweights: {{sha256: {sha256}, address: 'hf:a/b'}}\n"
    (tmp_path / "model.yaml").write_text(text, "utf-8")
    made = bundle(tmp_path / "model.yaml", Kind.MODEL)
    said = read_yaml(unpacked(made, tmp_path / "out") / "model.yaml").data
    assert (said["base_url"], said["chat_format"], said["weights"]["sha256"]) == ("???", "alternating", sha256)
    assert made.release.identity["weights"] == sha256


TRAINED: dict[str, Any] = {
    "kind": "training",
    "training": {
        "method": "expert_iteration", "test": {"scheme": "none"},
        "trainers": {"m": {"backend": "command", "command": ["t", "{dataset}", "{model_file}"]}},
    },
}  # fmt: skip


def test_a_trainer_is_cut_out_of_a_spec_that_trains(tmp_path: Path) -> None:
    made = bundle(spec_file(tmp_path, **TRAINED), Kind.TRAINER)
    assert read_yaml(unpacked(made, tmp_path / "out") / "trainer.yaml").data == {
        "backend": "command",
        "command": ["t", "{dataset}", "{model_file}"],
    }
    assert made.release.facts["runs_a_command"] is True


BAD: dict[str, tuple[Kind, str, str, type[NipRunError], str]] = {
    "a broken protocol": (Kind.PROTOCOL, "p.yaml", "cycle: []\n", SpecError, "missing key"),
    "a protocol that is no file": (Kind.PROTOCOL, "p.txt", "", UsageError, "name a .yaml file"),
    "a template that calls": (Kind.PROMPTS, "f/a.jinja", "{{ lipsum() }}", SpecError, "a.jinja:1"),
    "a template with the label": (Kind.PROMPTS, "f/a.jinja", "{{ label }}", SpecError, "label must not reach"),
    "a folder without templates": (Kind.PROMPTS, "f/a.txt", "", UsageError, "has no"),
    "rows without labels": (Kind.DATASET, "d.csv", "id,x\na,1\n", SpecError, "no column 'label'"),
    "a picture": (Kind.DATASET, "d.png", "", UsageError, "is not a dataset file"),
    "a model of a run": (Kind.MODEL, "model.yaml", "model: a\nfrom_run: mine\n", SpecError, "name a run of yours"),
    "a misspelt model": (Kind.MODEL, "model.yaml", "modle: a\n", SpecError, "did you mean 'model'"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", BAD)
def test_what_no_loader_takes_is_not_published(tmp_path: Path, name: str) -> None:
    kind, file, text, error, message = BAD[name]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    with pytest.raises(error, match=message):
        bundle(path.parent if kind == Kind.PROMPTS else path, kind)


def test_a_spec_that_names_a_run_of_its_user_is_not_published(tmp_path: Path) -> None:
    path = spec_file(tmp_path, until={"compare": "mine-0123456789"})
    with pytest.raises(ReleaseError, match=r"until\.compare names a run of yours"):
        bundle(path, Kind.SPEC)


def test_the_same_files_are_the_same_release_wherever_they_lie(tmp_path: Path) -> None:
    made = {bundle(spec_file(tmp_path / at), Kind.SPEC).sha256 for at in ("one", "another/deep")}
    assert len(made) == 1


@pytest.mark.full
def test_prompts_are_published_with_their_functions_which_run_only_if_the_user_allows_it(tmp_path: Path) -> None:
    rules = {
        "cycle": [{"speak": {"p0": ["main"]}, "best_of": {"n": 2, "by": "function"}}, {"speak": {"judge": ["main"]}}],
        "parameters": {"max_message_rounds": 2, "min_message_rounds": 2},
    }
    path = passages_spec(tmp_path, rules)
    draft = build_component_draft(tmp_path / "prompts", Kind.PROMPTS, component_naming("mine"))
    assert draft.release.facts["agents"] == ["judge", "p0", "p1"]
    publish_component(tmp_path / "registry", tmp_path / "prompts", Kind.PROMPTS, component_naming("mine"))
    store = {"NIP_RUN_STORE": str(tmp_path / "store")}
    done = nip_run_here("install", "prompts/acme/mine@1", "--from", "registry", cwd=tmp_path, **store)
    assert done.returncode == 0, done.stderr
    path.write_text(json.dumps({**json.loads(path.read_text()), "prompts": "acme/mine@1"}))
    refused = nip_run_here("spec.yaml", "-q", cwd=tmp_path, **store)
    assert (refused.returncode, "python p0.function.py" in refused.stderr) == (2, True), refused.stderr
    played = nip_run_here("spec.yaml", "-q", "--allow-command", "python", cwd=tmp_path, **store)
    assert played.returncode == 0, played.stderr


def test_a_function_with_a_mistake_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "prover.jinja").write_text("{{ question }}")
    (tmp_path / "prover.function.py").write_text("def choose(candidates, game):\n    return 0\n")
    with pytest.raises(SpecError, match=r"prover\.function\.py:1:1: .*needs a function select"):
        build_component_draft(tmp_path, Kind.PROMPTS, component_naming("mine"))
