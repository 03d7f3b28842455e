"""What a reader of one number must know of each metric: its bounds, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

EXPORTED_NAMES = {"sensitivity": "d_prime"}
"""Metrics that other tools would take for something else: elsewhere, sensitivity is the true positive rate."""


def exported_name(row: Mapping[str, Any]) -> str:
    """Return the name of a row of `metrics.json` in other tools: `METRIC`, or `AGENT.METRIC` for one agent's."""
    name = EXPORTED_NAMES.get(row["metric"], row["metric"])
    return name if row["agent"] is None else f"{row['agent']}.{name}"


class MetricKind(NamedTuple):
    """The bounds of a metric, its meaning, and whether less of it is better."""

    meaning: str
    lower_is_better: bool = False
    low: float = 0.0
    high: float = 1.0

    @property
    def bounds(self) -> tuple[float | str, float | str]:
        """Both bounds as JSON has them: `-Infinity` and `Infinity` are texts."""
        return _bound(self.low), _bound(self.high)


def _bound(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


KINDS: Mapping[str, MetricKind] = {
    "accuracy": MetricKind(
        "right verdicts, of all rollouts that were not lost in transport; no verdict is a wrong one"
    ),
    "accuracy_excluding_failures": MetricKind("right verdicts, of all verdicts"),
    "accuracy_0": MetricKind("right verdicts on wrong solutions"),
    "accuracy_1": MetricKind("right verdicts on right solutions"),
    "balanced_accuracy": MetricKind("mean of the accuracies on right and on wrong solutions"),
    "precision": MetricKind("right solutions among the accepted ones"),
    "recall": MetricKind("accepted solutions among the right ones that were decided"),
    "decided": MetricKind("rollouts with a verdict"),
    "completeness": MetricKind("right solutions that are accepted"),
    "soundness_error": MetricKind("wrong solutions that are accepted", lower_is_better=True),
    "always_failed": MetricKind("datapoints on which the verifier is never right", lower_is_better=True),
    "majority_accuracy": MetricKind("right verdicts by majority over the repeats of a datapoint"),
    "pair_score": MetricKind("groups of which the right version is accepted and the wrong one rejected"),
    "sensitivity": MetricKind("d' of signal detection theory", low=-math.inf, high=math.inf),
    **{
        f"{name}_{kind}": metric
        for kind in ("stated", "logprob")
        for name, metric in {
            "brier": MetricKind("Brier score of P(accept)", lower_is_better=True),
            "ece": MetricKind("expected calibration error of P(accept)", lower_is_better=True),
            "auroc": MetricKind("area under the ROC curve of P(accept)"),
        }.items()
    },
}
"""Metrics of whole games that a result record can hold."""
