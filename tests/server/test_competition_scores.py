"""What is told of a score: rounded, and before closing the accuracy alone."""

from __future__ import annotations

from typing import Any

import pytest

from runner.server.competitions.scores import ACCURACY, step_of, told


def row(metric: str, value: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": 60, "clusters": 30}


@pytest.mark.parametrize(("rows", "step"), [(1, 1.0), (4, 0.5), (24, 0.1), (100, 0.02), (1_000, 0.002), (9_999, 0.001)])
def test_a_step_is_two_rows_or_more(rows: int, step: float) -> None:
    assert step_of(rows) == step
    assert step * rows >= 2 or rows == 1


def test_a_number_is_rounded_and_its_interval_outwards() -> None:
    part = {"rows": 30, "interval": "95%", "metrics": [row(ACCURACY, 0.7333, 0.5501, 0.8512)]}
    (found,) = told(part, is_closed=False)["metrics"]
    assert (found["value"], found["ci_low"], found["ci_high"]) == (0.7, 0.5, 0.9)
    part["metrics"] = [row(ACCURACY, 0.3, 0.3, None)]
    (found,) = told(part, is_closed=False)["metrics"]
    assert (found["value"], found["ci_low"], found["ci_high"]) == (0.3, 0.3, None)


def test_a_metric_that_few_rows_may_decide_is_told_after_closing_and_without_its_count() -> None:
    part = {"rows": 100, "interval": "95%", "metrics": [row(ACCURACY, 0.5), row("precision", 1.0)]}
    assert [one["metric"] for one in told(part, is_closed=False)["metrics"]] == [ACCURACY]
    counts = {one["metric"]: one["n"] for one in told(part, is_closed=True)["metrics"]}
    assert counts == {ACCURACY: 60, "precision": None}
