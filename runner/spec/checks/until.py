"""What `until` asks of the rest of a spec."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import PlaceOf, Problem
from runner.spec.experiment import Experiment


def until_problems(experiment: Experiment, at: PlaceOf) -> Iterator[Problem]:
    """A rule that says too little or too much, or that stands where games are not independent measurements."""
    until, key = experiment.until, "until"
    if until is None:
        return
    if (until.width is None) == (until.compare is None):
        yield Problem(at(key), key, "give one of width and compare; null plays all datapoints")
    if experiment.kind == "training":
        yield Problem(
            at(key), key, "only a benchmark can stop when it is decided; a training run plays what it trains on"
        )
    if experiment.rollouts.num_responses_per_timestep is not None:
        yield Problem(
            at(key), key,
            "a tree's samples are not independent games; leave out until, or rollouts.num_responses_per_timestep",
        )  # fmt: skip
