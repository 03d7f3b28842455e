"""The catalog of figures: figures for the paper's experiments, and figures about a single run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean
from runner.pages.charts.columns import columns
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.frontier import Offer, frontier
from runner.pages.charts.labels import format_count
from runner.pages.charts.reliability import ReliabilityBins, reliability
from runner.pages.charts.rows import bars, forest
from runner.pages.figures.figure import Encoding, Figure
from runner.pages.figures.learning_curve import learning_curve
from runner.pages.figures.systems import FigureSystem, curves_of, estimates, estimates_of, row_of, systems_of
from runner.results.comparison.baselines import find_baseline
from runner.results.comparison.systems import load_system
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import RANKING_METRIC, game_shares
from runner.rollouts.rollout import Outcome
from runner.runs.finished.result import FinishedRun

LONE = "solo_verifier"
"""The protocol with a verifier and no prover: the baseline for other protocols."""


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure; `help` describes it in one line."""

    help: str
    build: Callable[[Sequence[RunFolder], str], Figure]
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
    lone = next((system for system in systems if system.is_lone_verifier), None)
    notes: tuple[str, ...] = ()
    if lone is None and (lone := _find_lone_verifier(systems[0])) is None:
        missing = f"the results folder has no run of this verifier on this task with protocol {LONE}"
        notes = (f"no baseline, because {missing}; play one, then plot again",)
    compared = [system for system in systems if system is not lone] or [system for system in systems if system is lone]
    measurements = _measure(compared, metric)
    baseline = None if lone is None or compared == [lone] else estimates([lone], metric)[0]
    rows = [{**row, "is_baseline": False} for _, row in measurements]
    if baseline is not None and lone not in systems and baseline[1].get("plays") != rows[0].get("plays"):
        baseline_runs = comma_join(baseline[1]["runs"])
        notes = (f"no baseline, because {baseline_runs} have another rollouts.per_datapoint; play them with the same",)
        baseline = None
    if baseline is not None:
        rows.append({**baseline[1], "is_baseline": True})
    _check_plays(rows, metric)
    points, reference = [estimate for estimate, _ in measurements], None if baseline is None else baseline[0]
    encoding = Encoding("bars", "value", "system", "ci_low", "ci_high", None, metric, "")
    return Figure(
        name, title, rows, encoding,
        lambda look, title: bars(points, title=title, look=look, baseline=reference, domain=(0.0, 1.0), axis=metric),
        notes,
    )  # fmt: skip


def _find_lone_verifier(system: FigureSystem) -> FigureSystem | None:
    """Return the runs in which the system's verifier model plays alone on the same datapoints, or None."""
    results = Results.of(system.folders[0])
    with suppress(UsageError):
        match = find_baseline(LONE, load_system([folder.path for folder in system.folders], results), results)
        return FigureSystem(LONE, tuple(match.runs), tuple(match.manifests))
    return None


def _check_plays(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Check that all systems played each datapoint equally often, if the metric depends on the number of games.

    Raises:
        UsageError: the systems played the datapoints a different number of times.
    """
    plays = {row["system"]: row["plays"] for row in rows if row.get("plays") is not None}
    if len(set(plays.values())) > 1:
        counts = comma_join(f"{name} {number}" for name, number in plays.items())
        raise UsageError(
            f"{metric} depends on the number of games per datapoint, which differs: {counts}. Name the same number of "
            "seeds for each system, or play all systems with the same rollouts.per_datapoint"
        )


def _measure(systems: Sequence[FigureSystem], metric: str) -> list[tuple[ChartEstimate, dict[str, Any]]]:
    """Return the estimate and the row of a metric for each system.

    Raises:
        UsageError: no system has the metric; the message has the reason for each.
    """
    measurements = estimates(systems, metric)
    if all(estimate.value is None for estimate, _ in measurements):
        reasons = "; ".join(f"{estimate.name}: {row['reason'] or 'not measured'}" for estimate, row in measurements)
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
            if any((row_of(folder, name) or {}).get("value") is not None for folder in system.folders)
        ]
        measurements = estimates_of(system, names)
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
        lambda look, title: forest(points, title=title, look=look, domain=domain, axis=axis),
    )  # fmt: skip


def _reliability(folders: Sequence[RunFolder], _: str) -> Figure:
    systems = systems_of(folders)
    curves = [(system, curves_of(system)) for system in systems]
    lacking = [run_id for system, curves_found in curves if not curves_found for run_id in system.run_ids]
    if lacking:
        raise UsageError(
            f"{comma_join(lacking)}: a reliability curve needs probabilities of verdicts, which these runs lack; play "
            "new runs with `verdict: {confidence: stated}`, or with `logprob` if the server returns log-probabilities"
        )
    judges: list[ReliabilityBins] = []
    rows: list[dict[str, Any]] = []
    for system, curves_found in curves:
        for kind, bins in curves_found.items():
            judge = f"{system.name}, {kind}" if len(systems) > 1 else kind
            judges.append(ReliabilityBins(judge, bins))
            rows += [{**system.facts(), "judge": judge, "kind": kind, **row} for row in bins]
    encoding = Encoding(
        "lines", "confidence", "right", "ci_low", "ci_high", "judge", "P(accept)", "share of right solutions"
    )
    return Figure(
        "reliability", "Reliability of the verifier", rows, encoding,
        lambda look, title: reliability(judges, title=title, look=look),
    )  # fmt: skip


def _rounds(folders: Sequence[RunFolder], _: str) -> Figure:
    system = _only_system(systems_of(folders), "rounds")
    counts: dict[int, int] = {}
    for folder in system.folders:
        table = FinishedRun.opened(folder).rollouts().filter(f"outcome = '{Outcome.DECIDED}'")
        for rounds, games in table.aggregate("rounds, count(*)", "rounds").fetchall():
            counts[rounds] = counts.get(rounds, 0) + games
    if not counts:
        raise UsageError(f"{comma_join(system.run_ids)}: no game was decided; choose other runs")
    rows = [{**system.facts(), "rounds": rounds, "games": counts[rounds]} for rounds in sorted(counts)]
    pairs = [(float(row["rounds"]), float(row["games"])) for row in rows]
    encoding = Encoding("columns", "rounds", "games", x_name="rounds to the decision", y_name="games")
    return Figure(
        "rounds", f"Rounds to the decision, {system.name}", rows, encoding,
        lambda look, title: columns(pairs, title=title, look=look, x="rounds to the decision"),
    )  # fmt: skip


def _outcomes(folders: Sequence[RunFolder], _: str) -> Figure:
    system = _only_system(systems_of(folders), "outcomes")
    outcomes = [folder.read_metrics()["outcomes"] for folder in system.folders]
    sums = {outcome.value: sum(games.get(outcome.value, 0) for games in outcomes) for outcome in Outcome}
    rows = [{**system.facts(), "outcome": name, "games": games} for name, games in sums.items()]
    points = [ChartEstimate(name, games) for name, games in sums.items()]
    encoding = Encoding("bars", "games", "outcome", x_name="games")
    return Figure(
        "outcomes", f"How games ended, {system.name}", rows, encoding,
        lambda look, title: bars(points, title=title, look=look, format_value=format_count, axis="games"),
    )  # fmt: skip


def _frontier(folders: Sequence[RunFolder], metric: str) -> Figure:
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
    offers = [
        Offer(point.name, point, row["cost_usd_a_game"]) for (point, _), row in zip(measurements, rows, strict=True)
    ]
    encoding = Encoding("scatter", "cost_usd_a_game", "value", "ci_low", "ci_high", "system", "dollars a game", metric)
    return Figure(
        "frontier", f"Cost against {metric}", rows, encoding,
        lambda look, title: frontier(offers, title=title, look=look, x="dollars a game", y=metric),
        tuple(f"the cost of {run_id} is unknown" for run_id in unpriced),
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
    "reliability": FigureKind("P(accept) against the share of right solutions", _reliability),
    "forest": FigureKind("a metric of each run, or all shares of one run, with intervals", _forest, takes_metric=True),
    "rounds": FigureKind("rounds until the verdict", _rounds),
    "outcomes": FigureKind("how games ended", _outcomes),
    "frontier": FigureKind("dollars a game against accuracy, with the frontier", _frontier, takes_metric=True),
}  # fmt: skip
