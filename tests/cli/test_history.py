"""`nip-run history`: sessions in order, from the results folder and from a registry, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner import run
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.registry import Registry
from runner.spec.loader import load_spec
from tests.registry.planted import publish_runs
from tests.support.processes import nip_run_here
from tests.support.training import training_spec


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with a training run and the test of its final model."""
    folder = tmp_path_factory.mktemp("history")
    run(load_spec(training_spec(folder, training={"iterations": 1})), folder / "results", run_id="learn")
    return folder / "results"


@pytest.mark.full
def test_history_lists_sessions_in_order_locally_and_from_a_registry(results: Path, tmp_path: Path) -> None:
    process = nip_run_here("history", "verifier", "--results", results, "--json", cwd=tmp_path)
    local_sessions = json.loads(process.stdout)["sessions"]
    assert [(row["run_id"], row["kind"]) for row in local_sessions] == [
        ("learn", "training"),
        ("learn-t1", "benchmark"),
    ]
    training, benchmark = local_sessions
    assert (training["from"], training["groups"]) == (["dummy"], ["v"])
    assert training["to"] == benchmark["from"]
    assert (
        training["effort"]["rollouts"]
        == training["cumulative"]["rollouts"]
        == benchmark["cumulative"]["rollouts"]
        == 12
    )
    assert training["datapoints"] == 12  # of 18 datapoints, 6 are held out for the test
    assert benchmark["effort"]["rollouts"] == 0
    assert benchmark["accuracy"]["ci_low"] <= benchmark["accuracy"]["value"] <= benchmark["accuracy"]["ci_high"]
    assert benchmark["lineage"][0]["proof"] == "declared"

    registry_folder = str(tmp_path / "registry")
    publish_runs(Registry(FolderTransport(registry_folder)), results, "acme")
    arguments = ("history", training["to"][0], "--results", tmp_path / "none", "--from", registry_folder)
    registry_sessions = json.loads(nip_run_here(*arguments, "--json", cwd=tmp_path).stdout)["sessions"]
    assert [row["published"] for row in registry_sessions] == [["run/acme/learn@1"], ["run/acme/learn-t1@1"]]
    assert [row["effort"] for row in registry_sessions] == [row["effort"] for row in local_sessions]
    merged = json.loads(
        nip_run_here("history", "learn", "--results", results, "--from", registry_folder, "--json", cwd=tmp_path).stdout
    )
    assert [row["run_id"] for row in merged["sessions"]] == [
        "learn",
        "learn-t1",
    ]  # local and published copies are merged
    assert [row["published_in"][0]["where"] for row in merged["sessions"]] == [f"file:{registry_folder}"] * 2
    text_process = nip_run_here(*arguments, cwd=tmp_path)
    assert "12 rollouts" in text_process.stdout
    assert "declared: run/acme/learn@1 (iteration 0)" in text_process.stdout
    assert (
        "how nip-run knows which run trained a model: declared: the run that used the model says so"
        in text_process.stderr
    )


def test_history_suggests_the_nearest_name_and_reports_damaged_releases(results: Path, tmp_path: Path) -> None:
    misspelled = nip_run_here("history", "verifierr", "--results", results, cwd=tmp_path)
    assert (misspelled.returncode, "did you mean 'verifier'" in misspelled.stderr) == (2, True)
    registry_folder = tmp_path / "registry"
    publish_runs(Registry(FolderTransport(str(registry_folder))), results, "acme")
    (registry_folder / "run/acme/learn/1/release.json").write_bytes(b"{}")
    process = nip_run_here(
        "history", "verifier", "--results", tmp_path / "none", "--from", registry_folder, cwd=tmp_path
    )
    assert process.returncode == 0
    assert "run/acme/learn@1" in process.stderr
    assert "learn-t1" in process.stdout
    assert "ancestor learn is not here: the effort of its training is not known" in process.stdout
