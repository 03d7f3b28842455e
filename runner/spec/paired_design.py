"""What is paired by design: the plays of each datapoint that are one block, and the players who exchange their seats.

A seat is an agent of the protocol: its name, prompt, channels, stance and rewards. Its player is what the spec's
`agents` say of it: a model group, and how long its answers may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from runner.base.errors import PlaceOf, Problem
from runner.base.text import comma_join, did_you_mean
from runner.game.prompts.templates import SUFFIX, PromptSet
from runner.game.protocols.protocol import Protocol, stance_word
from runner.spec.experiment import Experiment

T = TypeVar("T")

Seats = tuple[str, str]

_RANDOMIZED = "randomize_prover_stance"


def swapped_seats(experiment: Experiment, protocol: Protocol) -> Seats | None:
    """The seats that exchange their players in half of the plays; None where the spec asks for no swap."""
    if experiment.seats is None:
        return None
    if not isinstance(experiment.seats, str):
        first, second = experiment.seats["swap"]
        return first, second
    (pair,) = _pairs(experiment, protocol)
    return pair


def exchanged(agents: Mapping[str, T], seats: Seats | None) -> dict[str, T]:
    """What there is of each agent, with that of two seats exchanged, in the same order."""
    found = dict(agents)
    if seats is not None:
        first, second = seats
        found[first], found[second] = agents[second], agents[first]
    return found


def design_problems(experiment: Experiment, protocol: Protocol, prompts: PromptSet, at: PlaceOf) -> Iterator[Problem]:
    """Blocks that make no sense, each with what to say instead."""
    asked = [name for name in ("stances", "seats") if getattr(experiment, name) is not None]
    for name in asked:
        if experiment.kind == "training":
            yield Problem(at(name), name, "this pairs what is measured, and is for `kind: benchmark`; leave it out")
        elif experiment.rollouts.num_responses_per_timestep is not None:
            yield Problem(
                at(name), name,
                "trees of responses are not played in pairs; leave this out, or rollouts.num_responses_per_timestep",
            )  # fmt: skip
    if experiment.stances is not None:
        whys = [*_no_stances(protocol)] or [*_untold(protocol, prompts)]
        yield from (Problem(at("stances"), "stances", why) for why in whys)
    if experiment.seats is not None:
        yield from (Problem(at("seats"), "seats", why) for why in _no_swap(experiment, protocol))


def _no_stances(protocol: Protocol) -> Iterator[str]:
    """Why datapoints cannot be played with both stances."""
    if not protocol.prover_names:
        yield f"{protocol.name} has no prover, and so no stance; leave it out"
    elif protocol.samples_stance:
        yield (
            f"in {protocol.name} a lot draws which of the opposed provers is heard, and its stance with it: no game "
            "has two sides to exchange; leave it out, and take more rollouts.per_datapoint"
        )
    elif _RANDOMIZED in protocol.file.fixed and not (
        protocol.are_opposed or protocol.parameters.randomize_prover_stance
    ):
        stance = stance_word(protocol.default_stance(protocol.prover_names[0]))
        yield f"{protocol.name} fixes that {comma_join(protocol.prover_names)} argues {stance}; leave it out"


def _untold(protocol: Protocol, prompts: PromptSet) -> Iterator[str]:
    """Opposed provers that would argue as ever, and be paid for the opposite."""
    silent = [name + SUFFIX for name in _untold_provers(protocol, prompts)] if protocol.are_opposed else []
    if silent:
        yield (
            f"exchanges what provers argue, which the prompts of {comma_join(silent)} do not depend on; "
            "say what to argue by `stance` ({% if stance == 'accept' %}...)"
        )


def _untold_provers(protocol: Protocol, prompts: PromptSet) -> list[str]:
    return [name for name in protocol.prover_names if "stance" not in prompts.variables[name]]


def _pairs(experiment: Experiment, protocol: Protocol) -> Sequence[Seats]:
    """The pairs of seats of one role whose players differ."""
    return [pair for pair in _seats_of_one_role(protocol) if _differ(experiment, pair)]


def _seats_of_one_role(protocol: Protocol) -> Iterator[Seats]:
    for first, second in combinations(protocol.agent_names, 2):
        if protocol.agent_spec(first).role == protocol.agent_spec(second).role:
            yield first, second


def _differ(experiment: Experiment, pair: Seats) -> bool:
    first, second = (experiment.agents[name] for name in pair)
    return (first.model, first.max_response_words) != (second.model, second.max_response_words)


def _no_swap(experiment: Experiment, protocol: Protocol) -> Iterator[str]:
    seats = experiment.seats
    possible = list(_seats_of_one_role(protocol))
    if not possible:
        instead = " (`stances: both` pairs its plays)" if not list(_no_stances(protocol)) else ""
        yield f"{protocol.name} has no two seats of one role; leave it out{instead}"
    elif not isinstance(seats, Mapping):
        pairs = _pairs(experiment, protocol)
        named = " or ".join(f"{{swap: [{first}, {second}]}}" for first, second in pairs)
        if not pairs:
            yield (
                "no two seats of one role differ in model or max_response_words, so that a swap would play the same "
                "again; give one of them another model, or leave it out"
            )
        elif len(pairs) > 1:
            yield f"the players of several pairs of seats differ; name the pair: {named}"
    else:
        for name in seats["swap"]:
            if name not in protocol.agent_names:
                hint = did_you_mean(name, protocol.agent_names)
                yield f"{protocol.name} has no agent {name!r}{hint}"
        known = all(name in protocol.agent_names for name in seats["swap"])
        if known and tuple(sorted(seats["swap"])) not in {tuple(sorted(pair)) for pair in possible}:
            yield f"{' and '.join(seats['swap'])} are seats of different roles, and players do not change roles"


def design_notes(experiment: Experiment, protocol: Protocol, prompts: PromptSet) -> Iterator[str]:
    """What a design comes to where it pairs like with like."""
    if experiment.stances is not None and len(_untold_provers(protocol, prompts)) == len(protocol.prover_names):
        templates = comma_join(name + SUFFIX for name in protocol.prover_names)
        yield f"stances: {templates} never use `stance`, so that both plays of a datapoint ask provers the same"
    seats = swapped_seats(experiment, protocol)
    if seats is not None and not _differ(experiment, seats):
        yield f"seats: {' and '.join(seats)} have the same player, so that a swap plays the same again"
    differ = [pair for pair in _pairs(experiment, protocol) if seats is None and protocol.exchanges_stances]
    if differ:
        yield (
            f"stances: the players of {' and '.join(differ[0])} differ, so that position_bias is the seat's and the "
            "player's together; `seats: swap` beside it tells them apart"
        )
