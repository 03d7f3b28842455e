"""What a run has spent, by its journal and by its file of calls in flight."""

from __future__ import annotations

from runner.models.costs import CallCosts
from runner.models.layers.lost_calls import AbandonedCalls
from runner.models.records import CallRecord, FailureRecord, LostRecord, read_records
from runner.models.settings import ModelSettings
from runner.models.tally import Tally
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.storage.journal import Journal


def used_models(plan: Plan) -> dict[str, ModelSettings]:
    """The model groups that some agent plays with, or that judges where only that is asked."""
    experiment = plan.share
    if experiment.rejudge is not None:
        judge = experiment.agents[plan.spec.protocol.verifier_name].model
        return {judge: experiment.models[judge]}
    return {agent.model: experiment.models[agent.model] for agent in experiment.agents.values()}


def spending(plan: Plan, folder: RunFolder) -> Tally:
    """What a run spent; what failed or was left in flight, and may have been billed, at its worst case."""
    total = Tally()
    if not folder.journal.is_file():
        return total
    costs = CallCosts(used_models(plan))
    left = AbandonedCalls(folder.in_flight)
    for _, sequence, record in read_records(folder.journal, folder.identity()):
        left.see(sequence, record)
        if isinstance(record, (CallRecord, FailureRecord, LostRecord)) and record.charged is not None:
            total += record.charged
        elif isinstance(record, CallRecord) and not record.completion.from_cache:
            total += costs.actual(plan.group_of(record.sample), record.completion)
    return total + left.most


async def count_lost(folder: RunFolder, journal: Journal) -> Tally:
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
