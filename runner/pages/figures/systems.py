"""Groups the runs of a figure into systems. Runs of the same game are seeds, whose results are pooled."""

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
from runner.results.metric_definitions import METRICS

_NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("value", "ci_low", "ci_high")), "n": 0, "clusters": 0, "reason": "not measured",
}  # fmt: skip


@dataclass(frozen=True)
class FigureSystem:
    """Runs of the same game that differ only in their seeds."""

    name: str
    folders: tuple[RunFolder, ...]
    manifests: tuple[Manifest, ...]

    @property
    def first(self) -> Manifest:
        return self.manifests[0]

    @property
    def run_ids(self) -> list[str]:
        return [run.run_id for run in self.manifests]

    @property
    def is_lone_verifier(self) -> bool:
        return all(agent["role"] == "verifier" for agent in self.first.agents)

    @property
    def cost_per_game(self) -> float | None:
        """Cost per game in dollars; None if a price or a number of games is unknown."""
        costs = [run.cost_usd for run in self.manifests if run.cost_usd is not None]
        games = sum(run.rollouts or 0 for run in self.manifests)
        return sum(costs) / games if games and len(costs) == len(self.manifests) else None

    def facts(self) -> dict[str, Any]:
        """Return the facts about the system that every row has."""
        return {"system": self.name, "protocol": self.first.protocol, "runs": self.run_ids}


def _depends_on_plays(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].depends_on_plays


def systems_of(folders: Sequence[RunFolder]) -> list[FigureSystem]:
    """Group finished benchmark runs into systems, in order.

    Raises:
        UsageError: a run is not finished, or is a training run.
    """
    manifests = [folder.manifest() for folder in folders]
    training = [manifest.run_id for manifest in manifests if manifest.is_training_run]
    if training:
        raise UsageError(
            f"{comma_join(training)}: a training run has no games of its own; name the runs of its tests "
            "(`nip-run runs` lists them), or plot learning_curve"
        )
    unfinished = [f"{manifest.run_id} is {manifest.status}" for manifest in manifests if manifest.status not in PLAYED]
    if unfinished:
        raise UsageError(f"{comma_join(unfinished)}: a figure needs finished runs; resume the runs with `nip-run SPEC`")
    return group_systems(folders, manifests)


def group_systems(folders: Sequence[RunFolder], manifests: Sequence[Manifest]) -> list[FigureSystem]:
    """Group runs of the same game into systems. Each gets the shortest name that no other system has."""
    games: dict[str, list[tuple[RunFolder, Manifest]]] = {}
    for folder, manifest in dict(
        zip([manifest.run_id for manifest in manifests], zip(folders, manifests, strict=True), strict=True)
    ).values():
        games.setdefault(manifest.game_sha256, []).append((folder, manifest))
    firsts = [members[0][1] for members in games.values()]
    name = _choose_naming(firsts)
    return [
        FigureSystem(
            name(members[0][1]), tuple(folder for folder, _ in members), tuple(manifest for _, manifest in members)
        )
        for members in games.values()
    ]


def _choose_naming(manifests: Sequence[Manifest]) -> Callable[[Manifest], str]:
    """Return the first naming scheme with unique names: by protocol, swept values, spec name, or run id."""

    def point(run: Manifest) -> str:
        return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in run.point.items() if key != SEED)

    schemes: list[Callable[[Manifest], str]] = [
        lambda run: run.protocol,
        lambda run: point(run) or run.protocol,
        lambda run: run.name,
        lambda run: f"{run.name} {point(run)}".strip(),
    ]
    unique = (name for name in schemes if len({name(run) for run in manifests}) == len(manifests))
    return next(unique, lambda run: run.run_id)


def estimates(systems: Sequence[FigureSystem], metric: str) -> list[tuple[ChartEstimate, dict[str, Any]]]:
    """Return the estimate and the row of a metric for each system. Seeds are pooled as in a sweep.

    Raises:
        UsageError: no run has the metric.
        LeaderboardError: the board is damaged.
    """
    return [estimates_of(system, [metric])[0] for system in systems]


def estimates_of(system: FigureSystem, metrics: Sequence[str]) -> list[tuple[ChartEstimate, dict[str, Any]]]:
    """Return several metrics of a system, like `estimates`, but read the games only once."""
    if len(system.folders) == 1:
        values = {metric: row_of(system.folders[0], metric) or _NOTHING for metric in metrics}
    else:
        read_pooled = cache(lambda run_ids: pooled_estimates(results_of(system), run_ids))
        pooled_values = pooled_metrics(system, metrics, lambda run_ids: read_pooled(tuple(run_ids)))
        values = {metric: vars(value) for metric, value in pooled_values.items()}
        if any(map(_depends_on_plays, metrics)):
            numbers = read_pooled(tuple(system.run_ids))
            plays = {
                metric: numbers[metric].plays for metric in metrics if _depends_on_plays(metric) and metric in numbers
            }
            values |= {metric: {**values[metric], "plays": number} for metric, number in plays.items()}
    return [_estimate(system, metric, values[metric]) for metric in metrics]


def _estimate(system: FigureSystem, metric: str, row: Mapping[str, Any]) -> tuple[ChartEstimate, dict[str, Any]]:
    note = "" if row["value"] is None else f"n {row['n']}, {counted(len(system.folders), 'run')}"
    facts = {name: row[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
    plays = {"plays": row["plays"]} if row.get("plays") is not None else {}
    row_facts = {**system.facts(), "metric": metric, **facts, **plays, "reason": row.get("reason")}
    return ChartEstimate.of(system.name, row, note), row_facts


def row_of(folder: RunFolder, metric: str) -> Mapping[str, Any] | None:
    """Return the row of a metric in a run's `metrics.json`, or None; a metric of an agent is named AGENT.METRIC."""
    agent, _, name = metric.rpartition(".")
    rows: Iterable[Mapping[str, Any]] = folder.read_metrics()["metrics"]
    return next((row for row in rows if (row["agent"] or "", row["metric"]) == (agent, name)), None)


def pooled_metrics(
    system: FigureSystem,
    metrics: Sequence[str],
    numbers: Callable[[Sequence[str]], Mapping[str, Estimate]] | None = None,
) -> Mapping[str, SweepValue]:
    """Return metrics pooled over all runs of a system, as in the table of a sweep.

    `numbers` returns the pooled estimates of some runs; by default, the games are read.

    Raises:
        UsageError: a run is missing on the board, so it cannot be pooled.
        LeaderboardError: the board is damaged.
    """
    points, results = (
        [SweepPoint(system.name, manifest.run_id, {}, manifest.seed) for manifest in system.manifests],
        results_of(system),
    )
    [row] = sweep_rows(points, results, metrics, writes=False, numbers=numbers)
    if missing_runs := [run_id for run_id, status in row.missing.items() if status == NOT_ON_BOARD]:
        problem = f"{comma_join(missing_runs)}: {NOT_ON_BOARD}, so their seeds cannot be pooled"
        raise UsageError(f"{problem}; {results.board.rebuild_command}")
    return row.metrics


def results_of(system: FigureSystem) -> Results:
    """Return the results folder with all runs of a system.

    Raises:
        UsageError: the runs are in several folders.
    """
    places = {Results.of(folder).path.resolve(): Results.of(folder) for folder in system.folders}
    elsewhere = [run for run in system.folders if not Results.of(run).run(run.run_id).manifest_path.is_file()]
    if len(places) > 1 or elsewhere:
        raise UsageError(
            f"{comma_join(system.run_ids)} are seeds of one game in several folders, but only runs in one results "
            "folder can be pooled; copy the runs into one folder and run `nip-run leaderboard --rebuild` there"
        )
    return next(iter(places.values()))


def curves_of(system: FigureSystem) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the reliability curves of a system by kind of confidence; empty if no run has probabilities."""
    if len(system.folders) == 1:
        curves: Mapping[str, Sequence[Mapping[str, Any]]] = (
            system.folders[0].read_metrics().get("reliability_curves", {})
        )
        return curves
    return {
        kind: [vars(reliability_bin) for reliability_bin in bins]
        for kind, bins in pooled_curves(results_of(system), system.run_ids).items()
    }
