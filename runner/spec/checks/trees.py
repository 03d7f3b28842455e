"""Compute the maximum number of calls for trees of responses, and check that it is not too large.

`nip-run check` shows the number.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.game.protocols.protocol import Protocol
from runner.spec.datasets.loader import Dataset
from runner.spec.experiment import Experiment

MAX_BRANCHES = 2**31 - 1
"""Largest branch number that the tables can store."""


def tree_calls(protocol: Protocol, responses: int) -> int:
    """Return the maximum number of calls for one tree of responses, without retries."""
    calls = 0
    for round_ in range(protocol.max_message_rounds):
        speakers = 1 if protocol.step(round_).draw == "one" else len(protocol.can_be_active(round_))
        calls += speakers * responses ** (round_ + 1)
    return calls


def tree_problems(experiment: Experiment, protocol: Protocol, dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield a key and a message if the trees need more calls than allowed, or more branches than can be stored."""
    rollouts, rounds = experiment.rollouts, protocol.max_message_rounds
    responses, key = rollouts.num_responses_per_timestep, "rollouts.num_responses_per_timestep"
    if responses is None:
        return
    if protocol.selections:
        yield (
            key,
            f"trees have all candidates as branches, so {protocol.name} must not select one (best_of); remove {key}",
        )
    datapoints = experiment.training.datapoints_per_iteration if experiment.training is not None else None
    trees = (datapoints or len(dataset.datapoints)) * rollouts.per_datapoint
    calls = tree_calls(protocol, responses) * trees
    if calls > rollouts.max_calls:
        message = (
            f"{trees} trees of {responses} answers per step and {rounds} rounds may take {calls:,} calls, more than "
            f"rollouts.max_calls ({rollouts.max_calls:,}); trees grow exponentially with their rounds: reduce {key}, "
            "protocol.max_message_rounds or dataset.limit, or raise rollouts.max_calls"
        )
        yield key, message
    elif responses**rounds * rollouts.per_datapoint > MAX_BRANCHES:
        message = (
            f"a tree has more than {MAX_BRANCHES:,} branches, which the tables cannot store; reduce {key} or "
            "protocol.max_message_rounds"
        )
        yield key, message
