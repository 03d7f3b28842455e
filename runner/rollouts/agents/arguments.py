"""Checks whether the agent name and the protocol that a user passes to an agent match the agent's spec.

Runs always pass matching arguments; users who create agents in Python may not.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator

from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import changed_keys
from runner.game.protocols.protocol import Protocol
from runner.spec.experiment import Experiment


def check_name(agent_name: str, hyper_params: Experiment) -> None:
    """Check that the spec has an agent of this name.

    Raises:
        ValueError: the spec has no such agent. The message has the closest name, or else all names.
    """
    names = list(hyper_params.agents)
    if agent_name not in names:
        hint = did_you_mean(agent_name, names) or f"; the spec's agents are {comma_join(names)}"
        raise ValueError(f"no agent {agent_name!r}{hint}")


def protocol_of_spec(handler: object, hyper_params: Experiment) -> Protocol:
    """Return the protocol passed to an agent, after checking that it matches the spec.

    Raises:
        TypeError: `handler` is not a `Protocol`.
        ValueError: the protocol has another name, lacks an agent of the spec, or differs in a parameter of the spec.
    """
    protocol = checked_protocol(handler)
    differences = list(_differences(protocol, hyper_params))
    if differences:
        raise ValueError(
            f"protocol_handler is the protocol {protocol.name!r}, which differs from the spec's: "
            f"{'; '.join(differences)}. Pass spec.protocol of the loaded spec"
        )
    return protocol


def checked_protocol(handler: object) -> Protocol:
    """Return a user's argument if it is a protocol.

    Raises:
        TypeError: the argument is not a `Protocol`.
    """
    if isinstance(handler, Protocol):
        return handler
    text = reprlib.repr(handler)
    raise TypeError(f"protocol_handler is {text}, not a Protocol; pass spec.protocol of the loaded spec")


def check_binary(protocol: Protocol) -> None:
    """Check that verdicts accept or reject, because arrays have no place for listed answers.

    Raises:
        ValueError: the protocol lists answers.
    """
    if protocol.lists_answers:
        raise ValueError(
            f"arrays have no listed answers, so {protocol.name} cannot be played with them; run its spec with "
            "`runner.run`, or use a protocol whose verdicts accept or reject"
        )


def _differences(handler: Protocol, hyper_params: Experiment) -> Iterator[str]:
    settings = hyper_params.protocol
    is_other_protocol = not settings.use.endswith((".yaml", ".yml")) and settings.use != handler.name
    if is_other_protocol:
        yield f"the spec plays {settings.use!r}"
    for name in hyper_params.agents:
        if name not in handler.agent_names:
            yield f"the protocol has no agent {name!r}"
    for name in [] if is_other_protocol else changed_keys(settings):
        expected, actual = getattr(settings, name), getattr(handler.parameters, name)
        if expected != actual:
            yield f"the spec sets {name}: {expected!r}, but the protocol has {actual!r}"
