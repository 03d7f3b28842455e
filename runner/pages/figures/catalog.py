"""The figures there are, each made of runs: what the paper's experiments show, and what a reader of one run asks."""

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
from runner.pages.charts.labels import counted
from runner.pages.charts.reliability import ReliabilityBins, reliability
from runner.pages.charts.rows import bars, forest
from runner.pages.figures.figure import Encoding, Figure
from runner.pages.figures.learning_curve import learning_curve
from runner.pages.figures.systems import FigureSystem, curves_of, estimates, estimates_of, row_of, systems_of
from runner.results.comparison.baselines import baseline_of
from runner.results.comparison.systems import system_of
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_table import RANKING_METRIC, game_shares
from runner.rollouts.rollout import Outcome
from runner.runs.finished.result import FinishedRun

LONE = "solo_verifier"
"""The protocol in which the verifier decides alone: the baseline of the others."""


@dataclass(frozen=True)
class FigureKind:
    """`help`: what it shows, in a line."""

    help: str
    make: Callable[[Sequence[RunFolder], str], Figure]
    takes_metric: bool = False


def figure(name: str, folders: Sequence[RunFolder], metric: str | None = None) -> Figure:
    """A figure by its name.

    Raises:
        UsageError: there is no such figure, or the runs lack what it shows; which of them, and what.
        RunError, LeaderboardError: a file of a run, or the board, is damaged.
    """
    maker = FIGURES.get(name)
    if maker is None:
        raise UsageError(f"no figure {name!r}{did_you_mean(name, FIGURES) or f'; there are: {comma_join(FIGURES)}'}")
    if metric is not None and not maker.takes_metric:
        takers = comma_join(one for one, maker in FIGURES.items() if maker.takes_metric)
        raise UsageError(f"{name} shows what it shows: --metric is for {takers}")
    return maker.make(folders, metric or RANKING_METRIC)


def _by_protocol(folders: Sequence[RunFolder], metric: str, name: str, title: str) -> Figure:
    systems = systems_of(folders)
    lone = next((one for one in systems if one.is_lone_verifier), None)
    notes: tuple[str, ...] = ()
    if lone is None and (lone := _lone_verifier(systems[0])) is None:
        notes = ("no baseline: no run of the lone verifier with this task and this verifier was found",)
    others = [one for one in systems if one is not lone] or [one for one in systems if one is lone]
    found = _measured(others, metric)
    baseline = None if lone is None or others == [lone] else estimates([lone], metric)[0]
    rows = [{**row, "is_baseline": False} for _, row in found]
    if baseline is not None and lone not in systems and baseline[1].get("plays") != rows[0].get("plays"):
        notes = (f"no baseline: {comma_join(baseline[1]['runs'])} played each datapoint another number of times",)
        baseline = None
    if baseline is not None:
        rows.append({**baseline[1], "is_baseline": True})
    _check_plays(rows, metric)
    shown, below = [one for one, _ in found], None if baseline is None else baseline[0]
    encoding = Encoding("bars", "value", "system", "ci_low", "ci_high", None, metric, "")
    return Figure(
        name, title, rows, encoding,
        lambda look, title: bars(shown, title=title, look=look, baseline=below, domain=(0.0, 1.0), axis=metric), notes,
    )  # fmt: skip


def _lone_verifier(system: FigureSystem) -> FigureSystem | None:
    """The lone verifier's runs on the same datapoints with the same model, where there are any."""
    results = Results.of(system.folders[0])
    with suppress(UsageError):
        found = baseline_of(LONE, system_of([folder.path for folder in system.folders], results), results)
        return FigureSystem(LONE, tuple(found.runs), tuple(found.manifests))
    return None


def _check_plays(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """See that a number that depends on how often datapoints were played is of as many plays everywhere.

    Raises:
        UsageError: it is not; how many each system has.
    """
    plays = {row["system"]: row["plays"] for row in rows if row.get("plays") is not None}
    if len(set(plays.values())) > 1:
        told = comma_join(f"{name} {number}" for name, number in plays.items())
        raise UsageError(
            f"{metric} depends on how often each datapoint was played, and that differs: {told}. Name as many seeds of "
            "each, or play with the same rollouts.per_datapoint"
        )


def _measured(systems: Sequence[FigureSystem], metric: str) -> list[tuple[ChartEstimate, dict[str, Any]]]:
    """A metric of systems of which one has it at least.

    Raises:
        UsageError: none has; why, of each.
    """
    found = estimates(systems, metric)
    if all(estimate.value is None for estimate, _ in found):
        why = "; ".join(f"{estimate.name}: {row['reason'] or 'not measured'}" for estimate, row in found)
        raise UsageError(f"no {metric} to show: {why}")
    return found


def _forest(folders: Sequence[RunFolder], metric: str) -> Figure:
    """One system: its shares; several: one metric of each."""
    systems = systems_of(folders)
    domain: tuple[float, float] | None = (0.0, 1.0)
    if len(systems) == 1 and metric == RANKING_METRIC:
        [system] = systems
        names = [
            name
            for name in game_shares()
            if any((row_of(folder, name) or {}).get("value") is not None for folder in system.folders)
        ]
        found = estimates_of(system, names)
        shown = [ChartEstimate(row["metric"], one.value, one.low, one.high, one.note) for one, row in found]
        title, y = f"Shares of {system.name}", "metric"
    else:
        found = _measured(systems, metric)
        _check_plays([row for _, row in found], metric)
        shown, title, y = [one for one, _ in found], metric, "system"
        domain = domain if metric in game_shares() else None
    rows = [row for _, row in found]
    axis = "share of games" if y == "metric" else metric
    encoding = Encoding("points", "value", y, "ci_low", "ci_high", None, axis, "")
    return Figure(
        "forest", title, rows, encoding,
        lambda look, title: forest(shown, title=title, look=look, domain=domain, axis=axis),
    )  # fmt: skip


def _reliability(folders: Sequence[RunFolder], _: str) -> Figure:
    systems = systems_of(folders)
    curves = [(one, curves_of(one)) for one in systems]
    without = [run_id for one, found in curves if not found for run_id in one.run_ids]
    if without:
        raise UsageError(
            f"{comma_join(without)}: no probability of a verdict is known, and a reliability curve is made of them; "
            "play with `verdict: {confidence: stated}`, or `logprob` where the server gives log-probabilities"
        )
    judges: list[ReliabilityBins] = []
    rows: list[dict[str, Any]] = []
    for system, found in curves:
        for kind, bins in found.items():
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
    system = _single(systems_of(folders), "rounds")
    counts: dict[int, int] = {}
    for folder in system.folders:
        table = FinishedRun.opened(folder).rollouts().filter(f"outcome = '{Outcome.DECIDED}'")
        for rounds, games in table.aggregate("rounds, count(*)", "rounds").fetchall():
            counts[rounds] = counts.get(rounds, 0) + games
    if not counts:
        raise UsageError(f"{comma_join(system.run_ids)}: no game was decided")
    rows = [{**system.facts(), "rounds": rounds, "games": counts[rounds]} for rounds in sorted(counts)]
    pairs = [(float(row["rounds"]), float(row["games"])) for row in rows]
    encoding = Encoding("columns", "rounds", "games", x_name="rounds to the decision", y_name="games")
    return Figure(
        "rounds", f"Rounds to the decision, {system.name}", rows, encoding,
        lambda look, title: columns(pairs, title=title, look=look, x="rounds to the decision"),
    )  # fmt: skip


def _outcomes(folders: Sequence[RunFolder], _: str) -> Figure:
    system = _single(systems_of(folders), "outcomes")
    outcomes = [folder.read_metrics()["outcomes"] for folder in system.folders]
    sums = {outcome.value: sum(games.get(outcome.value, 0) for games in outcomes) for outcome in Outcome}
    rows = [{**system.facts(), "outcome": name, "games": games} for name, games in sums.items()]
    shown = [ChartEstimate(name, games) for name, games in sums.items()]
    encoding = Encoding("bars", "games", "outcome", x_name="games")
    return Figure(
        "outcomes", f"How games ended, {system.name}", rows, encoding,
        lambda look, title: bars(shown, title=title, look=look, format_value=counted, axis="games"),
    )  # fmt: skip


def _frontier(folders: Sequence[RunFolder], metric: str) -> Figure:
    systems = systems_of(folders)
    found = _measured(systems, metric)
    rows = [{**row, "cost_usd_a_game": system.cost_a_game} for system, (_, row) in zip(systems, found, strict=True)]
    unknown = [run_id for system in systems if system.cost_a_game is None for run_id in system.run_ids]
    if len(unknown) == sum(len(system.folders) for system in systems):
        raise UsageError(f"{comma_join(unknown)}: what the games cost is not known; say the models' prices in the spec")
    offers = [Offer(one.name, one, row["cost_usd_a_game"]) for (one, _), row in zip(found, rows, strict=True)]
    encoding = Encoding("scatter", "cost_usd_a_game", "value", "ci_low", "ci_high", "system", "dollars a game", metric)
    return Figure(
        "frontier", f"Cost against {metric}", rows, encoding,
        lambda look, title: frontier(offers, title=title, look=look, x="dollars a game", y=metric),
        tuple(f"no cost is known of {run_id}" for run_id in unknown),
    )  # fmt: skip


def _single(systems: Sequence[FigureSystem], name: str) -> FigureSystem:
    """Return the only system.

    Raises:
        UsageError: there are several.
    """
    if len(systems) > 1:
        raise UsageError(
            f"{name} is of one system, and these are {len(systems)}: {comma_join(one.name for one in systems)}"
        )
    return systems[0]


FIGURES: Mapping[str, FigureKind] = {
    "learning_curve": FigureKind("accuracy on the test over iterations, seeds pooled, with bands", learning_curve),
    "accuracy_by_protocol": FigureKind(
        "accuracy of each protocol beside the lone verifier's",
        lambda folders, metric: _by_protocol(folders, metric, "accuracy_by_protocol", "Accuracy by protocol"),
    ),
    "always_failed": FigureKind(
        "share of datapoints that the verifier has wrong in every play",
        lambda folders, _: _by_protocol(folders, "always_failed", "always_failed", "Share always failed"),
    ),
    "reliability": FigureKind("P(accept) against the share of right solutions", _reliability),
    "forest": FigureKind("a metric of each run with its interval, or all shares of one", _forest, takes_metric=True),
    "rounds": FigureKind("rounds until the verdict", _rounds),
    "outcomes": FigureKind("how games ended", _outcomes),
    "frontier": FigureKind("dollars a game against accuracy, with the frontier", _frontier, takes_metric=True),
}  # fmt: skip
