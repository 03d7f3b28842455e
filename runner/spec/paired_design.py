"""Paired designs: the games of a datapoint form a block. They differ in their stances, or in the seats of players.

A seat is an agent of the protocol: its name, prompt, channels, stance and rewards. Its player is what the spec's
`agents` set for it: a model group and a word limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from runner.base.text import comma_join, did_you_mean
from runner.game.prompts.templates import SUFFIX, PromptSet
from runner.game.protocols.protocol import Protocol, stance_word
from runner.spec.experiment import Experiment

T = TypeVar("T")

Seats = tuple[str, str]

_RANDOMIZE_STANCE = "randomize_prover_stance"
"""The parameter of a protocol that chooses the provers' stance at random."""


def swapped_seats(experiment: Experiment, protocol: Protocol) -> Seats | None:
    """Return the seats whose players are exchanged in half of the games; None if the spec has no swap."""
    if experiment.seats is None:
        return None
    if not isinstance(experiment.seats, str):
        first, second = experiment.seats["swap"]
        return first, second
    (pair,) = _differing_pairs(experiment, protocol)
    return pair


def exchange_players(agents: Mapping[str, T], seats: Seats | None) -> dict[str, T]:
    """Return the mapping in the same order, with the values of the two seats exchanged."""
    values = dict(agents)
    if seats is not None:
        first, second = seats
        values[first], values[second] = agents[second], agents[first]
    return values


def design_problems(experiment: Experiment, protocol: Protocol, prompts: PromptSet) -> Iterator[tuple[str, str]]:
    """Yield the key of each paired design that is not possible, with a message."""
    for key in ("stances", "seats"):
        if getattr(experiment, key) is None:
            continue
        if experiment.kind != "benchmark":
            yield key, f"{key} works only with kind: benchmark; remove {key}"
        elif experiment.rollouts.num_responses_per_timestep is not None:
            yield key, f"trees of responses cannot be paired; remove {key}, or rollouts.num_responses_per_timestep"
    if experiment.kind == "tournament":
        return
    if experiment.stances is not None:
        yield from (("stances", reason) for reason in stance_problems(protocol, prompts))
    if experiment.seats is not None:
        yield from (("seats", reason) for reason in _swap_problems(experiment, protocol))


def stance_problems(protocol: Protocol, prompts: PromptSet, advice: str = "remove stances") -> Sequence[str]:
    """Return the reasons why a datapoint cannot be played with both stances, with `advice` on those of the protocol."""
    return [*_stance_problems(protocol, advice)] or [*_silent_template_problems(protocol, prompts)]


def _stance_problems(protocol: Protocol, advice: str = "remove stances") -> Iterator[str]:
    """Yield each reason why the protocol cannot play a datapoint with both stances."""
    if not protocol.prover_names:
        yield f"{protocol.name} has no prover, so no stance; {advice}"
    elif protocol.lists_answers and not protocol.may_exchange_answers:
        stances = comma_join(protocol.agent_spec(name).stance for name in protocol.prover_names)
        yield f"only the stances correct and incorrect can be exchanged, not {stances}; {advice}"
    elif protocol.samples_stance:
        yield (
            f"protocol {protocol.name} chooses one of the opposed provers at random, so a game has only one stance; "
            f"{advice}"
        )
    elif _RANDOMIZE_STANCE in protocol.file.fixed and not (
        protocol.are_opposed or protocol.parameters.randomize_prover_stance
    ):
        stance = stance_word(protocol.default_stance(protocol.prover_names[0]))
        yield f"in {protocol.name} {comma_join(protocol.prover_names)} always argues {stance}; {advice}"


def _silent_template_problems(protocol: Protocol, prompts: PromptSet) -> Iterator[str]:
    """Yield a problem if provers have opposite stances, but a prover's templates do not use its stance."""
    templates = [prompts.place(name, 1) for name in _provers_without_stance(protocol, prompts)]
    if templates and protocol.are_opposed:
        yield (
            f"provers exchange their stances, but {comma_join(map(str, templates))} {_never_use(templates)} the "
            "variable "
            + ("`answer`; use it" if protocol.lists_answers else "`stance`; use it ({% if stance == 'accept' %}...)")
        )


def _provers_without_stance(protocol: Protocol, prompts: PromptSet) -> list[str]:
    """Return the provers whose templates do not use a variable with their stance."""
    variables = {"stance", "answer", "answer_letter"} if protocol.lists_answers else {"stance"}
    return [name for name in protocol.prover_names if not variables & prompts.variables[name]]


def _never_use(templates: Sequence[object]) -> str:
    return "never uses" if len(templates) == 1 else "never use"


def _differing_pairs(experiment: Experiment, protocol: Protocol) -> Sequence[Seats]:
    """Return the pairs of seats of one role whose players differ."""
    return [pair for pair in _pairs_of_one_role(protocol) if _have_different_players(experiment, pair)]


def _pairs_of_one_role(protocol: Protocol) -> Iterator[Seats]:
    for first, second in combinations(protocol.agent_names, 2):
        # The judges of a panel have no opponents, so there is no advantage of a seat to measure.
        if protocol.agent_spec(first).role == protocol.agent_spec(second).role == "prover":
            yield first, second


def _have_different_players(experiment: Experiment, pair: Seats) -> bool:
    first, second = (experiment.agents[name] for name in pair)
    return (first.model, first.max_response_words) != (second.model, second.max_response_words)


def _swap_problems(experiment: Experiment, protocol: Protocol) -> Iterator[str]:
    seats = experiment.seats
    possible_pairs = list(_pairs_of_one_role(protocol))
    if not possible_pairs:
        hint = " (`stances: both` pairs its games)" if not list(_stance_problems(protocol)) else ""
        yield f"{protocol.name} has no two provers, and only their seats can be swapped; remove seats{hint}"
    elif not isinstance(seats, Mapping):
        pairs = _differing_pairs(experiment, protocol)
        choices = " or ".join(f"{{swap: [{first}, {second}]}}" for first, second in pairs)
        if not pairs:
            yield (
                "no two provers differ in model or max_response_words, so a swap would repeat the same games; set "
                "another model for one of them, or remove seats"
            )
        elif len(pairs) > 1:
            yield f"the players of several pairs of seats differ; name the pair: {choices}"
    else:
        for name in seats["swap"]:
            if name not in protocol.agent_names:
                hint = did_you_mean(name, protocol.agent_names) or f"; choose two of {comma_join(protocol.agent_names)}"
                yield f"{protocol.name} has no agent {name!r}{hint}"
        are_known = all(name in protocol.agent_names for name in seats["swap"])
        if are_known and set(seats["swap"]) <= set(protocol.verifier_names):
            yield f"{' and '.join(seats['swap'])} are judges of a panel; only seats of provers can be swapped"
        elif are_known and set(seats["swap"]) not in map(set, possible_pairs):
            example = " and ".join(possible_pairs[0])
            yield f"{' and '.join(seats['swap'])} are seats of different roles; choose seats of one role: {example}"


def design_notes(experiment: Experiment, protocol: Protocol, prompts: PromptSet) -> Iterator[str]:
    """Yield notes on designs whose paired games do not differ, or differ in two ways at once."""
    if experiment.stances is not None and len(_provers_without_stance(protocol, prompts)) == len(protocol.prover_names):
        templates = [name + SUFFIX for name in protocol.prover_names]
        yield (
            f"stances: {comma_join(templates)} {_never_use(templates)} `stance`, so both games of a datapoint have the "
            "same prompts"
        )
    seats = swapped_seats(experiment, protocol)
    if seats is not None and not _have_different_players(experiment, seats):
        yield f"seats: {' and '.join(seats)} have the same player, so a swap repeats the same games"
    if seats is None and protocol.exchanges_stances and (pairs := _differing_pairs(experiment, protocol)):
        yield (
            f"stances: the players of {' and '.join(pairs[0])} differ, so position_bias mixes effects of the seat and "
            "the player; add `seats: swap` to separate them"
        )
