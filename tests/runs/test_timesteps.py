"""A run's rollouts as arrays, rebuilt from its journal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import RunError, UsageError
from tests.support.runs import run_spec, table
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec


def test_arrays_have_rollouts_in_the_order_of_the_tables(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=4, rollouts={"per_datapoint": 2}), tmp_path / "results")
    steps, rows = result.timesteps(), table(result.folder.path, "rollouts")
    assert steps.batch_size == (8, 6)
    assert list((~steps["padding"]).sum(axis=1)) == [row["rounds"] for row in rows]
    verifier = steps["agents", "decision"].max(axis=(1, 2), where=~steps["padding"][:, :, None], initial=-1)
    assert set(verifier) <= {0, 1, 2}
    paid = steps["agents", "reward"].sum(axis=1)
    assert np.allclose(np.abs(paid).max(axis=1), 1)


@pytest.mark.full
def test_a_run_that_is_shown_again_gives_the_same_arrays(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    first_arrays = run_spec(path, tmp_path / "results").timesteps()
    second_run = run_spec(path, tmp_path / "results")
    assert second_run.was_finished
    assert np.array_equal(first_arrays["agents", "message"], second_run.timesteps()["agents", "message"])


def test_every_branch_of_a_tree_is_a_rollout(tmp_path: Path) -> None:
    trees = {"num_responses_per_timestep": 2}
    path = spec_file(tmp_path, size=2, rollouts=trees, protocol={"max_message_rounds": 3}, fine_tune=None)
    result = run_spec(path, tmp_path / "results")
    assert result.timesteps().batch_size == (result.manifest.rollouts, 3)


@pytest.mark.full
def test_a_training_run_names_the_runs_that_hold_its_games(tmp_path: Path) -> None:
    result = run_training(training_spec(tmp_path, training={"iterations": 1}), tmp_path / "results")
    with pytest.raises(UsageError, match=rf"its games are separate runs \({result.folder.run_id}-i0"):
        result.timesteps()


def test_arrays_need_a_journal_with_finished_rollouts(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=2), tmp_path / "results")
    result.folder.journal.write_bytes(b"")
    with pytest.raises(RunError, match="no finished rollout"):
        result.timesteps()
    result.folder.journal.unlink()
    with pytest.raises(RunError, match="so its rollouts cannot be read"):
        result.timesteps()
