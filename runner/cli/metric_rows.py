"""The metrics of a run as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.cli.output import with_interval

COLUMNS = ("of", "metric", "value [95% interval]", "n", "clusters")


def metric_rows(metrics: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """A row for each metric that says something.

    `decision` is the mean of 0 (reject), 1 (accept) and 2 (none): with a game that was not decided, it is no share.
    """
    outcomes: Mapping[str, int] = metrics["outcomes"]
    undecided = sum(outcomes.values()) - outcomes.get("decided", 0)
    return [
        (m["agent"] or "game", m["metric"], with_interval(m["value"], m["ci_low"], m["ci_high"]), m["n"], m["clusters"])
        for m in metrics["metrics"]
        if not (undecided and m["metric"] == "decision")
    ]
