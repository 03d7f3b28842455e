"""Published scores: one rounded number, and only what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from runner.results.metric_computation import ClusterSums
from runner.results.metric_definitions import ACCURACY, METRICS
from runner.server.competitions.scores import INTERVAL_METHOD, build_published_score, effective_groups, rounding_step
from runner.server.web.pages.competitions import format_interval
from runner.statistics.simple_means import Mean


def make_exact_part(rows: int, right: set[int], repeats: int = 1, groups: int | None = None) -> dict[str, Any]:
    """Return a part's exact metrics if the verdicts are right on these rows."""
    sums = ClusterSums()
    for row in range(rows):
        for _ in range(repeats):
            sums.add(str(row if groups is None else row % groups), (float(row in right),))
    mean = Mean(METRICS[ACCURACY].rule, sums.mean, sums.stderr, sums.n, len(sums.clusters), groups is not None)
    ends, _ = mean.share_interval()
    low, high = ends or (None, None)
    exact = {"metric": ACCURACY, "value": mean.value, "ci_low": low, "ci_high": high, "n": mean.n}
    return {"rows": rows, "interval": "exact", "metrics": [{**exact, "clusters": mean.clusters}]}


@pytest.mark.parametrize(("rows", "step"), [(1, 1.0), (4, 0.5), (24, 0.1), (100, 0.02), (1_000, 0.002), (9_999, 0.001)])
def test_rounding_step_covers_at_least_two_rows(rows: int, step: float) -> None:
    assert rounding_step(rows) == step
    assert step * rows >= 2 or rows == 1


@pytest.mark.parametrize(("rows", "repeats", "groups"), [(24, 1, None), (60, 3, None), (60, 1, 20)])
def test_equal_rounded_scores_have_equal_published_details(rows: int, repeats: int, groups: int | None) -> None:
    by_value: dict[float, set[str]] = {}
    for count in range(rows + 1):
        # Right on the first rows, or on evenly spread rows: this varies the balance between groups.
        spread = {index * rows // max(count, 1) for index in range(count)}
        for right in (set(range(count)), spread):
            score = build_published_score(make_exact_part(rows, right, repeats, groups))
            by_value.setdefault(score["metrics"][0]["value"], set()).add(str(score))
    assert all(len(scores) == 1 for scores in by_value.values())
    assert len(by_value) == round(1 / rounding_step(rows)) + 1
    assert str(build_published_score(make_exact_part(rows, set(), repeats, groups))) == str(
        build_published_score(make_exact_part(rows, {7}, repeats, groups))
    )


@pytest.mark.parametrize("count", [0, 1, 31, 50, 99, 100])
def test_published_interval_contains_the_exact_one_and_names_its_method(count: int) -> None:
    exact = make_exact_part(100, set(range(count)))
    published = build_published_score(exact)
    (rounded,), (exact_row,) = published["metrics"], exact["metrics"]
    assert published["interval"] == INTERVAL_METHOD
    assert 0 <= rounded["ci_low"] <= exact_row["ci_low"] < exact_row["ci_high"] <= rounded["ci_high"] <= 1
    assert rounded["ci_low"] <= rounded["value"] <= rounded["ci_high"]
    assert rounded["ci_high"] - rounded["ci_low"] < exact_row["ci_high"] - exact_row["ci_low"] + 2 * rounding_step(100)


def test_single_group_has_no_interval_and_only_accuracy_is_published() -> None:
    exact = make_exact_part(4, {0, 1}, groups=1)
    exact["metrics"] += [
        {**exact["metrics"][0], "metric": name} for name in ("precision", "accuracy_1", "auroc_stated")
    ]
    (row,) = build_published_score(exact)["metrics"]
    assert row == {"metric": ACCURACY, "value": 0.5, "ci_low": None, "ci_high": None, "n": 4, "clusters": 1}


def test_interval_of_a_part_with_one_large_group_is_wider_than_that_of_equal_groups() -> None:
    """If half of the rows are alike, 30 groups tell as little as four."""
    assert effective_groups([2] * 30) == 30
    part = make_exact_part(60, set(range(36)), groups=30)
    (equal,) = build_published_score({**part, "effective_groups": effective_groups([2] * 30)})["metrics"]
    (unequal,) = build_published_score({**part, "effective_groups": effective_groups([31] + [1] * 29)})["metrics"]
    assert build_published_score(part)["metrics"] == [equal]
    assert unequal["clusters"] == 30
    assert unequal["ci_high"] - unequal["ci_low"] > 2 * (equal["ci_high"] - equal["ci_low"])
    (single,) = build_published_score({**part, "effective_groups": effective_groups([59, 1])})["metrics"]
    assert (single["value"], single["ci_low"], single["ci_high"]) == (equal["value"], None, None)


def test_page_rounds_intervals_outward_to_three_places() -> None:
    assert format_interval(0.599237, 0.992916) == "0.599–0.993"
    assert format_interval(0.6291, 1.0) == "0.629–1"
