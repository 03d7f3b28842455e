"""What is told of a score: one rounded number, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from runner.results.metric_definitions import ACCURACY, METRICS
from runner.results.streaming_means import ClusterSums
from runner.server.competitions.scores import INTERVAL_METHOD, build_published_score, rounding_step
from runner.server.web.pages.competitions import format_interval
from runner.statistics.simple_means import Mean


def part(rows: int, right: set[int], plays: int = 1, groups: int | None = None) -> dict[str, Any]:
    """The exact accuracy of verdicts that are right on these rows, as a run's metrics have it."""
    tally = ClusterSums()
    for row in range(rows):
        for _ in range(plays):
            tally.add(str(row if groups is None else row % groups), (float(row in right),))
    mean = Mean(METRICS[ACCURACY].rule, tally.mean, tally.stderr, tally.n, len(tally.clusters), groups is not None)
    ends, _ = mean.share_interval()
    low, high = ends or (None, None)
    exact = {"metric": ACCURACY, "value": mean.value, "ci_low": low, "ci_high": high, "n": mean.n}
    return {"rows": rows, "interval": "exact", "metrics": [{**exact, "clusters": mean.clusters}]}


@pytest.mark.parametrize(("rows", "step"), [(1, 1.0), (4, 0.5), (24, 0.1), (100, 0.02), (1_000, 0.002), (9_999, 0.001)])
def test_a_step_is_two_rows_or_more(rows: int, step: float) -> None:
    assert rounding_step(rows) == step
    assert step * rows >= 2 or rows == 1


@pytest.mark.parametrize(("rows", "plays", "groups"), [(24, 1, None), (60, 3, None), (60, 1, 20)])
def test_nothing_that_is_told_differs_where_the_rounded_number_does_not(
    rows: int, plays: int, groups: int | None
) -> None:
    by_value: dict[float, set[str]] = {}
    for count in range(rows + 1):
        # Right on the first rows, and on every so manieth: within groups that balance each other, and that do not.
        spread = {at * rows // max(count, 1) for at in range(count)}
        for right in (set(range(count)), spread):
            found = build_published_score(part(rows, right, plays, groups))
            by_value.setdefault(found["metrics"][0]["value"], set()).add(str(found))
    assert all(len(alike) == 1 for alike in by_value.values())
    assert len(by_value) == round(1 / rounding_step(rows)) + 1
    assert str(build_published_score(part(rows, set(), plays, groups))) == str(
        build_published_score(part(rows, {7}, plays, groups))
    )


@pytest.mark.parametrize("count", [0, 1, 31, 50, 99, 100])
def test_the_interval_has_the_exact_one_in_it_and_says_how_it_was_made(count: int) -> None:
    exact = part(100, set(range(count)))
    found = build_published_score(exact)
    (one,), (full,) = found["metrics"], exact["metrics"]
    assert found["interval"] == INTERVAL_METHOD
    assert 0 <= one["ci_low"] <= full["ci_low"] < full["ci_high"] <= one["ci_high"] <= 1
    assert one["ci_low"] <= one["value"] <= one["ci_high"]
    assert one["ci_high"] - one["ci_low"] < full["ci_high"] - full["ci_low"] + 2 * rounding_step(100)


def test_one_group_has_no_interval_and_other_metrics_are_not_told() -> None:
    said = part(4, {0, 1}, groups=1)
    said["metrics"] += [{**said["metrics"][0], "metric": name} for name in ("precision", "accuracy_1", "auroc_stated")]
    (found,) = build_published_score(said)["metrics"]
    assert found == {"metric": ACCURACY, "value": 0.5, "ci_low": None, "ci_high": None, "n": 4, "clusters": 1}


def test_a_page_shows_an_interval_to_three_places_and_never_narrower() -> None:
    assert format_interval(0.599237, 0.992916) == "0.599–0.993"
    assert format_interval(0.6291, 1.0) == "0.629–1"
