"""Releases of trained models: lineage, weights by hash and not by path, and training effort."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import yaml

from runner import run
from runner.documents.releases.manifest import Release, digest
from runner.documents.releases.reference import Kind, identifier_problem
from runner.models.settings import ModelSettings
from runner.registry.bundles.models import MAX_WEIGHTS_BYTES, build_model_drafts
from runner.registry.bundles.run_facts import sources_of_manifest
from runner.registry.bundles.runs import build_run_drafts
from runner.registry.components.spec_entries import build_model_entry
from runner.registry.draft import Draft, PublisherChoices
from runner.registry.lineage.lineage import Lineage
from runner.registry.lineage.links import build_links, collect_public_group_facts, release_name
from runner.registry.lineage.nodes import node_from_release
from runner.registry.redaction.draft_redaction import redact_drafts
from runner.registry.transports.listing import ReleaseEntry
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.spec.loader import load_spec
from runner.training.weights import public_model_name, weights_at
from tests.support.training import TRAIN, training_spec

LEARN = "learn"
HOMES = "/home" + "/"
TRAINER = """
import pathlib, sys
out = pathlib.Path(sys.argv[1])
(out / "shards").mkdir(parents=True)
(out / "config.json").write_text("{}")
(out / "shards" / "w0.bin").write_bytes(pathlib.Path(sys.argv[2]).read_bytes())
"""


@pytest.fixture(scope="module")
def command_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A run whose trainer writes weights to a local folder, whose path is then the model's name."""
    folder = tmp_path_factory.mktemp("by command")
    trainer = {
        "backend": "command",
        "command": ["python", "-c", TRAINER, "{output}", "{dataset}"],
        "poll_seconds": 0.05,
    }
    frozen = {"agents": {"prover": {"freeze": True}}}
    training = {"iterations": 1, "trainers": {"p": None, "v": trainer}, "test": {"scheme": "none"}}
    results = Results(folder / "results")
    run(load_spec(training_spec(folder, **frozen, training=training)), results.path, run_id=LEARN)
    return results


def build_draft(results: Results, licence: str | None = "MIT") -> Draft:
    (draft,) = redact_drafts(
        build_model_drafts(results.run(LEARN), PublisherChoices("acme", licence=licence)), Path(tempfile.mkdtemp())
    )
    return draft


def test_models_with_the_same_folder_name_have_different_public_names(tmp_path: Path) -> None:
    first, second = HOMES + "somebody/0/output", HOMES + "somebody/1/output"
    facts = {"models": {"a": first}, "trained": [{"model": first, "made": [{"model": second, "from_model": first}]}]}
    original = Draft(
        Release(kind=Kind.MODEL, owner="acme", name="m", version="1", description=f"from {first}", facts=facts),
        {
            "model.yaml": json.dumps({"model": second, "base_model": first}).encode(),
            "README.md": f"# {second}".encode(),
        },
    )
    (draft,) = redact_drafts([original], tmp_path)
    assert b"somebody" not in draft.bundle().manifest
    model = read_model_file(draft)
    group = draft.release.facts["trained"][0]
    assert group["made"][0] == {"model": model["model"], "from_model": model["base_model"]}
    assert (group["model"], f"from {group['model']}") == (model["base_model"], draft.release.description)
    assert draft.contents["README.md"] == f"# {model['model']}".encode()
    assert model["model"] != model["base_model"]
    entry, _ = build_model_entry(ModelSettings(model=first, base_model=second), "m")
    assert {entry["model"], entry["base_model"]} == {model["base_model"], model["model"]}


def read_model_file(draft: Draft) -> dict[str, object]:
    content = draft.contents["model.yaml"]
    assert isinstance(content, bytes)
    fields: dict[str, object] = yaml.safe_load(content)
    return fields


def test_model_release_has_lineage_training_effort_and_small_weights(command_results: Results) -> None:
    draft = build_draft(command_results)
    bundle = draft.bundle()
    assert Release.from_bytes(bundle.manifest) == bundle.release
    assert sorted(draft.contents) == [
        "README.md", "model.yaml", "training.yaml", "weights/config.json", "weights/shards/w0.bin"
    ]  # fmt: skip
    model = read_model_file(draft)
    assert (model["model"], model["base_model"]) == ("output", "dummy")
    weights = weights_at(command_results.run(LEARN).manifest().agents[1]["model"])
    assert weights is not None
    assert model["weights"] == {"sha256": weights.sha256, "bytes": weights.size, "files": 2, "address": "weights/"}
    assert bundle.release.identity["weights"] == weights.sha256
    assert bundle.release.facts["effort"]["rollouts"] == 12
    run_pins = sources_of_manifest(command_results.run(LEARN).manifest())
    assert (bundle.release.sources, "spec" in run_pins) == (
        run_pins,
        True,
    )  # publish needs all sources of the run, or none
    training = yaml.safe_load(bytes(draft.contents["training.yaml"]))
    assert training["in all"] == training["own"] == bundle.release.facts["effort"]
    assert training["steps"][0]["games"][0]["completions"] > 0


def test_unlicensed_or_large_weights_are_published_only_by_hash(command_results: Results, tmp_path: Path) -> None:
    unlicensed = build_draft(command_results, licence=None)
    assert not any(path.startswith("weights/") for path in unlicensed.contents)
    assert "no license was given" in unlicensed.notes[0]
    assert read_model_file(unlicensed)["weights"] == {
        **read_model_file(build_draft(command_results))["weights"],  # type: ignore[dict-item]
        "address": None,
    }
    copied = tmp_path / "copy"
    shutil.copytree(command_results.path, copied)
    folder = RunFolder(copied / "runs" / LEARN)
    weights = Path(command_results.run(LEARN).manifest().agents[1]["model"])
    with (weights / "shards" / "w0.bin").open("r+b") as file:
        before = file.read()
        file.truncate(MAX_WEIGHTS_BYTES + 1)
    try:
        changed = build_model_drafts(folder, PublisherChoices("acme", licence="MIT"))[0]
    finally:
        (weights / "shards" / "w0.bin").write_bytes(before)
    assert "were changed after the training" in changed.notes[0]
    assert "weights/config.json" not in changed.contents


def test_model_facts_and_links_contain_no_local_path(command_results: Results) -> None:
    folder, draft = command_results.run(LEARN), build_draft(command_results)
    texts = [content for content in draft.contents.values() if isinstance(content, bytes)]
    facts = json.dumps(
        [collect_public_group_facts(folder), [vars(link) for link in build_links(folder, command_results, "acme")]]
    ).encode()
    for text in (*texts, draft.bundle().manifest, facts):
        assert str(command_results.path).encode() not in text
        assert b"by command" not in text
    assert collect_public_group_facts(folder)[1]["made"][0]["weights_sha256"] == draft.release.identity["weights"]


def test_redacted_releases_of_a_training_run_name_each_other_by_the_same_hashes(tmp_path: Path) -> None:
    """Otherwise a board counts the games behind a model twice: once for the run, and once for the model's release."""
    models = {group: {"model": "/srv/models/base"} for group in ("p", "v")}
    spec = training_spec(tmp_path, models=models, training={"iterations": 1})
    results = Results(tmp_path / "results")
    run(load_spec(spec), results.path, run_id=LEARN)
    choices = PublisherChoices("acme", licence="MIT")
    drafts = redact_drafts(build_run_drafts(results.run(LEARN), results, choices), tmp_path / "work")
    releases = {str(draft.release.reference): draft.release for draft in drafts}
    identity = releases[f"run/acme/{LEARN}@1"].identity["run"]
    assert identity != results.run(LEARN).manifest().identity
    for release in releases.values():
        assert release.kind != Kind.MODEL or release.identity["run"] == identity
        for link in (link for link in release.links if link.role in ("part", "parent")):
            assert link.identity == releases[str(link.release)].identity["run"]
    entries = [ReleaseEntry(release.reference, digest(release.to_bytes())) for release in releases.values()]
    nodes = [node_from_release(entry, release) for entry, release in zip(entries, releases.values(), strict=True)]
    (test_node,) = (node for node in nodes if node.run_id == f"{LEARN}-t1")
    assert Lineage(nodes).ancestry(test_node).total.effort.rollouts == TRAIN


def test_copied_weights_have_the_same_hash(command_results: Results, tmp_path: Path) -> None:
    path = command_results.run(LEARN).manifest().agents[1]["model"]
    original = weights_at(path)
    shutil.copytree(path, tmp_path / "elsewhere")
    assert weights_at(str(tmp_path / "elsewhere")) == original
    (tmp_path / "elsewhere" / "shards" / "w0.bin").write_bytes(b"other")
    assert weights_at(str(tmp_path / "elsewhere")) != original
    assert weights_at("gpt-4o-mini") is None
    assert weights_at(str(tmp_path / "nothing")) is None


def test_the_same_run_copied_elsewhere_gives_the_same_release(trained_results: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_results, tmp_path / "moved")
    hashes = [
        [draft.bundle().sha256 for draft in build_model_drafts(Results(results).run(LEARN), PublisherChoices("acme"))]
        for results in (trained_results, tmp_path / "moved")
    ]
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 2


def test_continued_model_names_its_parent_and_gives_no_total_effort(trained_results: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_results / "runs", tmp_path / "runs")
    results = Results(tmp_path)
    spec = results.run(LEARN).path / "spec.yaml"
    saved = yaml.safe_load(spec.read_text())
    step = {"model": "m", "from_model": "dummy", "run_id": "first", "iteration": 1, "release": "run/umbra/first@1"}
    saved["models"]["v"] |= {"model": "m", "base_model": "dummy", "lineage": [step]}
    spec.write_text(yaml.safe_dump(saved))
    base, continued = build_model_drafts(results.run(LEARN), PublisherChoices("acme"))
    assert base.release.description == "Model group p of learn, trained from dummy"
    assert continued.release.description.startswith("Model group v of learn, continues run/umbra/first@1")
    training = yaml.safe_load(bytes(continued.contents["training.yaml"]))
    assert (training["continues"], training["in all"], training["own"]["rollouts"]) == ("run/umbra/first@1", None, 12)
    assert b"It continues `run/umbra/first@1`" in bytes(continued.contents["README.md"])


def test_run_links_its_parts_its_models_and_its_input_models(trained_results: Path) -> None:
    results = Results(trained_results)
    links = {
        name: build_links(results.run(name), results, "acme", "2") for name in ("learn", "learn-t1", "after", "before")
    }
    assert [(link.role, link.release) for link in links["learn"]] == [
        ("part", "run/acme/learn-i0@2"), ("part", "run/acme/learn-t1@2"),
        ("output", "model/acme/learn-p@2"), ("output", "model/acme/learn-v@2"),
    ]  # fmt: skip
    assert [link.release for link in links["learn-t1"] if link.role == "parent"] == ["run/acme/learn@2"]
    assert [link.identity for link in links["after"]] == [
        link.identity for link in links["learn"] if link.role == "output"
    ]
    assert {link.role for link in links["after"]} == {"input"}
    assert links["before"] == ()
    assert build_model_drafts(results.run("after"), PublisherChoices("acme")) == []


@pytest.mark.parametrize("run_id", ["Learn-1", "a" * 120, "A..b", "x_", "run.", "r-" + "1" * 98])
def test_every_run_id_gives_a_valid_release_name(run_id: str) -> None:
    assert identifier_problem(release_name(run_id)) is None


def test_public_model_name_is_the_last_part_of_a_path() -> None:
    names = ["/srv/me/llama-3/", "~/models/x", "./x", "../y", "C:\\models\\z", "org/name", "gpt-4o", "ft:a:b::c"]
    assert [*map(public_model_name, names)] == ["llama-3", "x", "x", "y", "z", "org/name", "gpt-4o", "ft:a:b::c"]
