"""Check the `until` section against the rest of a spec."""

from __future__ import annotations

from collections.abc import Iterator

from runner.spec.experiment import Experiment


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
