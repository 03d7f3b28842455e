"""Computes the spending of a run from its journal and its file of calls in flight.

When a run is resumed, its budget starts with this amount. The manifest also records the amount. If a process is killed,
its calls in flight have no answer but may be billed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import read_journal
from runner.models.costs import CallCosts
from runner.models.interface import SampleKey
from runner.models.journal_records import (
    CallRecord,
    FailureRecord,
    LostRecord,
    Record,
    RepeatRecord,
    parse_record,
    read_records,
)
from runner.models.layers.lost_calls import AbandonedCalls
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan, used_models
from runner.runs.finished.reconstruction import saved_plan


def run_costs(plan: Plan) -> CallCosts:
    """Return an object that computes the costs of a plan's calls.

    Budgets ignore the prices that a downloaded spec states, until the user confirms them.
    """
    return CallCosts(used_models(plan), plan.spec.unconfirmed_prices, plan.spec.price_basis)


class Spending(NamedTuple):
    """The cost of a run's calls."""

    usd: float
    """The cost by the token counts that servers reported or, without reports, by estimated counts; as in the tables."""
    maximum: UsageTotals
    """The highest possible cost. It includes calls that failed, were left in flight, or have an unknown usage."""
    answers: int
    """The number of answers, as in the tables; 0 if no call costs anything."""


def max_spending(plan: Plan, folder: RunFolder) -> UsageTotals:
    """Return the highest possible cost of a run's calls so far."""
    return measure_spending(plan, folder).maximum


def spent_on_parts(results: Results, run_id: str) -> UsageTotals:
    """Return the highest possible cost of the calls of a run's parts so far."""
    total = UsageTotals()
    for folder in results.parts_of(run_id):
        total += max_spending(saved_plan(folder), folder)
    return total


def measure_spending(plan: Plan, folder: RunFolder) -> Spending:
    """Return the spending of a run, from its journal and its file of calls in flight."""
    usd, total, answers = 0.0, UsageTotals(), 0
    if not folder.journal.is_file():
        return Spending(usd, total, answers)
    costs = run_costs(plan)
    groups_with_costs = {name for name, settings in costs.groups.items() if settings.has_costs}
    abandoned = AbandonedCalls(folder.in_flight)
    records = read_journal(folder.journal, folder.identity())
    if not groups_with_costs and abandoned.is_empty:
        next(records, None)  # checks that the journal belongs to this run; no call costs anything
        return Spending(usd, total, answers)
    for _, data in records:
        if abandoned.is_empty and _is_free(data, plan, groups_with_costs):
            answers += 1
            continue  # do not parse the answer, which would take most of the time
        record = parse_record(data)
        abandoned.apply_record(data["seq"], record)
        usd += reported_usd(record, plan, costs)
        if isinstance(record, (CallRecord, RepeatRecord)):
            answers += len(record.completion.choices) if isinstance(record, CallRecord) else 1
        if isinstance(record, (CallRecord, FailureRecord, LostRecord)) and record.charged is not None:
            total += record.charged
        elif isinstance(record, CallRecord) and not record.completion.from_cache and not record.sample.calls_function:
            total += costs.actual_cost(plan.group_of(record.sample), record.completion)
    return Spending(usd, total + abandoned.max_cost, answers)


def reported_usd(record: Record, plan: Plan, costs: CallCosts) -> float:
    """Return the cost of a call by the usage in its record; 0 if it was answered from a cache or has no known price."""
    if isinstance(record, CallRecord):
        usage = None if record.completion.from_cache else record.completion.usage
    elif isinstance(record, FailureRecord):
        usage = record.usage if record.is_paid else None
    else:
        return 0.0
    price = None if usage is None else costs.prices[plan.group_of(record.sample)]
    return 0.0 if usage is None or price is None else price.cost_of(usage)


def _is_free(record: Mapping[str, Any], plan: Plan, groups_with_costs: Collection[str]) -> bool:
    """Return whether a record is an answer that costs nothing: it was copied, or its model group has no costs."""
    if record["kind"] != CallRecord.KIND or "charged" in record:
        return False
    is_copy = "of" in record or record.get("cache", False)  # of an earlier record, or from the cache
    return is_copy or plan.group_of(SampleKey(*record["sample"])) not in groups_with_costs


async def record_lost_calls(folder: RunFolder, journal: Journal) -> UsageTotals:
    """Record the calls that an earlier process left in flight in the journal, and return their maximum cost."""
    abandoned = AbandonedCalls(folder.in_flight)
    if abandoned.max_cost.completions:
        for _, sequence, record in read_records(folder.journal):
            abandoned.apply_record(sequence, record)
    max_cost = abandoned.max_cost
    if max_cost.completions:
        await journal.append(abandoned.to_record().to_json())
    folder.in_flight.unlink(missing_ok=True)
    return max_cost


def describe_lost_calls(max_cost: UsageTotals, where: str, *, is_priced: bool) -> str:
    """Describe the calls that were left in flight. `where` continues "3 calls were in flight", such as "there"."""
    amount = f"${max_cost.usd:.4f} is" if is_priced else f"{max_cost.tokens} tokens are"
    calls = "1 call was" if max_cost.completions == 1 else f"{max_cost.completions} calls were"
    return f"{calls} in flight {where}; {amount} counted as their maximum cost"
