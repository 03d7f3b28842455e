"""Components from a user's files: contents and hashes of their releases, and files that cannot be published."""

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


def build_bundle(path: Path, kind: Kind, part: str | None = None) -> Bundle:
    return build_component_draft(path, kind, component_naming("one"), part).bundle()


def unpack(bundle: Bundle, folder: Path) -> Path:
    """Write the files of a release to a folder."""
    for path, content in bundle.contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(read_content(content))
    return folder


def join_contents(bundle: Bundle) -> bytes:
    return bundle.manifest + b"".join(map(read_content, bundle.contents.values()))


def read_content(content: Content) -> bytes:
    with open_content(content) as source:
        return source.read()


def test_protocol_release_has_the_hash_that_its_runs_record(tmp_path: Path) -> None:
    file = shutil.copy(package_data.PROTOCOLS / "debate.yaml", tmp_path / "council.yaml")
    bundle = build_bundle(Path(file), Kind.PROTOCOL)
    assert bundle.contents["protocol.yaml"] == (package_data.PROTOCOLS / "debate.yaml").read_bytes()
    assert bundle.release.identity == {"protocol": tagged_hash("protocol", protocol_content(load_protocol("debate")))}
    assert bundle.release.facts["agents"] == {"prover0": "prover", "prover1": "prover", "verifier": "verifier"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("base", ["nip", "debate", "merlin_arthur"])
def test_extending_protocol_is_published_with_its_base(tmp_path: Path, base: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: {base}\nname: mine\n", "utf-8")
    folder = unpack(build_bundle(tmp_path / "mine.yaml", Kind.PROTOCOL), tmp_path / "out")
    assert "extends" not in read_yaml(folder / "protocol.yaml").data
    original, published = (
        load_protocol(name, folder=parent) for name, parent in (("mine.yaml", tmp_path), ("protocol.yaml", folder))
    )
    assert original == published


def test_prompts_release_has_the_hashes_of_runs_and_lists_its_variables(tmp_path: Path) -> None:
    bundle = build_bundle(PROMPTS, Kind.PROMPTS)
    spec = load_spec(spec_file(tmp_path))
    hashes = dict(new_manifest(Plan(spec), "r", "i").prompts_sha256)
    templates = bundle.release.facts["templates"]
    assert hashes.items() <= {name: template["sha256"] for name, template in templates.items()}.items()
    all_hashes = {name: template["sha256"] for name, template in templates.items()}
    assert bundle.release.identity == {"prompts": tagged_hash("prompts", all_hashes)}
    assert bundle.release.facts["columns"] == ["question", "solution"]
    assert "max_response_words" in templates["prover"]["variables"]


def test_dataset_release_describes_its_rows_and_has_the_hashes_of_runs(tmp_path: Path) -> None:
    bundle = build_bundle(dataset_file(tmp_path, 6), Kind.DATASET)
    dataset = load_spec(spec_file(tmp_path, size=6)).dataset
    assert bundle.release.identity == {"dataset": dataset.sha256, "source": dataset.source_sha256}
    facts = bundle.release.facts
    assert (facts["rows"], facts["labels"], facts["columns"]) == (6, {"0": 3, "1": 3}, ["question", "solution"])
    croissant = json.loads(read_content(bundle.contents["croissant.json"]))
    assert croissant["name"] == "one"
    assert "dataset.jsonl" in json.dumps(croissant)


SERVED: dict[str, Any] = {
    "models": {"m": {"provider": "openai", "model": "/srv/models/Llama-3", "base_url": "http://gpu7.lab:8000/v1"}}
}


def test_agent_is_extracted_with_its_model_and_without_its_address(tmp_path: Path) -> None:
    path = spec_file(tmp_path, **SERVED, agents={"verifier": {"max_response_words": 77}})
    draft = build_component_draft(path, Kind.AGENT, component_naming("one"), "verifier")
    agent = read_yaml(unpack(draft.bundle(), tmp_path / "out") / "agent.yaml").data
    assert agent["max_response_words"] == 77
    assert agent["model_group"] == {
        "provider": "openai", "model": "Llama-3", "base_url": "???", "chat_format": "alternating",
        "system_role": "user",
    }  # fmt: skip
    assert len(draft.notes) == 2
    assert not any(private in join_contents(draft.bundle()) for private in (b"gpu7", b"/srv", b"8000"))
    with pytest.raises(UsageError, match="choose --part from prover, verifier"):
        build_component_draft(path, Kind.AGENT, component_naming("one"), "verifer")


def test_spec_is_published_with_its_files_and_gives_the_same_runs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PROMPTS, source / "other")
    path = spec_file(source, size=4, sweep={"prompts": ["prompts/code_validation/nip", "other"]})
    folder = unpack(build_bundle(path, Kind.SPEC), tmp_path / "out")
    shutil.rmtree(source / "other")
    published = load_specs(folder / "spec.yaml")
    assert len(published) == 2
    shutil.copytree(PROMPTS, source / "other")
    assert [Plan(spec).identity for spec in published] == [Plan(spec).identity for spec in load_specs(path)]
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "data", "prompts", "protocols", "spec.yaml"]


def test_published_spec_omits_server_addresses_and_keeps_the_chat_format(tmp_path: Path) -> None:
    bundle = build_bundle(spec_file(tmp_path / "s", **SERVED, cache="cache.sqlite"), Kind.SPEC)
    assert not any(private in join_contents(bundle) for private in (b"gpu7", b"/srv", b"8000", str(tmp_path).encode()))
    models = load_spec(unpack(bundle, tmp_path / "out") / "spec.yaml").experiment.models
    assert (models["m"].base_url, models["m"].chat_format, models["m"].model) == ("???", "alternating", "Llama-3")


def test_no_address_of_a_server_list_is_left_in_a_swept_spec_or_an_agent(tmp_path: Path) -> None:
    urls = [f"http://gpu{number}.lab:8000/v1" for number in (7, 8)]
    model = {"provider": "openai", "model": "tiny", "base_url": urls, "headers": {"X-Team": "$TEAM_ID"}}
    path = spec_file(tmp_path / "s", models={"m": model}, sweep={"models.m.base_url": [urls, urls[:1], urls[1]]})
    bundle = build_bundle(path, Kind.SPEC)
    assert not any(private in join_contents(bundle) for private in (b"gpu7", b"gpu8", b"8000"))
    specs = load_specs(unpack(bundle, tmp_path / "out") / "spec.yaml")
    assert {spec.experiment.models["m"].base_url for spec in specs} == {"???"}
    draft = build_component_draft(
        spec_file(tmp_path / "a", models={"m": model}), Kind.AGENT, component_naming("one"), "verifier"
    )
    model_group = read_yaml(unpack(draft.bundle(), tmp_path / "agent") / "agent.yaml").data["model_group"]
    assert (model_group["base_url"], model_group["headers"]) == ("???", {"X-Team": "$TEAM_ID"})


def test_handwritten_model_file_is_published_with_its_weights_hash(tmp_path: Path) -> None:
    sha256 = tagged_hash("weights", "w")
    text = f"model: tiny\nbase_model: big\nbase_url: http://h:1/v1\nweights: {{sha256: {sha256}, address: 'hf:a/b'}}\n"
    (tmp_path / "model.yaml").write_text(text, "utf-8")
    bundle = build_bundle(tmp_path / "model.yaml", Kind.MODEL)
    model = read_yaml(unpack(bundle, tmp_path / "out") / "model.yaml").data
    assert (model["base_url"], model["chat_format"], model["weights"]["sha256"]) == ("???", "alternating", sha256)
    assert bundle.release.identity["weights"] == sha256


TRAINED: dict[str, Any] = {
    "kind": "training",
    "training": {
        "method": "expert_iteration", "test": {"scheme": "none"},
        "trainers": {"m": {"backend": "command", "command": ["t", "{dataset}", "{model_file}"]}},
    },
}  # fmt: skip


def test_trainer_is_extracted_from_a_training_spec(tmp_path: Path) -> None:
    bundle = build_bundle(spec_file(tmp_path, **TRAINED), Kind.TRAINER)
    assert read_yaml(unpack(bundle, tmp_path / "out") / "trainer.yaml").data == {
        "backend": "command",
        "command": ["t", "{dataset}", "{model_file}"],
    }
    assert bundle.release.facts["runs_a_command"] is True


INVALID: dict[str, tuple[Kind, str, str, type[NipRunError], str]] = {
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
@pytest.mark.parametrize("name", INVALID)
def test_invalid_component_is_not_published(tmp_path: Path, name: str) -> None:
    kind, file, text, error, message = INVALID[name]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    with pytest.raises(error, match=message):
        build_bundle(path.parent if kind == Kind.PROMPTS else path, kind)


def test_spec_that_names_a_local_run_is_not_published(tmp_path: Path) -> None:
    path = spec_file(tmp_path, until={"compare": "mine-0123456789"})
    with pytest.raises(ReleaseError, match=r"until\.compare names a run of yours"):
        build_bundle(path, Kind.SPEC)


def test_same_files_give_the_same_release_in_any_folder(tmp_path: Path) -> None:
    hashes = {build_bundle(spec_file(tmp_path / folder), Kind.SPEC).sha256 for folder in ("one", "another/deep")}
    assert len(hashes) == 1


@pytest.mark.full
def test_published_prompt_functions_run_only_if_the_user_allows_them(tmp_path: Path) -> None:
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


def test_prompt_function_without_select_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "prover.jinja").write_text("{{ question }}")
    (tmp_path / "prover.function.py").write_text("def choose(candidates, game):\n    return 0\n")
    with pytest.raises(SpecError, match=r"prover\.function\.py:1:1: .*needs a function select"):
        build_component_draft(tmp_path, Kind.PROMPTS, component_naming("mine"))
