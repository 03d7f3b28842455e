"""Converts a benchmark, or a part of a training run, to an MLflow record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from runner.base.token_classes import NEW_TOKEN_CLASSES
from runner.exports.mlflow.assessments import assessment_records, trace_key
from runner.exports.mlflow.curve import Curve, interval_points, value_points
from runner.exports.mlflow.limits import MlflowTexts
from runner.exports.mlflow.record import (
    GameTrace,
    MetricPoint,
    MlflowRun,
    TurnSpan,
    convert_content_errors,
    run_key,
    to_ms,
)
from runner.exports.mlflow.run_facts import TAG, common_fields, dataset_record, run_counts, run_tags
from runner.exports.run_source import RunSource
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metric_rows import format_metric
from runner.results.metrics_file import find_metric_row
from runner.rollouts.rollout import Outcome
from runner.rollouts.transcript import shown_label

COUNTS = (
    "rollouts", "completions", "failed_calls", "prompt_tokens", "completion_tokens", "cached_tokens",
    "transport_failed", "cost_usd", "cost_usd_at_most", *NEW_TOKEN_CLASSES,
)  # fmt: skip
"""Counts in a run's manifest that are sent as metrics."""

MAX_TRACES = 5_000
"""Maximum number of games with traces, because each trace takes two requests. The artifacts in `tables/` have all
games."""


class GamesRecordBuilder:
    """Builds the MLflow record of a run of games, once or repeatedly while it plays."""

    def __init__(self, folder: RunFolder, *, journal: bool) -> None:
        self._folder, self._journal = folder, journal
        self._curve: Curve | None = None
        self._curve_plan: tuple[Any, ...] = ()
        self._texts = MlflowTexts()

    def record(self, parent: Manifest | None = None) -> MlflowRun:
        """Return the record of the run so far; `parent` is the manifest of its training run, if it has one.

        Raises:
            RunError, JournalError, SpecError: a file of the run is missing or damaged.
        """
        with convert_content_errors(self._folder):
            return self._build_record(parent)

    def _build_record(self, parent: Manifest | None) -> MlflowRun:
        manifest = self._folder.manifest()
        curve = self._curve_of(manifest)
        points = list(curve.read(manifest)) if self._folder.journal.is_file() else []
        summary: Mapping[str, Any] = {}
        if manifest.status in (Status.DONE, Status.INCOMPLETE) and self._folder.metrics.is_file():
            summary = self._folder.read_metrics()
        if manifest.status == Status.DONE and summary:
            ended_ms = None if manifest.finished_at is None else to_ms(manifest.finished_at)
            end_points = (point._replace(time_ms=ended_ms) for point in _end_points(manifest, summary, self._texts))
            # A point of the end replaces a point of the curve with the same metric and step.
            points = list({(point.key, point.step): point for point in (*points, *end_points)}.values())
        context = "training" if manifest.parent_run_id is not None and manifest.kind == "training" else "eval"
        has_traces = manifest.status == Status.DONE and curve.plan.tree_shape is None
        return MlflowRun(
            **common_fields(self._folder, manifest, curve.plan, self._texts, parent, journal=self._journal),
            metrics=points,
            tags=run_tags(manifest, curve.plan, self._folder, self._texts, _format_page_note(manifest, summary)),
            inputs=(dataset_record(manifest, curve.plan, context),),
            traces=self._build_traces if has_traces else tuple,
            assessments=partial(assessment_records, self._folder, run_key(manifest), self._texts)
            if has_traces
            else tuple,
            notes=tuple(self._texts.notes),
        )

    def _build_traces(self) -> Iterator[GameTrace]:
        """Yield a trace for each game, with a span for each turn."""
        source = RunSource.load(self._folder)
        key, texts = run_key(source.manifest), self._texts
        for game in islice(source.games(), MAX_TRACES):
            rollout = game.rollout
            outcome = {"outcome": rollout.outcome.value, "verdict": game.verdict, "correct": rollout.correct}
            facts = {"rollout_id": rollout.job.rollout_id, "datapoint": rollout.job.datapoint.id, **outcome}
            spans = [
                TurnSpan(
                    f"round {turn.call.round}: {turn.call.agent}",
                    round(turn.start_ms * 1e6),
                    round(turn.end_ms * 1e6),
                    texts.json({"model": turn.call.model, "messages": turn.request.messages}),
                    texts.json({"content": turn.call.raw_message, "error": turn.call.error}),
                )
                for turn in game.turns()
            ]
            yield GameTrace(
                trace_key(key, rollout.job.rollout_id),
                texts.text(rollout.job.rollout_id),
                texts.json({**game.columns, "label": shown_label(rollout)}),
                texts.json({**outcome, "rewards": dict(rollout.rewards)}),
                {TAG + name: texts.tag(name, value) for name, value in facts.items() if value is not None},
                rollout.outcome == Outcome.TRANSPORT_FAILED,
                spans,
            )

    def _curve_of(self, manifest: Manifest) -> Curve:
        """Return the curve so far. If the plan has changed, as it may when the run is resumed, return a new curve."""
        plan_key = (manifest.identity, manifest.spec_sha256, manifest.dataset_sha256)
        if self._curve is None or self._curve_plan != plan_key:
            self.close()
            self._curve, self._curve_plan = Curve(self._folder, self._texts), plan_key
        return self._curve

    def close(self) -> None:
        if self._curve is not None:
            self._curve.close()
            self._curve = None


def _end_points(manifest: Manifest, summary: Mapping[str, Any], texts: MlflowTexts) -> Iterator[MetricPoint]:
    """Yield every metric and count of a finished run. The step is the number of games that were not lost in transport.

    An incomplete run has no such points, because it can be resumed, and MLflow cannot change the value of a step.
    """
    outcomes: Mapping[str, int] = summary["outcomes"]
    step = sum(outcomes.values()) - outcomes.get("transport_failed", 0)
    for row in summary["metrics"]:
        yield from value_points(row, step, texts)
        yield from interval_points(row, step, texts)
    for name, count in outcomes.items():
        yield MetricPoint(texts.key(f"outcomes.{name}"), step, float(count))
    for name, value in run_counts(manifest, COUNTS):
        yield MetricPoint(texts.key(f"counts.{name}"), step, value)
    for vote in summary.get("vote_curve", ()):
        if vote["value"] is not None:
            yield MetricPoint("vote_accuracy", vote["k"], float(vote["value"]))


def _format_page_note(manifest: Manifest, summary: Mapping[str, object]) -> str:
    """Return the text at the top of the run's page."""
    lines = [f"{manifest.kind} run `{manifest.run_id}` of nip-run {manifest.version}: {manifest.status.value}"]
    accuracy = find_metric_row(summary, RANKING_METRIC)
    if accuracy is not None and accuracy["value"] is not None:
        lines.append(f"accuracy: {format_metric(accuracy)}, n {accuracy['n']}, 95 % interval")
    if manifest.status == Status.INCOMPLETE:
        lines.append(
            "Too many games were lost in transport. Until you resume the run, only metrics.json has its metrics."
        )
    if manifest.why_stopped is not None:
        lines.append(manifest.why_stopped)
    return "\n\n".join(lines)
