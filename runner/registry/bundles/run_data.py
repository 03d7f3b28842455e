"""Build `run_data.yaml` of a run's release: metrics, counts, cost, models and versions, for people and for tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.documents.yaml_writer import dump
from runner.results.manifest import Manifest
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metrics_file import ESTIMATE_FIELDS, find_metric_row

FILE = "run_data.yaml"

COUNTS = (
    "rollouts", "completions", "failed_calls", "transport_failed", "prompt_tokens", "completion_tokens",
    "cached_tokens", "cost_usd",
)  # fmt: skip


def build_run_data(manifest: Manifest, metrics: Mapping[str, Any]) -> bytes:
    """Return the content of the file. `metrics` is the content of `metrics.json`, or empty if the run has none."""
    counts = {name: getattr(manifest, name) for name in COUNTS}
    if manifest.is_training_run:
        counts |= metrics.get("games", {})
    data = {
        **{name: getattr(manifest, name) for name in ("run_id", "name", "kind", "benchmark", "protocol")},
        "status": manifest.status.value,
        "seed": manifest.seed,
        "point": dict(manifest.point),
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "metrics": list(metrics.get("metrics", [])),
        "outcomes": dict(metrics.get("outcomes", {})),
        **{name: metrics[name] for name in ("iterations", "tests") if name in metrics},
        "counts": counts,
        "started_at": manifest.started_at,
        "finished_at": manifest.finished_at,
        "versions": {"nip-run": manifest.version, "python": manifest.python},
    }
    return (
        "# The results of the run. Intervals are at 95 %; docs/reference/metrics.md defines each metric.\n" + dump(data)
    ).encode()


def find_accuracy(metrics: Mapping[str, object]) -> dict[str, Any] | None:
    """Return a run's accuracy with its confidence interval; None if the run has no accuracy."""
    accuracy = find_metric_row(metrics, RANKING_METRIC)
    return None if accuracy is None else {name: accuracy.get(name) for name in ESTIMATE_FIELDS}
