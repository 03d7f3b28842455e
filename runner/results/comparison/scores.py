"""A run's rollouts with their scores by several measures, read from its tables once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.storage.duckdb_connections import read_only_table
from runner.base.text import comma_join
from runner.models.interface import TOKEN_CLASSES, Usage
from runner.models.prices import Pricing
from runner.results.folder import RunFolder
from runner.results.metric_table import CALLS, COST, Metric, Source
from runner.results.tables import COLUMNS
from runner.rollouts.rollout import Outcome
from runner.spec.loader import load_saved

_SUMS = "rollout_id, count(*) AS calls, coalesce(sum(prompt_tokens + completion_tokens), 0) AS tokens"
_USAGE = ", ".join(["rollout_id", "agent", *(f"coalesce({name}, 0)" for name in TOKEN_CLASSES), "service_tier"])
_ORDER = "rollout_id, agent, round, attempt, vote"
_OPTIONAL = ("confidence_stated", "confidence_logprob")
"""Columns that a run has only where it was asked for them."""


@dataclass(frozen=True)
class ScoredRun:
    """The rollouts of a run that were not lost in transport, in the order of their repeats."""

    rollouts: Sequence[tuple[str, str, bool]]
    """The datapoint, the rollout, and whether its verdict is right."""
    scores: Mapping[str, Sequence[float | None] | UsageError]
    """By the name of a measure, those of the rollouts, or why it has none here."""


def scored(folder: RunFolder, measures: Sequence[Metric]) -> ScoredRun:
    """The scores of a run by each of these measures.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    table = read_only_table("rollouts", folder.intact_table("rollouts"), COLUMNS["rollouts"])
    lacking = {one.name: _no_score(folder, one) for one in measures if not _asked(one) <= set(table.columns)}
    plain = [one for one in measures if one.source is not Source.CALLS and one.name not in lacking]
    asked = ", ".join(["datapoint_id, rollout_id, coalesce(correct, false)", *(one.score_sql() for one in plain)])
    kept = table.filter(f"outcome <> '{Outcome.TRANSPORT_FAILED}'")
    rows = kept.order("repeat, rollout_id").project(asked).fetchall()
    found: dict[str, Sequence[float | None] | UsageError] = dict(lacking)
    found |= {one.name: [row[place] for row in rows] for place, one in enumerate(plain, 3)}
    if of_calls := [one for one in measures if one.source is Source.CALLS]:
        found |= _of_calls(folder, of_calls, [row[1] for row in rows])
    return ScoredRun([row[:3] for row in rows], found)


def _asked(measure: Metric) -> set[str]:
    return {name for name in _OPTIONAL if name in measure.sql}


def _no_score(folder: RunFolder, measure: Metric) -> UsageError:
    return UsageError(f"no rollout of {folder.run_id} has a score for {measure.name}")


def _of_calls(
    folder: RunFolder, measures: Sequence[Metric], rollouts: Sequence[str]
) -> dict[str, Sequence[float | None] | UsageError]:
    """What the calls of each rollout come to; of one without a call, nothing."""
    file = folder.intact_table("completions")
    if not file.is_file():
        raise RunError(f"{file} is missing")
    table = read_only_table("completions", file, COLUMNS["completions"])
    calls = table.filter("latency_ms IS NOT NULL")
    totals = {rollout: sums for rollout, *sums in calls.aggregate(_SUMS, "rollout_id").fetchall()}
    found: dict[str, Sequence[float | None] | UsageError] = {}
    for measure in measures:
        try:
            sums = _costs(calls, _prices(folder)) if measure.name == COST else None
        except UsageError as error:
            found[measure.name] = error
            continue
        if sums is None:
            place = 0 if measure.name == CALLS else 1
            sums = {rollout: float(counts[place]) for rollout, counts in totals.items()}
        found[measure.name] = [sums.get(rollout, 0.0) for rollout in rollouts]
    return found


def _costs(calls: Any, prices: Mapping[str, Pricing]) -> dict[str, float]:
    """Return the cost of each rollout, call by call: a long prompt, or a service tier, has a price of its own."""
    costs: dict[str, float] = {}
    for rollout, agent, *counts, tier in calls.order(_ORDER).project(_USAGE).fetchall():
        used = Usage(**dict(zip(TOKEN_CLASSES, counts, strict=True)), service_tier=tier)
        costs[rollout] = costs.get(rollout, 0.0) + prices[agent].cost_of(used)
    return costs


def _prices(folder: RunFolder) -> dict[str, Any]:
    """Return the price of each agent's model when a run started, by the spec that was saved with it."""
    experiment, basis = load_saved(folder.spec).experiment, folder.manifest().price_basis
    prices = {name: basis.price_of(experiment.models[agent.model]) for name, agent in experiment.agents.items()}
    unknown = [name for name, price in prices.items() if price is None]
    if unknown:
        raise UsageError(
            f"the price of what {comma_join(unknown)} in {folder.run_id} asks is unknown; compare by tokens"
        )
    return prices
