"""Runs of 0.1.0, which started every cycle with the verifier, resume so if the protocol file has another order.

0.1.0 hashed the effective parameters: its run has the identity of a file with `verifier_first: true`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compatibility.old import run_command
from tests.game.protocols.test_schedule import PROVER_FIRST, VERIFIER_FIRST
from tests.support.runs import only_run, table
from tests.support.specs import spec_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spec with its own protocol, and the run that 0.1.0 would have made of it."""
    spec = spec_file(tmp_path, size=2, protocol=None)
    data = {**json.loads(spec.read_text()), "protocol": {"use": "own.yaml"}}
    spec.write_text(json.dumps(data))
    (tmp_path / "prompts").mkdir()
    for name in ("prover", "verifier"):
        (tmp_path / "prompts" / f"{name}.jinja").write_text("{{ accept }} {{ reject }}")
    spec.write_text(json.dumps({**data, "prompts": "prompts"}))
    (tmp_path / "own.yaml").write_text(VERIFIER_FIRST)
    assert run_command("run", "spec.yaml", cwd=tmp_path).code == 0
    (tmp_path / "own.yaml").write_text(PROVER_FIRST)
    return tmp_path


def test_old_run_resumes_with_the_verifier_first_and_reports_it(folder: Path) -> None:
    run = only_run(folder / "results")
    result = run_command("run", "spec.yaml", "rollouts.per_datapoint=2", cwd=folder)
    assert result.code == 0, result.err
    assert f"run {run.name} started with protocol.verifier_first=true and resumes with this value" in result.err
    assert only_run(folder / "results") == run
    first_agents = [row["agent"] for row in table(run, "messages") if row["round"] == 0]
    assert (len(table(run, "rollouts")), set(first_agents)) == (4, {"verifier"})
    assert run_command("check", str(run), "--json", cwd=folder).json[0]["run_id"] == run.name


@pytest.mark.full
def test_new_run_starts_with_the_first_agent_of_the_cycle(folder: Path) -> None:
    old = only_run(folder / "results")
    assert run_command("run", "spec.yaml", "--again", cwd=folder).code == 0
    (new,) = set((folder / "results" / "runs").iterdir()) - {old}
    assert {row["agent"] for row in table(new, "messages") if row["round"] == 0} == {"prover"}
    for run in (old, new):
        assert run_command("check", str(run), "--json", cwd=folder).json[0]["run_id"] == run.name


@pytest.mark.full
def test_replay_of_an_old_run_keeps_its_order_of_turns(folder: Path) -> None:
    run = only_run(folder / "results")
    result = run_command("run", "spec.yaml", "--replay", run.name, cwd=folder)
    assert result.code == 0, result.err
    assert f"the replay of run {run.name} uses protocol.verifier_first=true, because the run started" in result.err
