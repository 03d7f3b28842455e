"""Specs that use the key names of 0.1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunDirectoryError
from runner.results.folder import RunFolder
from runner.results.provenance.input_files import write_inputs
from runner.rollouts.identity import MUTABLE_KEYS
from runner.rollouts.plan import Plan
from runner.spec.experiment import RENAMED_KEYS
from runner.spec.loader import load_spec, load_specs
from runner.spec.schemas import experiment_schema
from tests.support.processes import nip_run
from tests.support.runs import run_spec
from tests.support.specs import spec_file


def has_key(schema: dict[str, Any], key: str) -> bool:
    """Return True if the schema has the dotted key."""
    node: dict[str, Any] = schema
    for part in key.split("."):
        for arm in (node, *node.get("anyOf", ())):
            node = schema["$defs"][arm["$ref"].rpartition("/")[2]] if "$ref" in arm else node
        if part not in node.get("properties", {}):
            return False
        node = node["properties"][part]
    return True


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_schema_has_only_the_new_name(old: str, new: str) -> None:
    assert has_key(experiment_schema(), new)
    assert not has_key(experiment_schema(), old)
    assert old.rpartition(".")[0] == new.rpartition(".")[0]


def test_sweep_points_have_the_new_name(tmp_path: Path) -> None:
    specs = load_specs(spec_file(tmp_path, sweep={"rollouts.most_calls": [7, 8]}, rollouts={"concurrency": 2}))
    assert [dict(spec.point) for spec in specs] == [{"rollouts.max_calls": 7}, {"rollouts.max_calls": 8}]
    assert [spec.experiment.rollouts.max_calls for spec in specs] == [7, 8]
    assert {len(spec.renamed) for spec in specs} == {1}


def test_saved_spec_with_an_old_name_is_the_same_run(tmp_path: Path) -> None:
    plan = Plan(load_spec(spec_file(tmp_path, rollouts={"max_calls": 9})))
    folder = RunFolder(tmp_path / "run")
    write_inputs(plan, folder)
    saved = folder.spec.read_text("utf-8")
    assert "max_calls: 9" in saved
    folder.spec.write_text(saved.replace("max_calls", "most_calls"), "utf-8")
    reloaded = load_spec(folder.spec)
    assert reloaded.experiment == load_spec(folder.spec, ["rollouts.max_calls=9"]).experiment
    assert [job.rollout_id for job in Plan(reloaded).jobs()] == [job.rollout_id for job in plan.jobs()]


def test_old_name_in_a_saved_spec_does_not_count_as_a_difference(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    run = run_spec(path, tmp_path / "results").folder
    run.spec.write_text(run.spec.read_text("utf-8").replace("max_calls", "most_calls"), "utf-8")
    with pytest.raises(RunDirectoryError, match=r"these keys differ: seed\."):
        run_spec(path, tmp_path / "results", "seed=3", "rollouts.max_calls=5", run_id=run.run_id)
    assert "rollouts.max_calls" in MUTABLE_KEYS


@pytest.mark.full
@pytest.mark.parametrize("arguments", [("check",), ("run",), ("render",)])
def test_command_notes_the_new_name_only_on_stderr(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    spec_file(tmp_path, size=2, rollouts={"most_calls": 9})
    arguments = (*arguments, "spec.yaml", *(("verifier",) if arguments == ("render",) else ()), "--json")
    done = nip_run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    (line,) = [line for line in done.stderr.splitlines() if "most_calls" in line]
    assert line.startswith("note: spec.yaml:")
    assert line.endswith(": 'rollouts.most_calls' is now 'rollouts.max_calls'")
    assert "most_calls" not in nip_run(*arguments, "-q", cwd=tmp_path).stderr
