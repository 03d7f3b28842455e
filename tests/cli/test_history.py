"""`nip-run history`: sessions in order, from here and from a registry, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.api import run
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.registry import Registry
from runner.spec.loader import load_spec
from tests.registry.planted import published_runs
from tests.support.processes import nip_run_here
from tests.support.training import training_spec


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run, and a test of what it came to."""
    folder = tmp_path_factory.mktemp("history")
    run(load_spec(training_spec(folder, training={"iterations": 1})), folder / "results", run_id="learn")
    return folder / "results"


@pytest.mark.full
def test_the_sessions_of_an_agent_are_told_in_order_from_here_and_from_a_registry(
    results: Path, tmp_path: Path
) -> None:
    shown = nip_run_here("history", "verifier", "--results", results, "--json", cwd=tmp_path)
    here = json.loads(shown.stdout)["sessions"]
    assert [(row["run_id"], row["kind"]) for row in here] == [("learn", "training"), ("learn-t1", "benchmark")]
    learnt, tested = here
    assert (learnt["from"], learnt["groups"]) == (["dummy"], ["v"])
    assert learnt["to"] == tested["from"]
    assert learnt["effort"]["rollouts"] == learnt["cumulative"]["rollouts"] == tested["cumulative"]["rollouts"] == 12
    assert learnt["datapoints"] == 12  # of the 18 in its inputs it is tested on six
    assert tested["effort"]["rollouts"] == 0
    assert tested["accuracy"]["ci_low"] <= tested["accuracy"]["value"] <= tested["accuracy"]["ci_high"]
    assert tested["lineage"][0]["proof"] == "declared"

    where = str(tmp_path / "registry")
    published_runs(Registry(FolderTransport(where)), results, "acme")
    words = ("history", learnt["to"][0], "--results", tmp_path / "none", "--from", where)
    there = json.loads(nip_run_here(*words, "--json", cwd=tmp_path).stdout)["sessions"]
    assert [row["published"] for row in there] == [["run/acme/learn@1"], ["run/acme/learn-t1@1"]]
    assert [row["effort"] for row in there] == [row["effort"] for row in here]
    both = json.loads(
        nip_run_here("history", "learn", "--results", results, "--from", where, "--json", cwd=tmp_path).stdout
    )
    assert [row["run_id"] for row in both["sessions"]] == ["learn", "learn-t1"]  # one run, wherever it is
    assert [row["published_in"][0]["where"] for row in both["sessions"]] == [f"file:{where}"] * 2
    text = nip_run_here(*words, cwd=tmp_path)
    assert "12 rollouts" in text.stdout
    assert "declared: run/acme/learn@1 (iteration 0)" in text.stdout
    assert "how the maker of a model is known: declared: by its name" in text.stderr


def test_an_unknown_name_gets_the_nearest_and_damage_is_named(results: Path, tmp_path: Path) -> None:
    wrong = nip_run_here("history", "verifierr", "--results", results, cwd=tmp_path)
    assert (wrong.returncode, "did you mean 'verifier'" in wrong.stderr) == (2, True)
    where = tmp_path / "registry"
    published_runs(Registry(FolderTransport(str(where))), results, "acme")
    (where / "run/acme/learn/1/release.json").write_bytes(b"{}")
    done = nip_run_here("history", "verifier", "--results", tmp_path / "none", "--from", where, cwd=tmp_path)
    assert done.returncode == 0
    assert "run/acme/learn@1" in done.stderr
    assert "learn-t1" in done.stdout
    assert "ancestor learn is not here: the effort of its training is not known" in done.stdout
