"""Check the `until` section against the rest of a spec."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import PlaceOf, Problem
from runner.spec.experiment import Experiment


def until_problems(experiment: Experiment, at: PlaceOf) -> Iterator[Problem]:
    """Yield a problem if the section does not have exactly one rule, or if the run cannot stop early."""
    until, key = experiment.until, "until"
    if until is None:
        return
    if (until.width is None) == (until.compare is None):
        yield Problem(at(key), key, "set either width or compare; or set until to null to play all datapoints")
    if experiment.kind == "training":
        yield Problem(at(key), key, "only a benchmark can stop early, since training needs all its games; remove until")
    if experiment.rollouts.num_responses_per_timestep is not None:
        yield Problem(
            at(key), key,
            "a run of trees cannot stop early, since the rollouts of a tree are not independent; remove until, or "
            "rollouts.num_responses_per_timestep",
        )  # fmt: skip
