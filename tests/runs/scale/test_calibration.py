"""What a merge costs, by two that are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.runs.planning.calibration import CalibrationRun, MergeCost, scratch
from runner.spec.loader import load_spec
from tests.support.specs import spec_file


@pytest.mark.parametrize(
    ("small", "large", "cost"),
    [
        ((300, 0.9), (6_300, 3.3), MergeCost(0.78, 4e-4)),
        ((300, 0.9), (6_300, 0.63), MergeCost(0.0, 1e-4)),  # the machine was busier during the small one
        ((300, 0.1), (900, 3.6), MergeCost(0.0, 4e-3)),  # and during the large one
        ((300, 0.9), (300, 1.2), MergeCost(0.0, 4e-3)),
    ],
)
def test_a_merge_has_a_part_that_is_there_once_and_neither_part_is_below_nothing(
    small: tuple[int, float], large: tuple[int, float], cost: MergeCost
) -> None:
    found = MergeCost.of(small, large)
    assert found.once == pytest.approx(cost.once)
    assert found.call == pytest.approx(cost.call)
    assert found.once >= 0


@pytest.mark.gate
def test_a_merge_is_measured_also_where_the_first_datapoints_are_all_of_one_group(tmp_path: Path) -> None:
    fixed = {"min_message_rounds": 5, "max_message_rounds": 5}
    path = spec_file(tmp_path, size=400, fine_tune=None, protocol=fixed, dataset={"group_by": "label"})
    rows = sorted(map(json.loads, (tmp_path / "data.jsonl").read_text().splitlines()), key=lambda row: row["label"])
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plan = Plan(load_spec(path))
    with scratch(Results(tmp_path / "results")) as results:
        calibration = CalibrationRun(plan, results, {}, seconds=0.02)
        assert {point.group for point in plan.points[: 2 * calibration.first.games]} == {"0"}
        found = calibration.of_merge()
    assert found.once >= 0
    assert found.call >= 0
    assert found.once + found.call > 0
