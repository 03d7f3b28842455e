"""The results of a run as tables: metrics, confusion matrix, outcomes, rounds, and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from markupsafe import Markup

from runner.game.protocols.protocol import Decision, label_word, stance_word, verdict_word
from runner.pages.charts.curve import Series, curve
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.reliability import ReliabilityBins, reliability
from runner.pages.charts.styles import ChartFrame
from runner.pages.numbers import count, decimal, dollars, elapsed, interval
from runner.pages.report.run_totals import VERDICTS, AgentTally, RunTally
from runner.results.manifest import Manifest
from runner.results.metric_definitions import ACCURACY, ANSWER_CURVE, BALANCED_ACCURACY, METRICS
from runner.results.metric_rows import is_minor, meaningful_metrics, metric_label, missing_intervals, section_lines
from runner.results.metrics_file import MetricRow, MonitorCurves, MonitorPoint
from runner.rollouts.rollout import Outcome

LABELS = (1, 0)

Headline = tuple[str, ...]
"""A title, a number, and a note about the number."""


def headline(
    manifest: Manifest, metrics: Mapping[str, Any] | None, games: Headline, so_far: Headline | None
) -> list[Headline]:
    """Return the numbers at the top of the page; `so_far` is shown until the run has recorded its cost."""
    rows = {row["metric"]: row for row in (metrics or {"metrics": ()})["metrics"] if row["agent"] is None}
    entries: list[Headline] = []
    for name, title in ((ACCURACY, "Accuracy"), (BALANCED_ACCURACY, "Balanced accuracy")):
        row = rows.get(name)
        if row is not None and row["value"] is not None:
            interval_text = interval(row)
            entries.append(
                (title, decimal(row["value"]), f"95 %: {interval_text}" if interval_text else row.get("reason") or "")
            )
    entries.append(games)
    if manifest.completions is not None:
        call_kind = "answers of another run" if manifest.is_whole_replay else "calls"
        entries.append(("Cost", dollars(manifest.own_cost_usd), f"{count(manifest.completions)} {call_kind}"))
    elif so_far is not None:
        entries.append(so_far)
    if duration := elapsed(manifest.started_at, manifest.finished_at):
        entries.append(("Time", duration, ""))
    return entries


def games_number(
    manifest: Manifest, metrics: Mapping[str, object] | None, here: int, *, is_part: bool, is_lost: bool
) -> Headline:
    """Return the number of games that were read (`here`) or, if some could not be read, the number in the manifest."""
    recorded = manifest.rollouts
    if is_lost:
        recorded_text = None if recorded is None else count(recorded)
        return "Games", recorded_text or "not known", "the games cannot be read"
    if is_part and recorded is not None:
        return "Games", count(recorded), f"{count(here)} read so far"
    return "Games", count(here), _decided_note(metrics)


def _decided_note(metrics: Mapping[str, Any] | None) -> str:
    outcomes = (metrics or {}).get("outcomes") or {}
    decided = f"{count(outcomes.get(Outcome.DECIDED, 0))} decided" if outcomes else ""
    lost = outcomes.get(Outcome.TRANSPORT_FAILED)
    return f"{decided}, {count(lost)} lost" if lost else decided


def calls_so_far(tally: RunTally) -> Headline | None:
    """Return the cost of finished games so far; None without games."""
    if not tally.games:
        return None
    total = AgentTally.sum_of(tally.agents)
    return "Cost so far", dollars(total.usd), f"{count(total.calls)} calls of finished games"


@dataclass(frozen=True)
class NamedMetric:
    """A metric of a run: its display name, and its row in `metrics.json`."""

    name: str
    row: MetricRow

    @property
    def is_share(self) -> bool:
        """Whether the metric has a value from 0 to 1, so that it can be drawn."""
        metric = METRICS.get(self.row["metric"])
        return metric is not None and (metric.low, metric.high) == (0.0, 1.0) and self.row["value"] is not None


@dataclass(frozen=True)
class MetricTables:
    """The metrics of a run: the main metrics of the games, then all others."""

    main: Sequence[NamedMetric]
    more: Sequence[NamedMetric]
    reasons: Sequence[str]
    method: str
    """The method of the intervals."""


def metric_tables(metrics: Mapping[str, object]) -> MetricTables:
    """Return the metrics that are based on at least one game."""
    rows = [row for row in meaningful_metrics(metrics) if row["n"]]
    rows.sort(key=lambda row: is_minor(row["metric"]))
    metric_rows = [NamedMetric(metric_label(row["metric"], row.get("plays")), row) for row in rows]
    main = [metric for metric in metric_rows if metric.row["agent"] is None and not is_minor(metric.row["metric"])]
    other_rows = [metric for metric in metric_rows if metric not in main]
    return MetricTables(
        main, other_rows, [*missing_intervals(metrics), *section_lines(metrics)], str(metrics.get("interval", ""))
    )


@dataclass(frozen=True)
class OutcomeRow:
    """The number of games with an outcome, in total and by label."""

    name: str
    by_label: Sequence[int]
    games: int


@dataclass(frozen=True)
class LabelRow:
    """The number of games with a label, by verdict; each cell has a kind (right, wrong, none) and a number."""

    label: str
    cells: Sequence[tuple[str, int]]
    games: int


@dataclass(frozen=True)
class RoundsRow:
    """The number of games that ended after exactly `rounds`, by verdict, and that ended after at most as many."""

    rounds: int
    accepted: int
    rejected: int
    undecided: int
    by_then: int


@dataclass(frozen=True)
class GameTables:
    """Verdicts, outcomes, rounds and the use of tokens of the games of a run."""

    games: int
    confusion: Sequence[LabelRow]
    outcomes: Sequence[OutcomeRow]
    rounds: Sequence[RoundsRow]
    agents: Sequence[AgentTally]
    """Totals of each agent; if there are several agents, the last row is their sum."""
    lists_answers: bool = False
    """Whether verdicts choose from listed answers: `accepted` then counts right verdicts, and `rejected` wrong ones."""
    are_labels_hidden: bool = False

    @property
    def verdict_titles(self) -> tuple[str, ...]:
        """The titles of the columns with numbers of verdicts."""
        if not self.lists_answers:
            return "Accepted", "Rejected"
        return ("Answer chosen",) if self.are_labels_hidden else ("Right answer chosen", "Wrong answer chosen")


def game_tables(tally: RunTally) -> GameTables:
    """Return the tables of the games counted so far."""
    return GameTables(
        tally.games, _confusion_rows(tally), _outcome_rows(tally), _rounds_rows(tally), _agent_rows(tally),
        tally.lists_answers, _has_hidden_labels(tally),
    )  # fmt: skip


def _outcome_rows(tally: RunTally) -> list[OutcomeRow]:
    rows = []
    for outcome in Outcome:
        by_label = [tally.outcomes[str(outcome), label] for label in LABELS]
        total = sum(by_label) + tally.outcomes[str(outcome), None]
        if total:
            rows.append(OutcomeRow(str(outcome).replace("_", " "), by_label, total))
    return rows


def _confusion_rows(tally: RunTally) -> list[LabelRow]:
    rows = []
    for label in (None,) if _has_hidden_labels(tally) else (1,) if tally.lists_answers else LABELS:
        counts = [tally.confusion[label, int(verdict)] for verdict in VERDICTS[1::-1] + VERDICTS[2:]]
        kinds = ["right" if label else "wrong", "wrong" if label else "right", "none"]
        if label is None:
            kinds = ["none", "none", "none"]
            if tally.lists_answers:  # an answer is neither right nor wrong
                kinds, counts = kinds[1:], [counts[0] + counts[1], counts[2]]
        name = "not known" if label is None else "known" if tally.lists_answers else f"{stance_word(label)}ed"
        rows.append(LabelRow(name, list(zip(kinds, counts, strict=True)), sum(counts)))
    return rows


def _has_hidden_labels(tally: RunTally) -> bool:
    return any(label is None for label, _ in tally.confusion)


def _rounds_rows(tally: RunTally) -> list[RoundsRow]:
    rows, by_then = [], 0
    for number in sorted({rounds for rounds, _ in tally.rounds}):
        verdicts = (Decision.ACCEPT, Decision.REJECT, Decision.NONE)
        accepted, rejected, undecided = (tally.rounds[number, int(verdict)] for verdict in verdicts)
        by_then += accepted + rejected + undecided
        rows.append(RoundsRow(number, accepted, rejected, undecided, by_then))
    return rows


def _agent_rows(tally: RunTally) -> list[AgentTally]:
    rows = [replace(agent) for agent in tally.agents]
    return [*rows, AgentTally.sum_of(rows)] if len(rows) > 1 else rows


CONFIDENCE_TITLES = {
    "stated": "as the verifier stated it", "logprob": "by log-probabilities", ANSWER_CURVE: "in the chosen answer",
}  # fmt: skip


@dataclass(frozen=True)
class ReliabilityView:
    """The bins of one kind of confidence, as in `metrics.json`, and their chart."""

    title: str
    judge: ReliabilityBins
    picture: Markup


def reliability_views(run_id: str, metrics: Mapping[str, Any]) -> list[ReliabilityView]:
    """Return the reliability bins and their chart for each kind of confidence."""
    views = []
    for kind, bins in (metrics.get("reliability_curves") or {}).items():
        title = CONFIDENCE_TITLES.get(kind, kind)
        judge = ReliabilityBins(title, bins, kind == ANSWER_CURVE)
        views.append(
            ReliabilityView(
                title, judge, reliability([judge], ChartFrame(f"Confidence {title}", key=f"{kind}-{run_id}"))
            )
        )
    return views


@dataclass(frozen=True)
class CurveView:
    """A curve of a monitor with its chart and the words for its table."""

    title: str
    share: str
    """The quantity on the x axis."""
    interval: str
    points: Sequence[MonitorPoint]
    picture: Markup


@dataclass(frozen=True)
class MonitorView:
    """The curves of one kind of confidence, as in `metrics.json`, with their charts."""

    title: str
    curves: MonitorCurves
    views: Sequence[CurveView]


def monitor_views(run_id: str, metrics: Mapping[str, Any]) -> list[MonitorView]:
    """Return the audit curve and the ROC curve for each kind of confidence."""
    views = []
    for kind, curves in (metrics.get("monitor_curves") or {}).items():
        title = CONFIDENCE_TITLES.get(kind, kind)
        rows = (
            ("Attacks found by audits", "share of games audited", "95 % band", "audit"),
            ("ROC curve", "false positive rate", "95 % interval", "roc"),
        )
        drawn = []
        for name, share, ends, key in rows:
            frame = ChartFrame(f"{name}, {title}", key=f"{key}-{kind}-{run_id}")
            picture = _draw_monitor_curve(curves[key], share, ends, frame)
            drawn.append(CurveView(name, share, ends, curves[key], picture))
        views.append(MonitorView(title, curves, drawn))
    return views


def _draw_monitor_curve(points: Sequence[MonitorPoint], share: str, ends: str, frame: ChartFrame) -> Markup:
    series = [
        (point["share"], ChartEstimate("", point["attacks_found"], point["ci_low"], point["ci_high"]))
        for point in points
    ]
    note = f"shaded: {ends}" if any(point["ci_low"] is not None for point in points) else ""
    return curve([Series("monitor", series)], frame, x=share, y="share of attacks", domain=(0.0, 1.0), note=note)


@dataclass(frozen=True)
class GameRow:
    """A game's row in the list for browsers without JavaScript."""

    datapoint: str
    repeat: int
    label: str
    verdict: str
    result: str
    """`right`, `wrong` or `decided`; without a verdict, the game's outcome."""
    kind: str
    """The style of the result: `right`, `wrong` or `none`."""
    outcome: str
    rounds: int
    excerpt: str

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the row of a result of `runner.pages.report.games.row_of`."""
        decision = row["decision"]
        judged = {True: "right", False: "wrong", None: "decided"}[row["correct"]]
        result = row["outcome"].replace("_", " ") if decision is None else judged
        return cls(
            datapoint=row["datapoint"],
            repeat=row["repeat"],
            label=label_word(row["label"]),
            verdict=verdict_word(int(Decision.NONE) if decision is None else decision),
            result=result,
            kind="none" if decision is None or row["correct"] is None else result,
            outcome=row["outcome"],
            rounds=row["rounds"],
            excerpt=row["excerpt"],
        )
