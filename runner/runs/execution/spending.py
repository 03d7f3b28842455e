"""What a run has spent, by its journal and by its file of calls in flight."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import read_journal
from runner.models.costs import CallCosts
from runner.models.interface import SampleKey
from runner.models.journal_records import CallRecord, FailureRecord, LostRecord, parse_record, read_records
from runner.models.layers.lost_calls import AbandonedCalls
from runner.models.settings import ModelSettings
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan


def used_models(plan: Plan) -> dict[str, ModelSettings]:
    """The model groups that some agent plays with, or that judges where only that is asked."""
    experiment = plan.share
    if experiment.rejudge is not None:
        judge = experiment.agents[plan.spec.protocol.verifier_name].model
        return {judge: experiment.models[judge]}
    return {agent.model: experiment.models[agent.model] for agent in experiment.agents.values()}


def run_costs(plan: Plan) -> CallCosts:
    """The costs of a plan's calls; its budget does not count by prices that only a stranger has set."""
    return CallCosts(used_models(plan), plan.spec.unconfirmed_prices, plan.spec.price_basis)


def spending(plan: Plan, folder: RunFolder) -> UsageTotals:
    """What a run spent; what failed or was left in flight, and may have been billed, at its worst case."""
    total = UsageTotals()
    if not folder.journal.is_file():
        return total
    costs = run_costs(plan)
    metered = {name for name, settings in costs.groups.items() if settings.traits.metered}
    left = AbandonedCalls(folder.in_flight)
    records = read_journal(folder.journal, folder.identity())
    if not metered and left.is_empty:
        next(records, None)  # whose journal it is; nobody was paid, and no record says otherwise
        return total
    for _, data in records:
        if left.is_empty and _is_free(data, plan, metered):
            continue  # and read no further: most of the time that this takes goes into answers
        record = parse_record(data)
        left.see(data["seq"], record)
        if isinstance(record, (CallRecord, FailureRecord, LostRecord)) and record.charged is not None:
            total += record.charged
        elif isinstance(record, CallRecord) and not record.completion.from_cache:
            total += costs.actual(plan.group_of(record.sample), record.completion)
    return total + left.most


def _is_free(record: Mapping[str, Any], plan: Plan, metered: Collection[str]) -> bool:
    """Whether a record is an answer for which nothing is counted."""
    if record["kind"] != CallRecord.KIND or "charged" in record:
        return False
    is_paid_elsewhere = "of" in record or record.get("cache", False)
    return is_paid_elsewhere or plan.group_of(SampleKey(*record["sample"])) not in metered


async def count_lost(folder: RunFolder, journal: Journal) -> UsageTotals:
    """Write what an earlier process left in flight into the journal; what that may have cost."""
    left = AbandonedCalls(folder.in_flight)
    if left.most.completions:
        for _, sequence, record in read_records(folder.journal):
            left.see(sequence, record)
    most = left.most
    if most.completions:
        await journal.append(left.lost().to_json())
    folder.in_flight.unlink(missing_ok=True)
    return most
