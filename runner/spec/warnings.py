"""What a sound spec may not mean: each warning one line. `check` shows them, and `run` before it begins; none stops it.

A new warning is a function of a spec, in the list at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runner.spec.assemble import Spec


def warnings_of(spec: Spec) -> list[str]:
    """All warnings on a spec, in the order of `WARNINGS`."""
    return [line for warning in WARNINGS for line in warning(spec)]


def _fixed_seeds(spec: Spec) -> Iterator[str]:
    """The model groups whose seed may give all repeats and retries one answer."""
    experiment = spec.experiment
    rollouts, attempts = experiment.rollouts, experiment.retry.invalid_response.attempts
    repeats = max(rollouts.per_datapoint, rollouts.num_responses_per_timestep or 1)
    for group in sorted({agent.model for agent in experiment.agents.values()}):
        settings = experiment.models[group]
        seed = settings.sampling().get("seed")
        if seed is not None and settings.traits.remote and max(repeats, attempts) > 1:
            yield (
                f"models.{group}.seed is fixed ({seed}): a server that heeds it gives one answer to every retry and "
                "repeat of a prompt; leave the seed out to have others"
            )


WARNINGS: tuple[Callable[[Spec], Iterator[str]], ...] = (_fixed_seeds,)
