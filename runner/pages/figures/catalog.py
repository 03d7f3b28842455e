"""The catalog of figures: comparisons of systems, and figures about one system.

A system is the runs of one game that differ only in their seeds. `nip-run plot` and the Python API build figures here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean
from runner.game.protocols.schedule import schedule
from runner.pages.charts.columns import columns
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.frontier import PricedSystem, frontier
from runner.pages.charts.labels import format_count
from runner.pages.charts.protocol import protocol_picture
from runner.pages.charts.reliability import ReliabilityBins, axis_titles, reliability
from runner.pages.charts.rows import bars, forest
from runner.pages.figures.differences import differences
from runner.pages.figures.figure import Encoding, Figure
from runner.pages.figures.learning_curve import learning_curve
from runner.pages.figures.systems import (
    FigureSystem,
    SystemEstimate,
    curves_of,
    estimates,
    estimates_of,
    row_of,
    sample_notes,
    systems_of,
)
from runner.results.comparison.baselines import find_baseline
from runner.results.comparison.systems import load_system
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import ANSWER_CURVE, RANKING_METRIC, check_metrics, game_shares
from runner.rollouts.rollout import Outcome
from runner.runs.finished.reconstruction import played_plan
from runner.runs.finished.result import FinishedRun

LONE_VERIFIER = "solo_verifier"
"""The protocol with a verifier and no prover: the baseline for other protocols."""


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure; `help` describes it in one line."""

    help: str
    build: Callable[[Sequence[RunFolder], str], Figure]
    """Builds the figure of some runs and a metric; kinds with a fixed metric ignore the second argument."""
    takes_metric: bool = False


def figure(name: str, folders: Sequence[RunFolder], metric: str | None = None) -> Figure:
    """Build a figure by its name.

    Raises:
        UsageError: there is no such figure, or a run lacks data that the figure needs.
        RunError, LeaderboardError: a file of a run, or the board, is damaged.
    """
    kind = FIGURES.get(name)
    if kind is None:
        raise UsageError(f"unknown figure {name!r}{did_you_mean(name, FIGURES) or f'; choose {comma_join(FIGURES)}'}")
    if metric is not None and not kind.takes_metric:
        names = comma_join(figure_name for figure_name, kind in FIGURES.items() if kind.takes_metric)
        raise UsageError(f"the figure {name} has a fixed metric; leave out --metric, or plot {names}")
    return kind.build(folders, metric or RANKING_METRIC)


def _by_protocol(folders: Sequence[RunFolder], metric: str, name: str, title: str) -> Figure:
    """Plot a metric of each protocol; the verifier's own result without a prover is the baseline."""
    systems = systems_of(folders)
    lone = next((s for s in systems if all(agent["role"] == "verifier" for agent in s.first.agents)), None)
    notes: tuple[str, ...] = ()
    if lone is None and (lone := _find_lone_verifier(systems[0])) is None:
        missing = f"the results folder has no run of this verifier on this task with protocol {LONE_VERIFIER}"
        notes = (f"no baseline, because {missing}; play one, then plot again",)
    compared = [system for system in systems if system is not lone] or systems  # only the lone verifier is left
    measurements = _measure(compared, metric)
    rows = [{**row, "is_baseline": False} for _, row in measurements]
    reference = baseline_row = None
    if lone is not None and compared != [lone]:
        reference, baseline_row = estimates([lone], metric)[0]
        if lone not in systems and baseline_row.get("plays") != rows[0].get("plays"):
            runs = comma_join(baseline_row["runs"])
            notes = (f"no baseline, because {runs} have another rollouts.per_datapoint; play them with the same",)
            reference = baseline_row = None
    if baseline_row is not None:
        rows.append({**baseline_row, "is_baseline": True})
    _check_plays(rows, metric)
    points = [estimate for estimate, _ in measurements]
    encoding = Encoding("bars", "value", "system", "ci_low", "ci_high", None, metric, "")
    return Figure(
        name, title, rows, encoding,
        lambda frame: bars(points, frame, baseline=reference, domain=(0.0, 1.0), axis=metric),
        (*notes, *sample_notes(systems)),
    )  # fmt: skip


def _find_lone_verifier(system: FigureSystem) -> FigureSystem | None:
    """Return the runs of the system's verifier model alone on the same datapoints, or None."""
    results = Results.of(system.folders[0])
    with suppress(UsageError):
        other = load_system([folder.path for folder in system.folders], results)
        match = find_baseline(LONE_VERIFIER, other, results)
        return FigureSystem(LONE_VERIFIER, tuple(match.runs), tuple(match.manifests))
    return None


def _check_plays(rows: Sequence[Mapping[str, object]], metric: str) -> None:
    """Check that all systems played each datapoint equally often.

    Only rows of a metric that depends on the number of games have `plays`, the number of games for each datapoint.

    Raises:
        UsageError: the numbers differ.
    """
    plays = {row["system"]: row["plays"] for row in rows if row.get("plays") is not None}
    if len(set(plays.values())) > 1:
        counts = comma_join(f"{name} {number}" for name, number in plays.items())
        raise UsageError(
            f"{metric} depends on the number of games per datapoint, which differs: {counts}. Name the same number of "
            "seeds for each system, or play all systems with the same rollouts.per_datapoint"
        )


def _measure(systems: Sequence[FigureSystem], metric: str) -> list[SystemEstimate]:
    """Return the estimate and the row of a metric for each system.

    Raises:
        UsageError: there is no such metric, or no system has a value of it.
    """
    rows = [row for system in systems for folder in system.folders for row in folder.read_metrics()["metrics"]]
    names = {".".join(filter(None, (row["agent"], row["metric"]))) for row in rows}
    measurements = estimates(systems, metric)
    if all(estimate.value is None for estimate, _ in measurements):
        check_metrics([metric], names, {row["agent"] for row in rows if row["agent"]})
    return _require_value(measurements, metric)


def _require_value(measurements: list[SystemEstimate], metric: str) -> list[SystemEstimate]:
    """Return the estimates, after a check that at least one has a value.

    Raises:
        UsageError: all lack a value; the message has the reason for each system.
    """
    if measurements and all(estimate.value is None for estimate, _ in measurements):
        reasons = "; ".join(
            dict.fromkeys(f"{estimate.name}: {row['reason'] or 'not measured'}" for estimate, row in measurements)
        )
        raise UsageError(f"no run has a value of {metric} ({reasons}); choose another --metric or other runs")
    return measurements


def _forest(folders: Sequence[RunFolder], metric: str) -> Figure:
    """Plot all metrics of a single system that are shares of games, or one metric of several systems."""
    systems = systems_of(folders)
    domain: tuple[float, float] | None = (0.0, 1.0)
    if len(systems) == 1 and metric == RANKING_METRIC:
        [system] = systems
        names = [
            name
            for name in game_shares()
            if any((row := row_of(folder, name)) and row["value"] is not None for folder in system.folders)
        ]
        measurements = _require_value(estimates_of(system, names), metric)
        points = [
            ChartEstimate(row["metric"], point.value, point.low, point.high, point.note) for point, row in measurements
        ]
        title, y = f"Shares of {system.name}", "metric"
    else:
        measurements = _measure(systems, metric)
        _check_plays([row for _, row in measurements], metric)
        points, title, y = [point for point, _ in measurements], metric, "system"
        domain = domain if metric in game_shares() else None
    rows = [row for _, row in measurements]
    axis = "share of games" if y == "metric" else metric
    encoding = Encoding("points", "value", y, "ci_low", "ci_high", None, axis, "")
    return Figure(
        "forest", title, rows, encoding,
        lambda frame: forest(points, frame, domain=domain, axis=axis),
        sample_notes(systems),
    )  # fmt: skip


def _reliability(folders: Sequence[RunFolder], _: str) -> Figure:
    """Plot how often the verifier is right, by the probability that it states."""
    systems = systems_of(folders)
    curves = [(system, curves_of(system)) for system in systems]
    lacking = [run_id for system, by_kind in curves if not by_kind for run_id in system.run_ids]
    pooled = [
        folder for system, by_kind in curves if not by_kind and len(system.folders) > 1 for folder in system.folders
    ]
    if any(ANSWER_CURVE in folder.read_metrics().get("reliability_curves", {}) for folder in pooled):
        raise UsageError(
            f"{comma_join(folder.run_id for folder in pooled)}: the reliability curves of several seeds with listed "
            "answers cannot be pooled; plot one run"
        )
    if lacking:
        raise UsageError(
            f"{comma_join(lacking)}: a reliability curve needs probabilities of verdicts, which these runs lack; play "
            "new runs with `verdict: {confidence: stated}`, or with `logprob` if the server returns log-probabilities"
        )
    judges: list[ReliabilityBins] = []
    rows: list[dict[str, Any]] = []
    for system, by_kind in curves:
        for kind, bins in by_kind.items():
            judge = f"{system.name}, {kind}" if len(systems) > 1 else kind
            judges.append(ReliabilityBins(judge, bins, kind == ANSWER_CURVE))
            rows += [{**system.facts(), "judge": judge, "kind": kind, **row} for row in bins]
    encoding = Encoding("lines", "confidence", "right", "ci_low", "ci_high", "judge", *axis_titles(judges))
    return Figure(
        "reliability", "Reliability of the verifier", rows, encoding,
        lambda frame: reliability(judges, frame),
        sample_notes(systems),
    )  # fmt: skip


def _rounds(folders: Sequence[RunFolder], _: str) -> Figure:
    """Plot the number of decided games for each number of rounds."""
    system = _only_system(systems_of(folders), "rounds")
    counts: dict[int, int] = {}
    for folder in system.folders:
        table = FinishedRun.from_folder(folder).rollouts().filter(f"outcome = '{Outcome.DECIDED}'")
        for rounds, games in table.aggregate("rounds, count(*)", "rounds").fetchall():
            counts[rounds] = counts.get(rounds, 0) + games
    if not counts:
        raise UsageError(f"{comma_join(system.run_ids)}: no game was decided; choose other runs")
    rows = [{**system.facts(), "rounds": rounds, "games": counts[rounds]} for rounds in sorted(counts)]
    pairs = [(float(row["rounds"]), float(row["games"])) for row in rows]
    encoding = Encoding("columns", "rounds", "games", x_name="rounds to the decision", y_name="games")
    return Figure(
        "rounds", f"Rounds to the decision, {system.name}", rows, encoding,
        lambda frame: columns(pairs, frame, x="rounds to the decision"),
    )  # fmt: skip


def _outcomes(folders: Sequence[RunFolder], _: str) -> Figure:
    """Plot the number of games with each outcome."""
    system = _only_system(systems_of(folders), "outcomes")
    outcomes = [folder.read_metrics()["outcomes"] for folder in system.folders]
    sums = {outcome.value: sum(games.get(outcome.value, 0) for games in outcomes) for outcome in Outcome}
    rows = [{**system.facts(), "outcome": name, "games": games} for name, games in sums.items()]
    points = [ChartEstimate(name, games) for name, games in sums.items()]
    encoding = Encoding("bars", "games", "outcome", x_name="games")
    return Figure(
        "outcomes", f"How games ended, {system.name}", rows, encoding,
        lambda frame: bars(points, frame, format_value=format_count, axis="games"),
    )  # fmt: skip


def _frontier(folders: Sequence[RunFolder], metric: str) -> Figure:
    """Plot a metric of each system against its cost per game."""
    systems = systems_of(folders)
    measurements = _measure(systems, metric)
    rows = [
        {**row, "cost_usd_a_game": system.cost_per_game} for system, (_, row) in zip(systems, measurements, strict=True)
    ]
    unpriced = [run_id for system in systems if system.cost_per_game is None for run_id in system.run_ids]
    if len(unpriced) == sum(len(system.folders) for system in systems):
        raise UsageError(
            f"{comma_join(unpriced)}: the cost is unknown; set the models' prices in the spec and play again"
        )
    priced_systems = [
        PricedSystem(point.name, point, row["cost_usd_a_game"])
        for (point, _), row in zip(measurements, rows, strict=True)
    ]
    encoding = Encoding("scatter", "cost_usd_a_game", "value", "ci_low", "ci_high", "system", "dollars a game", metric)
    return Figure(
        "frontier", f"Cost against {metric}", rows, encoding,
        lambda frame: frontier(priced_systems, frame, x="dollars a game", y=metric),
        (*(f"the cost of {run_id} is unknown" for run_id in unpriced), *sample_notes(systems)),
    )  # fmt: skip


def _protocol(folders: Sequence[RunFolder], _: str) -> Figure:
    """Draw the rounds of a system's protocol: who speaks, who hears it, and who may decide."""
    system = _only_system(systems_of(folders), "protocol")
    protocol = played_plan(system.folders[0]).spec.protocol
    rows = [
        {**system.facts(), "round": number, "agent": speech.agent, "channel": speech.channel,
         "heard_by": list(speech.heard_by), "may_decide": speech.agent in scheduled.may_decide}
        for number, scheduled in enumerate(schedule(protocol)) for speech in scheduled.speech
    ]  # fmt: skip
    return Figure(
        "protocol", f"The protocol {protocol.name}", rows,
        Encoding("points", "round", "agent", None, None, None, "round", ""),
        lambda frame: protocol_picture(protocol, look=frame.look, title=frame.title),
    )  # fmt: skip


def _only_system(systems: Sequence[FigureSystem], name: str) -> FigureSystem:
    """Return the only system.

    Raises:
        UsageError: there are several.
    """
    if len(systems) > 1:
        raise UsageError(
            f"the figure {name} shows one system, but these runs are of {len(systems)} systems "
            f"({comma_join(system.name for system in systems)}); name runs of one system"
        )
    return systems[0]


FIGURES: Mapping[str, FigureKind] = {
    "learning_curve": FigureKind("accuracy on the test over iterations, seeds pooled, with bands", learning_curve),
    "accuracy_by_protocol": FigureKind(
        "accuracy of each protocol, compared with the verifier alone",
        lambda folders, metric: _by_protocol(folders, metric, "accuracy_by_protocol", "Accuracy by protocol"),
    ),
    "always_failed": FigureKind(
        "share of datapoints that the verifier gets wrong every time",
        lambda folders, _: _by_protocol(folders, "always_failed", "always_failed", "Share always failed"),
    ),
    "reliability": FigureKind("the verifier's probability against the share that is right", _reliability),
    "forest": FigureKind("a metric of each run, or all shares of one run, with intervals", _forest, takes_metric=True),
    "differences": FigureKind("the second run minus the first, by metric, with intervals", differences),
    "protocol": FigureKind("who speaks in each round, and who hears it", _protocol),
    "rounds": FigureKind("rounds until the verdict", _rounds),
    "outcomes": FigureKind("how games ended", _outcomes),
    "frontier": FigureKind("dollars a game against accuracy, with the frontier", _frontier, takes_metric=True),
}  # fmt: skip
