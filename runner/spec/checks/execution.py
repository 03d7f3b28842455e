"""Check the `execution` section: several worker processes, or a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.base.text import comma_join
from runner.spec.experiment import Experiment

_ADDRESS = re.compile(r"auto|(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")


def execution_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield keys that contradict other keys, each with a message."""
    execution = experiment.execution
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
    if execution.by_workers:
        yield from _batch_problems(experiment)


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
    """Yield a problem if workers play with models that are called in batches."""
    used = {group for agent in experiment.agents.values() for group in agent.groups}
    batched = sorted(group for group in used if group in experiment.models and experiment.models[group].is_batched)
    if batched:
        groups = comma_join(f"models.{group}" for group in batched)
        key, remedy = "execution.processes", "execution.processes=1"
        if experiment.execution.engine == "ray":
            key, remedy = "execution.engine", "no execution"
        message = f"batches need a single process ({groups}.batch); set {remedy}, which is fast enough for batches"
        yield key, f"{message}, or batch=false"
