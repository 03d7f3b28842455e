"""An agent's name and protocol, as they are given to it by hand: refused where they are not its spec's."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator

from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import changed
from runner.game.protocols.protocol import Protocol
from runner.spec.experiment import Experiment


def check_name(agent_name: str, hyper_params: Experiment) -> None:
    """Refuse an agent that the spec does not have.

    Raises:
        ValueError: naming the nearest, or else all that there are.
    """
    known = list(hyper_params.agents)
    if agent_name not in known:
        hint = did_you_mean(agent_name, known) or f"; the spec's agents are {comma_join(known)}"
        raise ValueError(f"no agent {agent_name!r}{hint}")


def protocol_of_spec(handler: object, hyper_params: Experiment) -> Protocol:
    """The protocol that an agent is given, which must be that of its spec as far as the spec says.

    Raises:
        TypeError: it is no protocol.
        ValueError: it has another name, lacks an agent of the spec, or has another value of what the spec sets.
    """
    if not isinstance(handler, Protocol):
        shown = reprlib.repr(handler)
        raise TypeError(f"protocol_handler is {shown}, not a Protocol; give the loaded spec's own, spec.protocol")
    wrong = list(_not_of_spec(handler, hyper_params))
    if wrong:
        raise ValueError(
            f"protocol_handler is the protocol {handler.name!r}, which is not the spec's: {'; '.join(wrong)}; give the "
            "loaded spec's own, spec.protocol"
        )
    return handler


def _not_of_spec(handler: Protocol, hyper_params: Experiment) -> Iterator[str]:
    said = hyper_params.protocol
    is_other = not said.use.endswith((".yaml", ".yml")) and said.use != handler.name
    if is_other:
        yield f"the spec plays {said.use!r}"
    for name in hyper_params.agents:
        if name not in handler.agent_names:
            yield f"it has no agent {name!r}"
    for name in [] if is_other else changed(said):
        here, there = getattr(said, name), getattr(handler.parameters, name)
        if here != there:
            yield f"the spec says {name}: {here!r}, and it has {there!r}"
