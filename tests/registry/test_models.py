"""A trained model as a release: its past, its weights by what they are and never by where, and what it took in data."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import yaml

from runner.api import run
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind, identifier_problem
from runner.models.settings import ModelSettings
from runner.registry.bundles.models import MAX_WEIGHTS_BYTES, build_model_drafts
from runner.registry.bundles.run_facts import sources_of_manifest
from runner.registry.components.spec_entries import build_model_entry
from runner.registry.draft import Draft, PublisherChoices
from runner.registry.lineage.links import build_links, collect_public_group_facts, release_name
from runner.registry.redaction.draft_redaction import redact_drafts
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.spec.loader import load_spec
from runner.training.weights import public_model_name, weights_at
from tests.support.training import training_spec

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
def by_command(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A run whose trainer leaves weights in a folder of this machine, which is then the model's name."""
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


def draft(results: Results, licence: str | None = "MIT") -> Draft:
    (made,) = redact_drafts(
        build_model_drafts(results.run(LEARN), PublisherChoices("acme", licence=licence)), Path(tempfile.mkdtemp())
    )
    return made


def test_two_models_whose_paths_end_alike_are_two_wherever_they_stand(tmp_path: Path) -> None:
    one, other = HOMES + "somebody/0/output", HOMES + "somebody/1/output"
    facts = {"models": {"a": one}, "trained": [{"model": one, "made": [{"model": other, "from_model": one}]}]}
    said = Draft(
        Release(kind=Kind.MODEL, owner="acme", name="m", version="1", description=f"from {one}", facts=facts),
        {"model.yaml": json.dumps({"model": other, "base_model": one}).encode(), "README.md": f"# {other}".encode()},
    )
    (made,) = redact_drafts([said], tmp_path)
    assert b"somebody" not in made.bundle().manifest
    told = model_yaml(made)
    group = made.release.facts["trained"][0]
    assert group["made"][0] == {"model": told["model"], "from_model": told["base_model"]}
    assert (group["model"], f"from {group['model']}") == (told["base_model"], made.release.description)
    assert made.contents["README.md"] == f"# {told['model']}".encode()
    assert told["model"] != told["base_model"]
    entry, _ = build_model_entry(ModelSettings(model=one, base_model=other), "m")
    assert {entry["model"], entry["base_model"]} == {told["base_model"], told["model"]}


def model_yaml(made: Draft) -> dict[str, object]:
    content = made.contents["model.yaml"]
    assert isinstance(content, bytes)
    said: dict[str, object] = yaml.safe_load(content)
    return said


def test_a_models_release_has_its_lineage_what_it_took_and_its_small_weights(by_command: Results) -> None:
    made = draft(by_command)
    bundle = made.bundle()
    assert Release.from_bytes(bundle.manifest) == bundle.release
    assert sorted(made.contents) == [
        "README.md", "model.yaml", "training.yaml", "weights/config.json", "weights/shards/w0.bin"
    ]  # fmt: skip
    said = model_yaml(made)
    assert (said["model"], said["base_model"]) == ("output", "dummy")
    found = weights_at(by_command.run(LEARN).manifest().agents[1]["model"])
    assert found is not None
    assert said["weights"] == {"sha256": found.sha256, "bytes": found.size, "files": 2, "address": "weights/"}
    assert bundle.release.identity["weights"] == found.sha256
    assert bundle.release.facts["effort"]["rollouts"] == 12
    run_pins = sources_of_manifest(by_command.run(LEARN).manifest())
    assert (bundle.release.sources, "spec" in run_pins) == (run_pins, True)  # publish takes both, or neither
    took = yaml.safe_load(bytes(made.contents["training.yaml"]))
    assert took["in all"] == took["own"] == bundle.release.facts["effort"]
    assert took["steps"][0]["games"][0]["completions"] > 0


def test_weights_stay_here_without_a_licence_or_where_they_are_large_and_their_hash_does_not(
    by_command: Results, tmp_path: Path
) -> None:
    none = draft(by_command, licence=None)
    assert not any(path.startswith("weights/") for path in none.contents)
    assert "no license was given" in none.notes[0]
    assert model_yaml(none)["weights"] == {**model_yaml(draft(by_command))["weights"], "address": None}  # type: ignore[dict-item]
    place = tmp_path / "copy"
    shutil.copytree(by_command.path, place)
    folder = RunFolder(place / "runs" / LEARN)
    weights = Path(by_command.run(LEARN).manifest().agents[1]["model"])
    with (weights / "shards" / "w0.bin").open("r+b") as file:
        before = file.read()
        file.truncate(MAX_WEIGHTS_BYTES + 1)
    try:
        changed = build_model_drafts(folder, PublisherChoices("acme", licence="MIT"))[0]
    finally:
        (weights / "shards" / "w0.bin").write_bytes(before)
    assert "were changed after the training" in changed.notes[0]
    assert "weights/config.json" not in changed.contents


def test_no_path_of_this_machine_stands_in_what_a_run_says_of_its_models(by_command: Results) -> None:
    folder, made = by_command.run(LEARN), draft(by_command)
    texts = [content for content in made.contents.values() if isinstance(content, bytes)]
    said = json.dumps(
        [collect_public_group_facts(folder), [vars(one) for one in build_links(folder, by_command, "acme")]]
    ).encode()
    for text in (*texts, made.bundle().manifest, said):
        assert str(by_command.path).encode() not in text
        assert b"by command" not in text
    assert collect_public_group_facts(folder)[1]["made"][0]["weights_sha256"] == made.release.identity["weights"]


def test_the_weights_of_a_model_are_known_wherever_they_are_copied_to(by_command: Results, tmp_path: Path) -> None:
    path = by_command.run(LEARN).manifest().agents[1]["model"]
    there = weights_at(path)
    shutil.copytree(path, tmp_path / "elsewhere")
    assert weights_at(str(tmp_path / "elsewhere")) == there
    (tmp_path / "elsewhere" / "shards" / "w0.bin").write_bytes(b"other")
    assert weights_at(str(tmp_path / "elsewhere")) != there
    assert weights_at("gpt-4o-mini") is None
    assert weights_at(str(tmp_path / "nothing")) is None


def test_the_same_run_copied_elsewhere_gives_the_same_release(trained_results: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_results, tmp_path / "moved")
    made = [
        [one.bundle().sha256 for one in build_model_drafts(Results(place).run(LEARN), PublisherChoices("acme"))]
        for place in (trained_results, tmp_path / "moved")
    ]
    assert made[0] == made[1]
    assert len(made[0]) == 2


def test_a_continued_model_says_so_and_does_not_call_its_last_training_all(
    trained_results: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained_results / "runs", tmp_path / "runs")
    here = Results(tmp_path)
    spec = here.run(LEARN).path / "spec.yaml"
    saved = yaml.safe_load(spec.read_text())
    step = {"model": "m", "from_model": "dummy", "run_id": "first", "iteration": 1, "release": "run/umbra/first@1"}
    saved["models"]["v"] |= {"model": "m", "base_model": "dummy", "lineage": [step]}
    spec.write_text(yaml.safe_dump(saved))
    alone, made = build_model_drafts(here.run(LEARN), PublisherChoices("acme"))
    assert alone.release.description == "Model group p of learn, trained from dummy"
    assert made.release.description.startswith("Model group v of learn, continues run/umbra/first@1")
    took = yaml.safe_load(bytes(made.contents["training.yaml"]))
    assert (took["continues"], took["in all"], took["own"]["rollouts"]) == ("run/umbra/first@1", None, 12)
    assert b"It continues `run/umbra/first@1`" in bytes(made.contents["README.md"])


def test_a_run_links_its_parts_its_models_and_what_it_began_with(trained_results: Path) -> None:
    here = Results(trained_results)
    links = {name: build_links(here.run(name), here, "acme", "2") for name in ("learn", "learn-t1", "after", "before")}
    assert [(one.role, one.release) for one in links["learn"]] == [
        ("part", "run/acme/learn-i0@2"), ("part", "run/acme/learn-t1@2"),
        ("output", "model/acme/learn-p@2"), ("output", "model/acme/learn-v@2"),
    ]  # fmt: skip
    assert [one.release for one in links["learn-t1"] if one.role == "parent"] == ["run/acme/learn@2"]
    assert [one.identity for one in links["after"]] == [one.identity for one in links["learn"] if one.role == "output"]
    assert {one.role for one in links["after"]} == {"input"}
    assert links["before"] == ()
    assert build_model_drafts(here.run("after"), PublisherChoices("acme")) == []


@pytest.mark.parametrize("run_id", ["Learn-1", "a" * 120, "A..b", "x_", "run.", "r-" + "1" * 98])
def test_every_runs_id_is_the_name_of_a_release(run_id: str) -> None:
    assert identifier_problem(release_name(run_id)) is None


def test_of_a_path_others_see_the_last_part() -> None:
    names = ["/srv/me/llama-3/", "~/models/x", "./x", "../y", "C:\\models\\z", "org/name", "gpt-4o", "ft:a:b::c"]
    assert [*map(public_model_name, names)] == ["llama-3", "x", "x", "y", "z", "org/name", "gpt-4o", "ft:a:b::c"]
