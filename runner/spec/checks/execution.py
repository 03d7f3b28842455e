"""What can be played by several processes or by a cluster, and what cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.base.errors import PlaceOf, Problem
from runner.base.text import comma_join
from runner.spec.experiment import Execution, Experiment

_ADDRESS = re.compile(r"auto|(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")


def execution_problems(experiment: Experiment, where: PlaceOf) -> Iterator[Problem]:
    """Keys that do not go together, and model groups whose calls only one process can gather."""
    execution = experiment.execution
    found = (*_wrong_together(execution), *_batched(experiment))
    for key, message in found:
        yield Problem(where(key), key, message)


def _wrong_together(execution: Execution) -> Iterator[tuple[str, str]]:
    if execution.engine == "ray":
        if execution.workers is None:
            yield "execution.workers", "engine: ray needs the number of workers: execution.workers=8"
        if execution.processes != 1:
            yield (
                "execution.processes",
                "engine: ray plays by execution.workers and by no processes of this machine; remove one of the two",
            )
    else:
        for name, value in (("workers", execution.workers), ("address", execution.address)):
            if value is not None:
                yield f"execution.{name}", f"{name} is of engine: ray; set execution.engine=ray, or remove it"
    if execution.address is not None and (problem := _address_problem(execution.address)) is not None:
        yield "execution.address", problem


def _address_problem(address: str) -> str | None:
    if address.startswith("ray://"):
        return (
            "ray:// is Ray's client, which runs nothing of its own; run the command on a node of the cluster (with "
            "execution.address=auto), or submit it there (`ray job submit -- nip-run ...`, and no address)"
        )
    if not _ADDRESS.fullmatch(address):
        return f"no address of a Ray cluster: {address!r}; give host:port of its head, as `ray start` says it, or auto"
    return None


def _batched(experiment: Experiment) -> Iterator[tuple[str, str]]:
    if not experiment.execution.by_workers:
        return
    used = {agent.model for agent in experiment.agents.values()}
    batched = sorted(group for group in used if group in experiment.models and experiment.models[group].is_batched)
    if batched:
        named = comma_join(f"models.{group}" for group in batched)
        by_processes = experiment.execution.engine == "processes"
        key, instead = (
            ("execution.processes", "execution.processes=1") if by_processes else ("execution.engine", "no execution")
        )
        told = f"calls by batch are gathered by one process ({named}.batch); set {instead}, which is enough for them"
        yield key, f"{told}, or batch=false"
