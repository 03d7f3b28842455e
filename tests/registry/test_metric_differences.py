"""Differences in metrics.json: errors for every version, and differences that another version explains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.storage.atomic_files import read_json
from runner.registry.metric_differences import compare_counts, compare_metrics, is_from_0_1
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.version import __version__

Metrics = dict[str, Any]
OLD = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results" / "runs" / "served-c534600bdb"
RECORDED = RunFolder(OLD).manifest()
VERSIONS: dict[str, Manifest] = {
    "0.1.0": RECORDED,
    "another": replace(RECORDED, format=1, version="9.9"),
    "this": replace(RECORDED, format=1, version=__version__),
}


def find_accuracy(metrics: Metrics) -> dict[str, Any]:
    return next(row for row in metrics["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))


def duplicate_metric(metrics: Metrics) -> str:
    metrics["metrics"].insert(0, {**find_accuracy(metrics), "value": 0.99})
    metrics["metrics"][-1].pop("clusters")
    return "metric accuracy: recorded twice"


def remove_name(metrics: Metrics) -> str:
    metrics["metrics"].append({**find_accuracy(metrics), "metric": ["accuracy"]})
    return "metrics.json: a metric has no name"


def replace_list(metrics: Metrics) -> str:
    metrics["metrics"] = {"accuracy": 1}
    return "metrics.json: `metrics` is not a list"


def make_count_boolean(metrics: Metrics) -> str:
    find_accuracy(metrics)["clusters"] = True
    return "metric accuracy, clusters: recorded true, recomputed "


def make_count_float(metrics: Metrics) -> str:
    row = find_accuracy(metrics)
    row["n"] = float(row["n"])
    return "metric accuracy, n: recorded "


def add_unknown_metric(metrics: Metrics) -> str:
    metrics["metrics"].append({**find_accuracy(metrics), "agent": "accuracy", "metric": "accuracy of accuracy"})
    return "metric accuracy of accuracy of accuracy: recorded, but the journal gives no such metric"


def change_interval(metrics: Metrics) -> str:
    find_accuracy(metrics)["ci_low"] = 0.99
    return "metric accuracy, ci_low: recorded 0.99, recomputed "


def remove_metric(metrics: Metrics) -> str:
    metrics["metrics"].remove(find_accuracy(metrics))
    return "not recorded: accuracy"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("forge", "versions_with_error"),
    [
        (duplicate_metric, VERSIONS),
        (remove_name, VERSIONS),
        (replace_list, VERSIONS),
        (make_count_boolean, VERSIONS),
        (make_count_float, VERSIONS),
        (add_unknown_metric, ("another", "this")),
        (change_interval, ("another", "this")),
        (remove_metric, ("this",)),
    ],
)
def test_changed_metric_is_reported_according_to_the_recorded_version(
    forge: Callable[[Metrics], str], versions_with_error: tuple[str, ...], version: str
) -> None:
    recomputed = read_json(OLD / "metrics.json")
    recorded = copy.deepcopy(recomputed)
    expected = forge(recorded)
    differences = compare_metrics(recorded, recomputed, VERSIONS[version])
    assert any(line.startswith(expected) for line in differences.errors) == (version in versions_with_error), (
        differences
    )
    assert bool(differences.errors or differences.version_notes)
    assert compare_metrics(recomputed, recomputed, VERSIONS[version]).version_notes == ()


def test_missing_counts_are_accepted_only_from_0_1_0() -> None:
    without_format = replace(RECORDED, version=__version__)
    assert (is_from_0_1(RECORDED), is_from_0_1(without_format)) == (True, False)
    for manifest, expected in ((RECORDED, []), (without_format, [("completions", None, 3)])):
        assert list(compare_counts(replace(manifest, completions=None), {"completions": 3})) == expected
    assert list(compare_counts(replace(RECORDED, rollouts=True), {"rollouts": 1})) == [("rollouts", True, 1)]
