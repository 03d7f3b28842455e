"""Warn about a sampling seed that may make all retries and repeats return the same answer."""

from __future__ import annotations

from collections.abc import Iterator

from runner.spec.assembly import Spec


def fixed_seeds(spec: Spec) -> Iterator[str]:
    """Warn about each model group whose seed may give all repeats and retries the same answer."""
    experiment = spec.experiment
    rollouts, attempts = experiment.rollouts, experiment.retry.invalid_response.attempts
    repeats = max(rollouts.per_datapoint, rollouts.num_responses_per_timestep or 1)
    for group in sorted({agent.model for agent in experiment.agents.values()}):
        settings = experiment.models[group]
        seed = settings.sampling().get("seed")
        if seed is not None and settings.traits.remote and max(repeats, attempts, experiment.votes) > 1:
            yield (
                f"models.{group}.seed is fixed ({seed}): a server that respects it returns the same answer to "
                "every retry and repeat of a prompt; remove the seed to get different answers"
            )
