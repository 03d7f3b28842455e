"""Read the scores of a run's rollouts by several measures from its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.storage.duckdb_connections import read_only_table
from runner.base.text import comma_join
from runner.base.token_classes import TOKEN_CLASSES
from runner.models.interface import Usage
from runner.models.prices import Pricing
from runner.results.folder import RunFolder
from runner.results.metric_definitions import CALLS, COST, Metric, Source
from runner.results.saved_spec import saved_value
from runner.results.table_columns import COLUMNS
from runner.rollouts.confidence import is_bound
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome
from runner.spec.loader import load_saved

_SUMS_SQL = "rollout_id, count(*) AS calls, coalesce(sum(prompt_tokens + completion_tokens), 0) AS tokens"
_USAGE_SQL = ", ".join(["rollout_id", "agent", *(f"coalesce({name}, 0)" for name in TOKEN_CLASSES), "service_tier"])
_ORDER_SQL = "rollout_id, agent, round, attempt, vote"


GameForm = tuple[int, int | None, bool | None, bool | None]
"""The repeat of a game, and what its block exchanges: the provers' stance, swapped seats, exchanged stances."""


@dataclass(frozen=True)
class ScoredRun:
    """The rollouts of a run that were not lost in transport, in the order of their repeats."""

    rollouts: Sequence[tuple[str, str, bool, int, float | None, GameForm]]
    """The datapoint, the rollout, whether its verdict is right, the verdict (0 reject, 1 accept, 2 none), P(accept) by
    log-probabilities if it is only a bound, and the form of the game."""
    scores: Mapping[str, Sequence[float | None] | UsageError]
    """The scores of the rollouts, or the reason why there are none, by the name of the measure."""


def load_scores(folder: RunFolder, measures: Sequence[Metric]) -> ScoredRun:
    """Read the scores of a run by each of these measures.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    table = _rollouts_table(folder)
    table_measures = [measure for measure in measures if measure.source not in (Source.CALLS, Source.ANALYSES)]
    columns = [
        "datapoint_id, rollout_id, coalesce(correct, false), coalesce(decision, 2)",
        "confidence_logprob, confidence_note",
        f"repeat, {'stance' if saved_value(folder, 'stances') == 'both' else 'NULL'}, swapped, stances_exchanged",
        *(measure.score_sql() for measure in table_measures),
    ]
    answered = table.filter(f"outcome <> '{Outcome.TRANSPORT_FAILED}'")
    rows = answered.order("repeat, rollout_id").project(", ".join(columns)).fetchall()
    scores: dict[str, Sequence[float | None] | UsageError] = {
        measure.name: [row[index] for row in rows] for index, measure in enumerate(table_measures, 10)
    }
    if call_measures := [measure for measure in measures if measure.source is Source.CALLS]:
        scores |= _call_scores(folder, call_measures, [row[1] for row in rows])
    for measure in measures:
        if measure.rollout_scores is not None:
            values = measure.rollout_scores(folder)
            scores[measure.name] = [values.get(row[1]) for row in rows]
    return ScoredRun([(*row[:4], row[4] if is_bound(row[5]) else None, row[6:10]) for row in rows], scores)


def _call_scores(
    folder: RunFolder, measures: Sequence[Metric], rollouts: Sequence[str]
) -> dict[str, Sequence[float | None] | UsageError]:
    """Return the score of each rollout from its calls; 0 for a rollout without calls."""
    file = folder.intact_table("completions")
    if not file.is_file():
        raise RunError(f"{file} is missing")
    table = read_only_table("completions", file, COLUMNS["completions"])
    calls = table.filter("latency_ms IS NOT NULL")
    totals = {rollout: sums for rollout, *sums in calls.aggregate(_SUMS_SQL, "rollout_id").fetchall()}
    scores: dict[str, Sequence[float | None] | UsageError] = {}
    for measure in measures:
        try:
            sums = _rollout_costs(folder, calls) if measure.name == COST else None
        except UsageError as error:
            scores[measure.name] = error
            continue
        if sums is None:
            index = 0 if measure.name == CALLS else 1
            sums = {rollout: float(counts[index]) for rollout, counts in totals.items()}
        scores[measure.name] = [sums.get(rollout, 0.0) for rollout in rollouts]
    return scores


def _rollout_costs(folder: RunFolder, calls: Any) -> dict[str, float]:
    """Return the cost of each rollout, call by call, since long prompts and service tiers have their own prices."""
    costs: dict[str, float] = {}
    prices = _caller_prices(folder)
    swapped_rollouts = {row[0] for row in _rollouts_table(folder).filter("swapped").project("rollout_id").fetchall()}
    for rollout, caller, *counts, tier in calls.order(_ORDER_SQL).project(_USAGE_SQL).fetchall():
        usage = Usage(**dict(zip(TOKEN_CLASSES, counts, strict=True)), service_tier=tier)
        price = prices[rollout in swapped_rollouts][caller]
        costs[rollout] = costs.get(rollout, 0.0) + price.cost_of(usage)
    return costs


def _caller_prices(folder: RunFolder) -> Mapping[bool, Mapping[str, Pricing]]:
    """Return the price of each caller's model when the run started, for games without and with swapped seats.

    Callers are the seats, and selectors of candidates. Swapped seats call each other's models.
    """
    plan, basis = Plan(load_saved(folder.spec)), folder.manifest().price_basis
    prices: dict[bool, dict[str, Pricing]] = {False: {}, True: {}}
    unknown: dict[str, None] = {}
    for swapped, by_caller in prices.items():
        for caller, group in plan.groups(swapped=swapped).items():
            price = basis.price_of(plan.spec.experiment.models[group])
            if price is None:
                unknown[caller] = None
            else:
                by_caller[caller] = price
    if unknown:
        raise UsageError(
            f"the price of the model of {comma_join(unknown)} in {folder.run_id} is unknown; compare by tokens"
        )
    return prices


def _rollouts_table(folder: RunFolder) -> Any:
    return read_only_table("rollouts", folder.intact_table("rollouts"), COLUMNS["rollouts"])
