"""Warn about model groups at servers: keys that are not set, refused temperatures, and fixed seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from runner.models.api_keys import OPENAI, host_of
from runner.models.settings import ModelSettings
from runner.spec.loader import Spec

MAX_TEMPERATURES: Mapping[str, float] = {
    OPENAI: 2.0,
    "api.anthropic.com": 1.0,
    "api.deepseek.com": 2.0,
    "api.mistral.ai": 1.5,
    "generativelanguage.googleapis.com": 2.0,
}
"""The highest temperature that a host accepts, from each provider's API reference. Other hosts are not checked."""


def unset_keys(spec: Spec) -> Iterator[str]:
    """Warn about environment variables that the spec sends to servers, but that are not set."""
    for group, settings in _called_servers(spec):
        for variable in settings.variables:
            if not os.environ.get(variable, "").strip():
                yield f"models.{group}: {variable} is not set in this environment; set it before you run the spec"


def temperatures_out_of_range(spec: Spec) -> Iterator[str]:
    """Warn about temperatures that are higher than the server of the model group accepts."""
    for group, settings in _called_servers(spec):
        for host in dict.fromkeys(map(host_of, settings.server_urls)):
            # A provider's regional servers are subdomains, such as eu.api.openai.com.
            limits = (limit for domain, limit in MAX_TEMPERATURES.items() if f".{host}".endswith(f".{domain}"))
            highest = next(limits, None)
            if highest is not None and (settings.temperature or 0) > highest:
                yield (
                    f"models.{group}.temperature: {settings.temperature:g} is out of range: {host} accepts 0 to "
                    f"{highest:g}; set a value in this range"
                )


def called_groups(spec: Spec) -> dict[str, ModelSettings]:
    """Return the model groups that a run of the spec calls: those of all agents, or with `rejudge` only the judge's."""
    judges, agents = spec.protocol.verifier_names, spec.experiment.agents
    called = {agents[name].model for name in agents if spec.rejudged is None or name in judges}
    return {group: settings for group, settings in spec.experiment.models.items() if group in called}


def _called_servers(spec: Spec) -> Iterator[tuple[str, ModelSettings]]:
    return ((group, settings) for group, settings in called_groups(spec).items() if settings.traits.remote)


def fixed_seeds(spec: Spec) -> Iterator[str]:
    """Warn about each group with a fixed seed if the run may send a prompt more than once.

    A server may then return the same answer to all retries and repeats.
    """
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
