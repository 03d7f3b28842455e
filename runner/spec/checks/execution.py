"""Check the `execution` section: several worker processes, or a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.base.text import comma_join
from runner.spec.experiment import Execution, Experiment

_ADDRESS = re.compile(r"auto|(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")


def execution_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield keys that contradict others, and batches, which need a single process, each with a message."""
    yield from _combination_problems(experiment.execution)
    yield from _batch_problems(experiment)


def _combination_problems(execution: Execution) -> Iterator[tuple[str, str]]:
    if execution.engine == "ray":
        if execution.workers is None:
            yield "execution.workers", "engine: ray needs the number of workers: execution.workers=8"
        if execution.processes != 1:
            yield (
                "execution.processes",
                "engine: ray uses execution.workers instead of processes of this machine; remove execution.processes",
            )
    else:
        for name, value in (("workers", execution.workers), ("address", execution.address)):
            if value is not None:
                yield (
                    f"execution.{name}",
                    f"{name} works only with engine: ray; set execution.engine=ray, or remove execution.{name}",
                )
    if execution.address is not None and (problem := _address_problem(execution.address)) is not None:
        yield "execution.address", problem


def _address_problem(address: str) -> str | None:
    if address.startswith("ray://"):
        return (
            "ray:// addresses (Ray Client) are not supported; run the command on a node of the cluster (with "
            "execution.address=auto), or submit it there (`ray job submit -- nip-run ...`, and no address)"
        )
    if not _ADDRESS.fullmatch(address):
        return f"not an address of a Ray cluster: {address!r}; set host:port as printed by `ray start`, or auto"
    return None


def _batch_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    if not experiment.execution.by_workers:
        return
    used = {agent.model for agent in experiment.agents.values()}
    batched = sorted(group for group in used if group in experiment.models and experiment.models[group].is_batched)
    if batched:
        groups = comma_join(f"models.{group}" for group in batched)
        by_processes = experiment.execution.engine == "processes"
        key, remedy = (
            ("execution.processes", "execution.processes=1") if by_processes else ("execution.engine", "no execution")
        )
        message = f"batches need a single process ({groups}.batch); set {remedy}, which is fast enough for batches"
        yield key, f"{message}, or batch=false"
