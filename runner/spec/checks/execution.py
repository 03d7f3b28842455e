"""What can be played by several processes, and what cannot."""

from __future__ import annotations

from collections.abc import Iterator

from runner.errors import PlaceOf, Problem
from runner.spec.experiment import Experiment
from runner.text import comma_join


def execution_problems(experiment: Experiment, where: PlaceOf) -> Iterator[Problem]:
    """Model groups whose calls only one process can gather."""
    if experiment.execution.processes == 1:
        return
    used = {agent.model for agent in experiment.agents.values()}
    batched = sorted(group for group in used if group in experiment.models and experiment.models[group].batched)
    if batched:
        key = "execution.processes"
        named = comma_join(f"models.{group}" for group in batched)
        yield Problem(
            where(key),
            key,
            f"calls by batch are gathered by one process ({named}.batch); set execution.processes=1, which is enough "
            "for them, or batch=false",
        )
