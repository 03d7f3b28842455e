"""Warn about a fixed sampling seed, because a server may then return the same answer to all retries and repeats."""

from __future__ import annotations

from collections.abc import Iterator

from runner.spec.assembly import Spec


def fixed_seeds(spec: Spec) -> Iterator[str]:
    """Warn about each model group at a server with a fixed seed, if the run may send a prompt more than once."""
    experiment = spec.experiment
    rollouts, attempts = experiment.rollouts, experiment.retry.invalid_response.attempts
    repeats = max(rollouts.per_datapoint, rollouts.num_responses_per_timestep or 1)
    for group in sorted({group for agent in experiment.agents.values() for group in agent.groups}):
        settings = experiment.models[group]
        seed = settings.request_parameters.get("seed")
        if seed is not None and settings.traits.remote and max(repeats, attempts, experiment.votes) > 1:
            yield (
                f"models.{group}.seed is fixed ({seed}): a server that respects the seed returns the same answer to "
                f"every retry and repeat of a prompt; remove models.{group}.seed to get different answers"
            )
