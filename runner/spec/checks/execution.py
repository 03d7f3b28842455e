"""Check the sections `execution` (several worker processes, or a Ray cluster) and `until` (rules to stop early)."""

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
        yield from _single_process_problems(experiment)


def _address_problem(address: str) -> str | None:
    if address.startswith("ray://"):
        return (
            "ray:// addresses (Ray Client) are not supported; run the command on a node of the cluster (with "
            "execution.address=auto), or submit it there (`ray job submit -- nip-run ...`, and no address)"
        )
    if not _ADDRESS.fullmatch(address):
        return f"not an address of a Ray cluster: {address!r}; set host:port as printed by `ray start`, or auto"
    return None


def _single_process_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield a problem if workers play with models that are called in batches, or with people."""
    key, remedy = "execution.processes", "execution.processes=1"
    if experiment.execution.engine == "ray":
        key, remedy = "execution.engine", "no execution"
    used = {group for agent in experiment.agents.values() for group in agent.groups}
    if experiment.tournament is not None:
        used |= {player.model for player in experiment.tournament.players.values()}
        used |= {*(experiment.tournament.judges or ())}
    groups = {group: experiment.models[group] for group in sorted(used) if group in experiment.models}
    batched = [f"models.{group}" for group, settings in groups.items() if settings.is_batched]
    human = [f"models.{group}" for group, settings in groups.items() if settings.traits.asks_people]
    if batched:
        needs = f"batches need a single process ({comma_join(f'{group}.batch' for group in batched)})"
        yield key, f"{needs}; set {remedy}, which is fast enough for batches, or batch=false"
    if human:
        yield key, f"people answer on the page of a single process ({comma_join(human)}); set {remedy}"


def until_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the key and a message if the section does not have exactly one rule, or if the run cannot stop early."""
    until, key = experiment.until, "until"
    if until is None:
        return
    if (until.width is None) == (until.compare is None):
        yield key, "set either width or compare; or set until to null to play all datapoints"
    if experiment.kind != "benchmark":
        yield key, f"only a benchmark can stop early, and this is a {experiment.kind}; remove until"
    if experiment.rollouts.num_responses_per_timestep is not None:
        message = (
            "a run of trees cannot stop early, since the rollouts of a tree are not independent; remove until, or "
            "rollouts.num_responses_per_timestep"
        )
        yield key, message
