"""`training.from` continues from the models of another run, local or fetched, and records their lineage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner import load_spec
from runner.base.errors import SpecError
from runner.models.settings import NOT_PUBLISHED
from runner.registry.lineage.links import build_links, collect_public_group_facts
from runner.results.leaderboard.results_folder import Results
from runner.runs.finished.result import FinishedRun
from runner.spec.origin import MARKER
from tests.support.training import run_training, training_spec

RELEASE = {"release": "run/acme/learn@1", "sha256": "ab" * 32, "where": "file:/elsewhere"}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A training run of one iteration that the other runs continue."""
    folder = tmp_path_factory.mktemp("first")
    return run_training(training_spec(folder, training={"iterations": 1}), folder / "results")


def results_folder_of(result: FinishedRun) -> Path:
    return Results.of(result.folder).path


def write_further_spec(folder: Path, source: Any, **changes: Any) -> Path:
    training = {"from": source, "iterations": 1, **changes.pop("training", {})}
    return training_spec(folder, name="further", training=training, **changes)


def refusal_message(folder: Path, results: Path, source: Any, **changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(write_further_spec(folder, source, **changes), results=results)
    (problem,) = caught.value.problems
    assert problem.key == "training.from"
    assert "spec.yaml:" in str(problem)
    return problem.message


@pytest.mark.full
def test_training_continues_from_a_run_and_extends_its_lineage(first_run: FinishedRun, tmp_path: Path) -> None:
    path = write_further_spec(tmp_path, first_run.run_id)
    spec = load_spec(path, results=results_folder_of(first_run))
    assert spec.experiment.training is not None
    assert spec.experiment.training.from_ is None  # the models contain its effect
    first_state = json.loads((first_run.folder.path / "state.json").read_text())
    assert {name: group.model for name, group in spec.experiment.models.items()} == {
        name: state["model"] for name, state in first_state.items()
    }
    result = run_further_training(spec, results_folder_of(first_run))
    for group in collect_public_group_facts(result.folder):
        (old,), (new,) = group["lineage"], group["made"]
        assert (old["run_id"], new["run_id"]) == (first_run.run_id, result.run_id)
        assert new["from_model"] == old["model"] == group["model"]
    new_state = json.loads((result.folder.path / "state.json").read_text())
    assert [step["run_id"] for step in new_state["v"]["lineage"]] == [first_run.run_id, result.run_id]
    saved = yaml.safe_load(result.folder.spec.read_text())
    assert saved["training"]["from"] is None
    assert saved["models"]["v"]["lineage"][0]["run_id"] == first_run.run_id
    inputs = [
        link
        for link in build_links(result.folder, Results(results_folder_of(first_run)), "acme")
        if link.role == "input"
    ]
    assert [link.identity for link in inputs] == [f"dummy:{first_state[name]['model']}" for name in ("p", "v")]


def run_further_training(spec: Any, results: Path) -> FinishedRun:
    from runner import run

    return run(spec, results)


@pytest.mark.full
def test_saved_spec_of_a_continued_training_does_not_need_the_first_run(first_run: FinishedRun, tmp_path: Path) -> None:
    results = tmp_path / "results"
    result = run_further_training(
        load_spec(write_further_spec(tmp_path, str(first_run.folder.path)), results=results), results
    )
    saved = yaml.safe_load(result.folder.spec.read_text())
    assert saved["training"]["from"] is None
    assert saved["models"]["v"]["lineage"][0]["run_id"] == first_run.run_id
    assert run_further_training(load_spec(result.folder.path, results=results), results).was_finished


def write_fetched_run(first_run: FinishedRun, folder: Path, **served: Any) -> Path:
    """Write a folder as `nip-run get` does: a marker, a spec that extends the run's spec, and the run in `data/`."""
    shutil.copytree(first_run.folder.path, folder / "data")
    (folder / MARKER).write_text(json.dumps(RELEASE), "utf-8")
    (folder / "spec.yaml").write_text("extends: [data/spec.yaml]\n", "utf-8")
    file = folder / "data" / "spec.yaml"
    spec = yaml.safe_load(file.read_text())
    spec["models"] = {name: {**group, **served} for name, group in spec["models"].items()}
    file.write_text(yaml.safe_dump(spec))
    return folder


@pytest.mark.full
def test_training_from_a_fetched_run_records_its_release(first_run: FinishedRun, tmp_path: Path) -> None:
    write_fetched_run(first_run, tmp_path / "theirs")
    spec = load_spec(write_further_spec(tmp_path / "mine", "../theirs"), results=tmp_path / "results")
    assert spec.got_from == {"release": RELEASE["release"], "sha256": RELEASE["sha256"]}
    result = run_further_training(spec, tmp_path / "results")
    links = [link for link in build_links(result.folder, Results(tmp_path / "results"), "me") if link.role == "input"]
    assert {(link.release, link.sha256) for link in links} == {(RELEASE["release"], RELEASE["sha256"])}
    state = json.loads((result.folder.path / "state.json").read_text())
    assert [step["release"] for step in state["v"]["lineage"]] == [RELEASE["release"], None]


def test_server_and_key_of_a_fetched_run_are_not_used(first_run: FinishedRun, tmp_path: Path) -> None:
    """Otherwise, continuing from a fetched run would send the user's key to the publisher's host."""
    write_fetched_run(
        first_run, tmp_path / "theirs", provider="openai", base_url="https://evil.example/v1", api_key_env="HOME"
    )
    own_model = {"provider": "openai", "base_url": "http://127.0.0.1:9/v1"}
    manual_training = {"trainers": {"p": {"backend": "files"}, "v": {"backend": "files"}}}
    path = write_further_spec(
        tmp_path / "mine", "../theirs", models={"p": own_model, "v": own_model}, training=manual_training
    )
    spec = load_spec(path, results=tmp_path)
    for group in spec.experiment.models.values():
        assert (group.base_url, group.api_key_env) == (own_model["base_url"], None)
    no_address = {"provider": "openai"}
    path = write_further_spec(
        tmp_path / "mine", "../theirs", models={"p": no_address, "v": no_address}, training=manual_training
    )
    groups = load_spec(path, results=tmp_path).experiment.models.values()
    assert {(group.base_url, group.api_key_env) for group in groups} == {(NOT_PUBLISHED, None)}


def test_invalid_source_of_a_training_is_refused_at_its_key(first_run: FinishedRun, tmp_path: Path) -> None:
    results = results_folder_of(first_run)
    assert "no run" in refusal_message(tmp_path, results, "nothing-of-the-kind")
    assert "no iteration 3" in group_refusal_message(tmp_path, results, f"{first_run.run_id}@i3")
    assert "nip-run get run/acme/learn@1 DIR" in refusal_message(tmp_path, results, "run/acme/learn@1")
    assert "the model's group is unclear" in refusal_message(tmp_path, results, "acme/model@1")
    assert "has trained no model" in refusal_message(tmp_path, results, f"{first_run.run_id}-i0")
    frozen = {"agents": {"prover": {"freeze": True}}, "training": {"trainers": {"p": None}}}
    changes = {**frozen, "models": {"v": {"model": "mine"}}}
    assert "models.v.model also sets the model" in refusal_message(tmp_path, results, "acme/model@1", **changes)
    assert "remove one of the two" in refusal_message(
        tmp_path, results, first_run.run_id, models={"v": {"from_run": first_run.run_id}}
    )


def group_refusal_message(folder: Path, results: Path, source: str) -> str:
    """Return the first message if each group is refused separately."""
    with pytest.raises(SpecError) as caught:
        load_spec(write_further_spec(folder, source), results=results)
    assert {problem.key for problem in caught.value.problems} == {"models.p.from_run", "models.v.from_run"}
    return caught.value.problems[0].message


def test_training_from_is_refused_in_a_benchmark(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="works only with `kind: training`"):
        load_spec(training_spec(tmp_path, kind="benchmark", training={"from": "x"}))
