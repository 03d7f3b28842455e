"""What a run came to, as the tables of its page: metrics, verdicts beside labels, rounds, and what each agent took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from runner.game.protocols.protocol import Decision, label_word, stance_word
from runner.pages.charts.reliability import ReliabilityBins, reliability
from runner.pages.numbers import count, decimal, dollars, interval, took
from runner.pages.report.run_totals import VERDICTS, AgentTally, RunTally
from runner.results.manifest import Manifest
from runner.results.metric_rows import extra_lines, is_aside, reasons, shown_name, told_metrics
from runner.results.metric_table import ACCURACY, BALANCED_ACCURACY, METRICS
from runner.rollouts.rollout import Outcome
from runner.runs.finished.rollout_details import verdict_word

LABELS = (1, 0)

Headline = tuple[str, ...]
"""A title, a number, and what is to be known of it."""


def headline(
    manifest: Manifest, metrics: Mapping[str, Any] | None, games: Headline, so_far: Headline | None
) -> list[Headline]:
    """The few numbers that come first: `games` of `games_number`; `so_far`, what games took where the run is silent."""
    found = {row["metric"]: row for row in (metrics or {"metrics": ()})["metrics"] if row["agent"] is None}
    shown: list[Headline] = []
    for name, title in ((ACCURACY, "Accuracy"), (BALANCED_ACCURACY, "Balanced accuracy")):
        row = found.get(name)
        if row is not None and row["value"] is not None:
            between = interval(row)
            shown.append((title, decimal(row["value"]), f"95 %: {between}" if between else row.get("reason") or ""))
    shown.append(games)
    if manifest.completions is not None:
        what = "answers of another run" if manifest.is_whole_replay else "calls"
        shown.append(("Cost", dollars(manifest.own_cost_usd), f"{count(manifest.completions)} {what}"))
    elif so_far is not None:
        shown.append(so_far)
    if lasted := took(manifest.started_at, manifest.finished_at):
        shown.append(("Time", lasted, ""))
    return shown


def games_number(
    manifest: Manifest, metrics: Mapping[str, Any] | None, here: int, *, is_part: bool, is_lost: bool
) -> Headline:
    """How many games the run has, of which so many are `here`; its own count where they cannot be read, or not yet."""
    said = manifest.rollouts
    if is_lost:
        known = None if said is None else count(said)
        return "Games", known or "not known", "none of them can be read"
    if is_part and said is not None:
        return "Games", count(said), f"{count(here)} read so far"
    return "Games", count(here), _decided(metrics)


def _decided(metrics: Mapping[str, Any] | None) -> str:
    outcomes = (metrics or {}).get("outcomes")
    return f"{count(outcomes.get(Outcome.DECIDED, 0))} decided" if outcomes else ""


def calls_so_far(tally: RunTally) -> Headline | None:
    """What finished games took."""
    if not tally.games:
        return None
    total = AgentTally.sum_of(tally.agents)
    return "Cost so far", dollars(total.usd), f"{count(total.calls)} calls of finished games"


@dataclass(frozen=True)
class MetricRow:
    """A metric of a run as `metrics.json` has it, with the name that people know it by."""

    name: str
    row: Mapping[str, Any]

    @property
    def is_share(self) -> bool:
        """Whether it lies between 0 and 1, so that its interval can be drawn."""
        metric = METRICS.get(self.row["metric"])
        return metric is not None and (metric.low, metric.high) == (0.0, 1.0) and self.row["value"] is not None


@dataclass(frozen=True)
class MetricTables:
    """The metrics of a run: those of the game that most readers ask about, then all others."""

    main: Sequence[MetricRow]
    others: Sequence[MetricRow]
    reasons: Sequence[str]
    method: str
    """How the intervals were computed."""


def metric_tables(metrics: Mapping[str, Any]) -> MetricTables:
    """Return the metrics that have games to count."""
    rows = [row for row in told_metrics(metrics) if row["n"]]
    rows.sort(key=lambda row: is_aside(row["metric"]))
    metric_rows = [MetricRow(shown_name(row["metric"], row.get("plays")), row) for row in rows]
    main = [metric for metric in metric_rows if metric.row["agent"] is None and not is_aside(metric.row["metric"])]
    more = [metric for metric in metric_rows if metric not in main]
    return MetricTables(main, more, [*reasons(metrics), *extra_lines(metrics)], str(metrics.get("interval", "")))


@dataclass(frozen=True)
class OutcomeRow:
    """How many games ended in one way, in all and by their labels."""

    name: str
    by_label: Sequence[int]
    games: int


@dataclass(frozen=True)
class LabelRow:
    """How many games of one label got each verdict; `kind` of a cell says whether that verdict is right."""

    label: str
    cells: Sequence[tuple[str, int]]
    games: int


@dataclass(frozen=True)
class RoundsRow:
    """How many games ended after some rounds, by verdict, and how many had ended by then."""

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
    """The last is the sum of the others, if there are several."""


def game_tables(tally: RunTally) -> GameTables:
    """Return the tables of the games counted so far."""
    return GameTables(
        tally.games, _confusion_rows(tally), _outcome_rows(tally), _rounds_rows(tally), _agent_rows(tally)
    )


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
    unlabelled = any(label is None for label, _ in tally.confusion)
    for label in (None,) if unlabelled else LABELS:
        counts = [tally.confusion[label, int(verdict)] for verdict in VERDICTS[1::-1] + VERDICTS[2:]]
        kinds = ("right" if label else "wrong", "wrong" if label else "right", "none")
        kinds = ("none", "none", "none") if label is None else kinds
        name = "not known" if label is None else f"{stance_word(label)}ed"
        rows.append(LabelRow(name, list(zip(kinds, counts, strict=True)), sum(counts)))
    return rows


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


CONFIDENCE_TITLES = {"stated": "as the verifier stated it", "logprob": "by log-probabilities"}


@dataclass(frozen=True)
class ReliabilityView:
    """The bins of one kind of confidence, as `metrics.json` has them, and their chart."""

    title: str
    bins: Sequence[Mapping[str, Any]]
    picture: Markup


def reliability_views(run_id: str, metrics: Mapping[str, Any]) -> list[ReliabilityView]:
    """Return what was said of P(accept), and how many of those solutions are right, by kind of confidence."""
    views = []
    for kind, bins in (metrics.get("reliability_curves") or {}).items():
        title = CONFIDENCE_TITLES.get(kind, kind)
        judge = ReliabilityBins(title, bins)
        views.append(
            ReliabilityView(title, bins, reliability([judge], title=f"Confidence {title}", key=f"{kind}-{run_id}"))
        )
    return views


def first_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A game's row of the list that stands in the page itself."""
    decision = row["decision"]
    judged = {True: "right", False: "wrong", None: "decided"}[row["correct"]]
    result = row["outcome"].replace("_", " ") if decision is None else judged
    verdict = verdict_word(int(Decision.NONE) if decision is None else decision)
    kind = "none" if decision is None or row["correct"] is None else result
    return {**row, "label": label_word(row["label"]), "verdict": verdict, "result": result, "kind": kind}
