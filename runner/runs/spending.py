"""What a run has spent, by its journal and by its file of calls in flight."""

from __future__ import annotations

from runner.models.costs import CallCosts
from runner.models.layers.in_flight import AbandonedCalls, lost_record
from runner.models.records import CALL, FAILURE, LOST, completion_from_fields
from runner.models.settings import ModelSettings
from runner.models.tally import Tally
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.storage.journal import Journal, read_journal


def used_models(plan: Plan) -> dict[str, ModelSettings]:
    """The model groups that some agent plays with."""
    experiment = plan.spec.experiment
    return {agent.model: experiment.models[agent.model] for agent in experiment.agents.values()}


def spending(plan: Plan, folder: RunFolder) -> Tally:
    """What a run spent; what failed or was left in flight, and may have been billed, at its worst case."""
    total = Tally()
    if not folder.journal.is_file():
        return total
    costs = CallCosts(used_models(plan))
    groups = {name: agent.model for name, agent in plan.spec.experiment.agents.items()}
    left = AbandonedCalls(folder.in_flight)
    for _, record in read_journal(folder.journal):
        left.see(record)
        if record["kind"] in (CALL, FAILURE, LOST) and record.get("charged"):
            total += Tally(*record["charged"])
        elif record["kind"] == CALL and not record["cache"]:
            total += costs.actual(groups[record["sample"][3]], completion_from_fields(record))
    return total + left.most


async def count_lost(folder: RunFolder, journal: Journal) -> Tally:
    """Write what an earlier process left in flight into the journal; what that may have cost."""
    left = AbandonedCalls(folder.in_flight)
    if left.most.completions:
        for _, record in read_journal(folder.journal):
            left.see(record)
    most = left.most
    if most.completions:
        await journal.append(lost_record(left))
    folder.in_flight.unlink(missing_ok=True)
    return most
