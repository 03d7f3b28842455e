"""The figure `learning_curve`: test results of training runs by iteration, pooled over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.base.errors import UsageError
from runner.base.text import comma_join, counted
from runner.pages.charts.curve import Series, curve
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.figures.figure import Encoding, Figure
from runner.pages.figures.systems import FigureSystem, group_systems, pooled_metrics, sample_notes
from runner.results.folder import RunFolder
from runner.results.metric_definitions import RANKING_METRIC
from runner.training.summary import progress_summary


def learning_curve(folders: Sequence[RunFolder], _: str) -> Figure:
    """Return a figure with a line for each trained system, and the pooled interval of each test as a band.

    Raises:
        UsageError: a run is not a training run, or has no test yet.
    """
    manifests = [folder.manifest() for folder in folders]
    not_training = [manifest.run_id for manifest in manifests if not manifest.is_training_run]
    if not_training:
        advice = "name only training runs for a learning curve (`nip-run runs` lists all runs)"
        raise UsageError(f"{comma_join(not_training)}: not a training run; {advice}")
    tests = {folder.run_id: _tests(folder) for folder in folders}
    untested = [run_id for run_id, finished_tests in tests.items() if not finished_tests]
    if untested:
        raise UsageError(
            f"{comma_join(untested)}: no test is finished yet; `nip-run show {untested[0]}` prints the next step"
        )
    rows, series = [], []
    systems = group_systems(folders, manifests)
    for system in systems:
        points = []
        for iteration in sorted({number for folder in system.folders for number in tests[folder.run_id]}):
            row = _pooled_test(system, iteration, tests)
            rows.append({**system.facts(), "iteration": iteration, **row})
            estimate = ChartEstimate.of("", row, f"n {row['n']}, {counted(row['seeds'], 'seed')}")
            points.append((float(iteration), estimate))
        series.append(Series(system.name, points))
    seeds = max(row["seeds"] for row in rows)
    note = f"mean and 95 % interval, {seeds} seeds pooled" if seeds > 1 else "mean and 95 % interval"
    encoding = Encoding("lines", "iteration", "value", "ci_low", "ci_high", "system", "iteration", RANKING_METRIC)
    return Figure(
        "learning_curve", "Learning curve", rows, encoding,
        lambda frame: curve(series, frame, domain=(0.0, 1.0), note=note),
        sample_notes(systems),
    )  # fmt: skip


def _tests(folder: RunFolder) -> dict[int, Mapping[str, Any]]:
    """Return the finished tests of a training run, by the iteration that follows the test."""
    metrics = folder.read_metrics() if folder.metrics.is_file() else progress_summary(folder)
    return {test["iteration"]: test for test in metrics["tests"]}


def _pooled_test(
    system: FigureSystem, iteration: int, tests: Mapping[str, Mapping[int, Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the pooled result of all seeds that were tested before an iteration."""
    tested = [
        (folder, tests[folder.run_id][iteration]) for folder in system.folders if iteration in tests[folder.run_id]
    ]
    facts = {"tests": [test["run_id"] for _, test in tested], "seeds": len(tested)}
    names = ("value", "ci_low", "ci_high", "n", "clusters")
    if len(tested) == 1:
        return {**{name: tested[0][1]["accuracy"][name] for name in names}, **facts}
    parts = [folder.sibling(test["run_id"]) for folder, test in tested]
    value = pooled_metrics(
        FigureSystem(system.name, tuple(parts), tuple(part.manifest() for part in parts)), [RANKING_METRIC]
    )[RANKING_METRIC]
    return {**{name: getattr(value, name) for name in names}, "between_seeds": value.between, **facts}
