"""Groups the runs of a figure into systems, and measures the metrics of each system.

A system is the runs of one game that differ only in their seeds. Their results are pooled, as in the table of a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import Any, NamedTuple, cast

from runner.base.errors import UsageError
from runner.base.hashing import canonical
from runner.base.text import comma_join, counted
from runner.documents.dataclass_schema import to_plain
from runner.pages.charts.estimates import ChartEstimate
from runner.results.comparison.shared_samples import refuse_repeated_answers, shared_answers_remark, shared_verdicts
from runner.results.comparison.systems import System
from runner.results.estimates import Estimate
from runner.results.folder import RunFolder
from runner.results.leaderboard.pooled_numbers import pooled_curves, pooled_estimates
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import fixed_verdicts_of
from runner.results.leaderboard.sweep_table import NOT_ON_BOARD, SEED, SweepPoint, SweepValue, sweep_rows
from runner.results.manifest import PLAYED, Manifest
from runner.results.metric_definitions import METRICS
from runner.results.metrics_file import MetricRow, ReliabilityRow, find_metric_row
from runner.spec.loader import load_saved

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

    @cached_property
    def fixed_verdicts(self) -> str | None:
        """The reason if the system's verdicts do not depend on its verifier's answers; otherwise None."""
        return fixed_verdicts_of(self.folders[0])

    @property
    def cost_per_game(self) -> float | None:
        """Cost per game in dollars; None if a price or a number of games is unknown."""
        costs = [run.cost_usd for run in self.manifests if run.cost_usd is not None]
        games = sum(run.rollouts or 0 for run in self.manifests)
        return sum(costs) / games if games and len(costs) == len(self.manifests) else None

    def facts(self) -> dict[str, Any]:
        """Return the facts about the system that every row has."""
        return {"system": self.name, "protocol": self.first.protocol, "runs": self.run_ids}


def systems_of(folders: Sequence[RunFolder]) -> list[FigureSystem]:
    """Group finished benchmark runs into systems, in order.

    Raises:
        UsageError: a run is not finished, is a training run, or repeats the answers of another seed.
    """
    manifests = [folder.manifest() for folder in folders]
    training = [manifest.run_id for manifest in manifests if manifest.has_parts]
    if training:
        raise UsageError(
            f"{comma_join(training)}: a training run or tournament has no games of its own; name the runs of its tests "
            "or pairings (`nip-run runs -v` lists them), or plot learning_curve"
        )
    unfinished = [f"{manifest.run_id} is {manifest.status}" for manifest in manifests if manifest.status not in PLAYED]
    if unfinished:
        raise UsageError(f"{comma_join(unfinished)}: a figure needs finished runs; resume the runs with `nip-run SPEC`")
    systems = group_systems(folders, manifests)
    for system in systems:
        refuse_repeated_answers(system.folders, system.manifests)
    return systems


def sample_notes(systems: Sequence[FigureSystem]) -> tuple[str, ...]:
    """Return notes on fixed verdicts and lost games, and on pairs of systems that share answers or verdicts."""
    notes = [f"{system.name}: {system.fixed_verdicts}" for system in systems if system.fixed_verdicts is not None]
    samples = [System(system.folders, system.manifests) for system in systems]
    for system, sample in zip(systems, samples, strict=True):
        if lost := sample.lost_rollouts:
            notes.append(f"{system.name}: {counted(lost, 'rollout')} lost in transport and not counted")
    for base, other in combinations(samples, 2):
        shared = shared_verdicts(base, other)
        remark = shared_answers_remark(base, other) or (None if shared is None else shared.note)
        notes += [] if remark is None else [remark]
    return tuple(notes)


def group_systems(folders: Sequence[RunFolder], manifests: Sequence[Manifest]) -> list[FigureSystem]:
    """Group runs that differ only in their seeds. Each group gets the shortest name that no other group has."""
    groups: dict[bytes, dict[str, tuple[RunFolder, Manifest]]] = {}  # then by run id, because a run may be named twice
    for folder, manifest in zip(folders, manifests, strict=True):
        groups.setdefault(_settings_key(folder, manifest), {})[manifest.run_id] = folder, manifest
    members = [list(runs.values()) for runs in groups.values()]
    name = _choose_naming([runs[0][1] for runs in members])
    return [
        FigureSystem(name(runs[0][1]), tuple(folder for folder, _ in runs), tuple(manifest for _, manifest in runs))
        for runs in members
    ]


def _settings_key(folder: RunFolder, manifest: Manifest) -> bytes:
    """Return bytes that are equal for runs that differ only in their seeds or in the number of iterations so far."""
    settings: dict[str, Any] = {
        "game": manifest.game_sha256,
        "dataset": manifest.dataset_source_sha256,
        "selection": manifest.dataset_selection,
    }
    if manifest.is_training_run:
        experiment = load_saved(folder.spec).experiment
        settings["training"] = to_plain(experiment.training) | {"iterations": None}
        settings["frozen"] = [name for name, agent in experiment.agents.items() if agent.freeze]
    return canonical(settings)


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


class SystemEstimate(NamedTuple):
    """A metric of a system: the estimate that the chart draws, and the row of the figure."""

    estimate: ChartEstimate
    row: dict[str, Any]


def estimates(systems: Sequence[FigureSystem], metric: str) -> list[SystemEstimate]:
    """Return the estimate and the row of a metric for each system. Seeds are pooled as in a sweep.

    Raises:
        UsageError: no run has the metric.
        LeaderboardError: the board is damaged.
    """
    return [estimates_of(system, [metric])[0] for system in systems]


def estimates_of(system: FigureSystem, metrics: Sequence[str]) -> list[SystemEstimate]:
    """Return several metrics of a system, like `estimates`, but read the games only once."""
    if len(system.folders) == 1:
        values: dict[str, Mapping[str, Any]] = {
            metric: row_of(system.folders[0], metric) or _NOTHING for metric in metrics
        }
    else:
        read_pooled = cache(lambda run_ids: pooled_estimates(results_of(system), run_ids))
        pooled_values = pooled_metrics(system, metrics, lambda run_ids: read_pooled(tuple(run_ids)))
        values = {metric: vars(value) for metric, value in pooled_values.items()}
        for metric in (name for name in metrics if name in METRICS and METRICS[name].depends_on_plays):
            estimate = read_pooled(tuple(system.run_ids)).get(metric)
            if estimate is not None:
                values[metric] = {**values[metric], "plays": estimate.plays}
    return [_estimate(system, metric, values[metric]) for metric in metrics]


def _estimate(system: FigureSystem, metric: str, row: Mapping[str, object]) -> SystemEstimate:
    """Return an estimate and its row. If the system's verdicts are fixed, both have the reason instead of a value."""
    if system.fixed_verdicts is not None:
        row = {**row, **dict.fromkeys(("value", "ci_low", "ci_high")), "reason": system.fixed_verdicts}
    note = "" if row["value"] is None else f"n {row['n']}, {counted(len(system.folders), 'run')}"
    facts = {name: row[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
    plays = {"plays": row["plays"]} if row.get("plays") is not None else {}
    row_facts = {**system.facts(), "metric": metric, **facts, **plays, "reason": row.get("reason")}
    return SystemEstimate(ChartEstimate.of(system.name, row, note), row_facts)


def row_of(folder: RunFolder, metric: str) -> MetricRow | None:
    """Return the row of a metric in a run's `metrics.json`, or None; a metric of an agent is named AGENT.METRIC."""
    agent, _, name = metric.rpartition(".")
    return find_metric_row(folder.read_metrics(), name, agent or None)


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
    points = [SweepPoint(system.name, manifest.run_id, {}, manifest.seed) for manifest in system.manifests]
    results = results_of(system)
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
    by_path = {Results.of(folder).path.resolve(): Results.of(folder) for folder in system.folders}
    outside = [run for run in system.folders if not Results.of(run).run(run.run_id).manifest_path.is_file()]
    if len(by_path) > 1 or outside:
        raise UsageError(
            f"{comma_join(system.run_ids)} are seeds of one game in several folders, but only runs in one results "
            "folder can be pooled; copy the runs into one folder and run `nip-run leaderboard --rebuild` there"
        )
    return next(iter(by_path.values()))


def curves_of(system: FigureSystem) -> Mapping[str, Sequence[ReliabilityRow]]:
    """Return the reliability curves of a system by kind of confidence; empty if no run has probabilities."""
    if len(system.folders) == 1:
        curves: Mapping[str, Sequence[ReliabilityRow]] = system.folders[0].read_metrics().get("reliability_curves", {})
        return curves
    return {
        kind: [cast("ReliabilityRow", vars(reliability_bin)) for reliability_bin in bins]
        for kind, bins in pooled_curves(results_of(system), system.run_ids).items()
    }
