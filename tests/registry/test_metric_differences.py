"""What of metrics.json is wrong, whichever version recorded it, and what only another version told otherwise."""

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


def accuracy(said: Metrics) -> dict[str, Any]:
    return next(row for row in said["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))


def stands_twice(said: Metrics) -> str:
    said["metrics"].insert(0, {**accuracy(said), "value": 0.99})
    said["metrics"][-1].pop("clusters")
    return "metric accuracy: recorded twice"


def has_no_name(said: Metrics) -> str:
    said["metrics"].append({**accuracy(said), "metric": ["accuracy"]})
    return "metrics.json: a metric has no name"


def is_no_list(said: Metrics) -> str:
    said["metrics"] = {"accuracy": 1}
    return "metrics.json: `metrics` is not a list"


def is_a_boolean(said: Metrics) -> str:
    accuracy(said)["clusters"] = True
    return "metric accuracy, clusters: recorded true, recomputed "


def is_no_whole_number(said: Metrics) -> str:
    row = accuracy(said)
    row["n"] = float(row["n"])
    return "metric accuracy, n: recorded "


def has_another_agents_name(said: Metrics) -> str:
    said["metrics"].append({**accuracy(said), "agent": "accuracy", "metric": "accuracy of accuracy"})
    return "metric accuracy of accuracy of accuracy: recorded, but the journal gives no such metric"


def has_another_interval(said: Metrics) -> str:
    accuracy(said)["ci_low"] = 0.99
    return "metric accuracy, ci_low: recorded 0.99, recomputed "


def is_not_there(said: Metrics) -> str:
    said["metrics"].remove(accuracy(said))
    return "not recorded: accuracy"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("forge", "wrong_in"),
    [
        (stands_twice, VERSIONS),
        (has_no_name, VERSIONS),
        (is_no_list, VERSIONS),
        (is_a_boolean, VERSIONS),
        (is_no_whole_number, VERSIONS),
        (has_another_agents_name, ("another", "this")),
        (has_another_interval, ("another", "this")),
        (is_not_there, ("this",)),
    ],
)
def test_a_metric_that(forge: Callable[[Metrics], str], wrong_in: tuple[str, ...], version: str) -> None:
    again = read_json(OLD / "metrics.json")
    said = copy.deepcopy(again)
    expected = forge(said)
    found = compare_metrics(said, again, VERSIONS[version])
    assert any(line.startswith(expected) for line in found.errors) == (version in wrong_in), found
    assert bool(found.errors or found.version_notes)
    assert compare_metrics(again, again, VERSIONS[version]).version_notes == ()


def test_only_0_1_0_is_read_as_0_1_0_and_left_counts_out() -> None:
    without_format = replace(RECORDED, version=__version__)
    assert (is_from_0_1(RECORDED), is_from_0_1(without_format)) == (True, False)
    for manifest, wrong in ((RECORDED, []), (without_format, [("completions", None, 3)])):
        assert list(compare_counts(replace(manifest, completions=None), {"completions": 3})) == wrong
    assert list(compare_counts(replace(RECORDED, rollouts=True), {"rollouts": 1})) == [("rollouts", True, 1)]
