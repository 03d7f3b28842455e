"""The figure of the differences between two runs, as on the page of a report that compares them."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.errors import UsageError
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.rows import forest
from runner.pages.figures.figure import Encoding, Figure
from runner.results.comparison.comparison import compare_by_metric
from runner.results.comparison.systems import SystemReader
from runner.results.folder import RunFolder
from runner.results.metric_definitions import METRICS, Show, metrics_shown


def differences(folders: Sequence[RunFolder], _: str) -> Figure:
    """Plot the differences of the shares of two runs: the second run minus the first.

    Raises:
        UsageError: there are not two runs, or they cannot be compared.
    """
    if len(folders) != 2:
        raise UsageError(f"the figure differences shows two runs, not {len(folders)}; name two runs")
    shares = [name for name in metrics_shown(Show.COMPARISON) if METRICS[name].is_share]
    reader = SystemReader(metrics=metrics_shown(Show.COMPARISON))
    [comparisons] = compare_by_metric([(folders[0], folders[1])], shares, reader)
    if isinstance(comparisons, UsageError):
        raise comparisons
    points = [ChartEstimate(row.metric, row.difference, row.ci_low, row.ci_high) for row in comparisons]
    names = (
        "metric", "base", "other", "base_value", "other_value", "difference", "ci_low", "ci_high", "p", "datapoints",
    )  # fmt: skip
    rows = [{name: getattr(row, name) for name in names} for row in comparisons]
    base, other = (folder.run_id for folder in folders)
    axis = f"{other} minus {base}"
    return Figure(
        "differences", f"Differences: {axis}", rows,
        Encoding("points", "difference", "metric", "ci_low", "ci_high", None, axis, ""),
        lambda frame: forest(
            points, frame, reference=0.0, reference_name="no difference", axis=axis
        ),
        tuple(dict.fromkeys(note for row in comparisons for note in row.notes)),
    )  # fmt: skip
