"""Runs that a figure is of, as systems: those of one game are its seeds, and are pooled as the board pools them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from runner.base.errors import UsageError
from runner.base.text import comma_join, counted
from runner.pages.charts.estimates import ChartEstimate
from runner.results.estimates import Estimate
from runner.results.folder import RunFolder
from runner.results.leaderboard.pooled_numbers import pooled_curves, pooled_estimates
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import NOT_ON_BOARD, SEED, SweepPoint, SweepValue, sweep_rows
from runner.results.manifest import PLAYED, Manifest
from runner.results.metric_table import METRICS

_NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("value", "ci_low", "ci_high")), "n": 0, "clusters": 0, "reason": "not measured",
}  # fmt: skip


@dataclass(frozen=True)
class FigureSystem:
    """The runs of one game; they differ in their seeds."""

    name: str
    folders: tuple[RunFolder, ...]
    manifests: tuple[Manifest, ...]

    @property
    def first(self) -> Manifest:
        return self.manifests[0]

    @property
    def run_ids(self) -> list[str]:
        return [one.run_id for one in self.manifests]

    @property
    def is_lone_verifier(self) -> bool:
        return all(agent["role"] == "verifier" for agent in self.first.agents)

    @property
    def cost_a_game(self) -> float | None:
        """Dollars; None where a price or a number of games is not known."""
        costs, games = [one.cost_usd for one in self.manifests], [one.rollouts for one in self.manifests]
        known = [cost for cost in costs if cost is not None]
        played = sum(number or 0 for number in games)
        return sum(known) / played if played and len(known) == len(costs) else None

    def facts(self) -> dict[str, Any]:
        """What every row says of its system."""
        return {"system": self.name, "protocol": self.first.protocol, "runs": self.run_ids}


def _depends_on_plays(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].depends_on_plays


def systems_of(folders: Sequence[RunFolder]) -> list[FigureSystem]:
    """Finished benchmark runs as systems, in their order.

    Raises:
        UsageError: one is not finished, or is a training run; what it is and what to do.
    """
    manifests = [folder.manifest() for folder in folders]
    training = [one.run_id for one in manifests if one.is_training_run]
    if training:
        raise UsageError(
            f"{comma_join(training)}: a training run has no games of its own; name its tests, which "
            f"`nip-run runs` lists, or plot learning_curve"
        )
    unfinished = [f"{one.run_id} is {one.status}" for one in manifests if one.status not in PLAYED]
    if unfinished:
        raise UsageError(f"{comma_join(unfinished)}: a figure is of finished runs; `nip-run SPEC` goes on with one")
    return grouped(folders, manifests)


def grouped(folders: Sequence[RunFolder], manifests: Sequence[Manifest]) -> list[FigureSystem]:
    """Runs of one game together, each system under the shortest name that tells it from the others."""
    games: dict[str, list[tuple[RunFolder, Manifest]]] = {}
    for folder, manifest in dict(
        zip([one.run_id for one in manifests], zip(folders, manifests, strict=True), strict=True)
    ).values():
        games.setdefault(manifest.game_sha256, []).append((folder, manifest))
    firsts = [members[0][1] for members in games.values()]
    name = _naming(firsts)
    return [
        FigureSystem(
            name(members[0][1]), tuple(folder for folder, _ in members), tuple(manifest for _, manifest in members)
        )
        for members in games.values()
    ]


def _naming(manifests: Sequence[Manifest]) -> Callable[[Manifest], str]:
    """The first way of naming that tells all of them apart: protocol, what is swept, spec, and last the run's id."""

    def point(one: Manifest) -> str:
        return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in one.point.items() if key != SEED)

    ways: list[Callable[[Manifest], str]] = [
        lambda one: one.protocol,
        lambda one: point(one) or one.protocol,
        lambda one: one.name,
        lambda one: f"{one.name} {point(one)}".strip(),
    ]
    return next((way for way in ways if len({way(one) for one in manifests}) == len(manifests)), lambda one: one.run_id)


def estimates(systems: Sequence[FigureSystem], metric: str) -> list[tuple[ChartEstimate, dict[str, Any]]]:
    """A metric of each system with the row of its facts; seeds are pooled as a sweep's are.

    Raises:
        UsageError: no run has such a metric.
        LeaderboardError: the board is damaged.
    """
    return [estimates_of(system, [metric])[0] for system in systems]


def estimates_of(system: FigureSystem, metrics: Sequence[str]) -> list[tuple[ChartEstimate, dict[str, Any]]]:
    """`estimates` of several metrics of one system, whose games are read once for all of them."""
    if len(system.folders) == 1:
        found = {metric: row_of(system.folders[0], metric) or _NOTHING for metric in metrics}
    else:
        read = cache(lambda run_ids: pooled_estimates(results_of(system), run_ids))
        told = pooled(system, metrics, lambda run_ids: read(tuple(run_ids)))
        found = {metric: vars(value) for metric, value in told.items()}
        if any(map(_depends_on_plays, metrics)):
            numbers = read(tuple(system.run_ids))
            plays = {
                metric: numbers[metric].plays for metric in metrics if _depends_on_plays(metric) and metric in numbers
            }
            found |= {metric: {**found[metric], "plays": number} for metric, number in plays.items()}
    return [_estimate(system, metric, found[metric]) for metric in metrics]


def _estimate(system: FigureSystem, metric: str, row: Mapping[str, Any]) -> tuple[ChartEstimate, dict[str, Any]]:
    note = "" if row["value"] is None else f"n {row['n']}, {counted(len(system.folders), 'run')}"
    facts = {name: row[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
    plays = {"plays": row["plays"]} if row.get("plays") is not None else {}
    told = {**system.facts(), "metric": metric, **facts, **plays, "reason": row.get("reason")}
    return ChartEstimate.of(system.name, row, note), told


def row_of(folder: RunFolder, metric: str) -> Mapping[str, Any] | None:
    """A metric of one run's `metrics.json`; that of an agent is AGENT.METRIC."""
    agent, _, name = metric.rpartition(".")
    rows: Iterable[Mapping[str, Any]] = folder.read_metrics()["metrics"]
    return next((row for row in rows if (row["agent"] or "", row["metric"]) == (agent, name)), None)


def pooled(
    system: FigureSystem,
    metrics: Sequence[str],
    numbers: Callable[[Sequence[str]], Mapping[str, Estimate]] | None = None,
) -> Mapping[str, SweepValue]:
    """Metrics of the games of all runs of a system, by the table of sweeps, which takes `numbers` where they are given.

    Raises:
        UsageError: the board, by which they are pooled, lacks a run; how it is put there.
        LeaderboardError: the board is damaged.
    """
    points, results = (
        [SweepPoint(system.name, one.run_id, {}, one.seed) for one in system.manifests],
        results_of(system),
    )
    [row] = sweep_rows(points, results, metrics, writes=False, numbers=numbers)
    if lacking := [run_id for run_id, status in row.missing.items() if status == NOT_ON_BOARD]:
        raise UsageError(
            f"{comma_join(lacking)}: {NOT_ON_BOARD}, by which seeds are pooled; {results.board.rebuilding}"
        )
    return row.metrics


def results_of(system: FigureSystem) -> Results:
    """The results folder that the runs of a system are in together.

    Raises:
        UsageError: they are in several.
    """
    places = {Results.of(folder).path.resolve(): Results.of(folder) for folder in system.folders}
    if len(places) > 1 or any(not Results.of(one).run(one.run_id).manifest_path.is_file() for one in system.folders):
        raise UsageError(
            f"{comma_join(system.run_ids)} are of one game and in several folders: only runs of one results folder can "
            "be pooled"
        )
    return next(iter(places.values()))


def curves_of(system: FigureSystem) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The reliability curves of a system, by the kind of its confidences; empty where it has none."""
    if len(system.folders) == 1:
        found: Mapping[str, Sequence[Mapping[str, Any]]] = (
            system.folders[0].read_metrics().get("reliability_curves", {})
        )
        return found
    return {
        kind: [vars(one) for one in bins] for kind, bins in pooled_curves(results_of(system), system.run_ids).items()
    }
