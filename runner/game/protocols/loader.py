"""A protocol's name or path, and the parameters a spec sets, into a `Protocol`, or every problem."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import Place, PlaceOf, Problem, SpecError
from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import from_plain, removable_keys, resettable_keys, schema
from runner.documents.editor_schemas import for_editors
from runner.documents.layer_merge import load_layers
from runner.documents.layered_data import LayeredData
from runner.documents.schema_check import check
from runner.documents.source_tree import OwnTree
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schema import Parameters, ProtocolFile


def protocol_schema() -> dict[str, Any]:
    """The JSON Schema of a protocol file."""
    return schema(ProtocolFile, "nip-run protocol")


def protocol_editor_schema() -> dict[str, Any]:
    """The schema for editors, of a file as it is written: the base that it extends may hold what it leaves out.

    `verifier_first` has no default: a file that leaves it out has a cycle that is not turned.
    """
    result = for_editors(protocol_schema(), "debate")
    parameters = result["properties"]["parameters"]
    del (
        result["$defs"]["Parameters"]["properties"]["verifier_first"]["default"],
        parameters["default"]["verifier_first"],
    )
    return result


def builtin_names() -> list[str]:
    return sorted(path.stem for path in package_data.PROTOCOLS.glob("*.yaml"))


_SPEC_KEYS = {"dataset", "models", "prompts", "protocol"}
"""Keys that a spec has, and no protocol file."""

_PROTOCOL_KEYS = {"cycle", "channels", "parameters", "fixed"}
"""Keys that a protocol file has, and no spec."""


def find_protocol(name: str, folder: Path) -> Path | None:
    """The file of a protocol: a path beside the spec, or a built-in name."""
    if name.endswith((".yaml", ".yml")):
        return package_data.find(name, folder)
    path = package_data.PROTOCOLS / f"{name}.yaml"
    return path if package_data.is_file(path) else None


def _find_base(name: str, folder: Path) -> Path | None:
    """What a protocol file extends: a file beside it, or a built-in protocol by file name or bare name."""
    beside = folder / name
    if package_data.is_file(beside):
        return beside
    path = package_data.PROTOCOLS / (name if name.endswith(".yaml") else f"{name}.yaml")
    return path if package_data.is_file(path) else None


def load_protocol(
    name: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    folder: Path = Path(),
    where: PlaceOf = lambda _: Place("protocol"),
    tree: OwnTree | None = None,
) -> Protocol:
    """Load a protocol by its built-in name or its file's path; `where` gives the place of a key such as `protocol.use`.

    `tree` holds the files of which messages may show something, by default that of the protocol's file.

    Raises:
        SpecError: with everything that is wrong with the file or with the parameters for it.
    """
    path = find_protocol(name, folder)
    if path is None:
        known = builtin_names()
        hint = did_you_mean(name, known) or f"; built-in ones are {comma_join(known)}"
        raise SpecError(
            [Problem(where("protocol.use"), "protocol.use", f"no protocol {name!r}{hint}; or give a .yaml file")]
        )
    checked = protocol_schema()
    shown = str(path) if path.parent != package_data.PROTOCOLS else f"{path.stem}.yaml"
    layered = load_layers(
        path,
        shown,
        (),
        _find_base,
        keys=checked["properties"],
        removable=removable_keys(ProtocolFile),
        resettable=resettable_keys(ProtocolFile),
        tree=tree,
    )
    if _SPEC_KEYS & layered.data.keys() and not _PROTOCOL_KEYS & layered.data.keys():
        message = (
            f"a spec, not a protocol file; name a protocol ({comma_join(builtin_names())}), or a file with a `cycle`"
        )
        raise SpecError([Problem(where("protocol.use"), "protocol.use", message, "a spec, not a protocol file")])
    problems = [*layered.wrong_nulls, *(layered.problems or _naming_each(check(layered, checked), layered.data))]
    if problems:
        raise SpecError(problems)
    file, declared = from_plain(ProtocolFile, layered.data), "verifier_first" in layered.data.get("parameters", {})
    if not declared:  # the cycle starts as it is written
        file = replace(file, parameters=replace(file.parameters, verifier_first=_starts_with_verifier(file)))
    problems = list(_static_problems(file, layered))
    given = dict(parameters or {})
    problems.extend(_value_problems(given, where))
    problems.extend(_parameter_problems(file, given, where, turns=declared))
    if problems:
        raise SpecError(problems)
    paths = tuple(one.path for one in layered.read)
    return Protocol(file, replace(file.parameters, **given), declared, paths=paths)


def _naming_each(problems: Sequence[Problem], data: Mapping[str, Any]) -> list[Problem]:
    """The problems, with a name of its own for each agent that lacks one: the schema has one example for all."""
    agents = data.get("agents")
    if not isinstance(agents, Mapping):
        return list(problems)
    names, provers = {}, 0
    for agent, rule in agents.items():
        is_verifier = (rule.get("role") if isinstance(rule, Mapping) else agent) == "verifier"
        provers += not is_verifier
        names[f"agents.{agent}"] = "Verifier" if is_verifier else f"Expert_{provers}"
    return [
        replace(one, message=one.message.replace("human_name: Expert_1", f"human_name: {names[one.key]}"))
        if one.key in names
        else one
        for one in problems
    ]


def _starts_with_verifier(file: ProtocolFile) -> bool:
    return any(file.agents[name].role == "verifier" for name in file.cycle[0].speak if name in file.agents)


def _static_problems(file: ProtocolFile, layered: LayeredData) -> Iterator[Problem]:
    verifiers = [name for name, agent in file.agents.items() if agent.role == "verifier"]
    if len(verifiers) != 1:
        yield _at(layered, "agents")(
            f"exactly one agent must be the verifier; here {comma_join(verifiers) or 'none'} is"
        )
    for name, channel in file.channels.items():
        yield from _unknown("agent", channel.members, file.agents, layered, "channels", name, "members")
    for index, step in enumerate(file.cycle):
        for speaker, channels in step.speak.items():
            yield from _speaker_problems(file, layered, index, speaker, channels)
    for name in file.agents:
        yield from _agent_problems(file, layered, name)
    parameters = [field.name for field in fields(Parameters)]
    yield from _unknown("parameter", file.fixed, parameters, layered, "fixed")


def _unknown(
    what: str, names: Sequence[str], known: Collection[str], layered: LayeredData, *at: str | int
) -> Iterator[Problem]:
    """Entries of a list that name nothing there is."""
    for index, name in enumerate(names):
        if name not in known:
            yield _at(layered, *at, index)(f"no {what} {name!r}{did_you_mean(name, known)}")


def _at(layered: LayeredData, *at: str | int) -> Callable[[str], Problem]:
    return lambda message: Problem(layered.place(at), ".".join(map(str, at)), message)


def _speaker_problems(
    file: ProtocolFile, layered: LayeredData, index: int, speaker: str, channels: Sequence[str]
) -> Iterator[Problem]:
    problem = _at(layered, "cycle", index, "speak", speaker)
    if speaker not in file.agents:
        yield problem(f"no agent {speaker!r}{did_you_mean(speaker, file.agents)}")
        return
    if not channels:
        yield problem("a speaker needs at least one channel")
    for channel in channels:
        if channel not in file.channels:
            yield problem(f"no channel {channel!r}{did_you_mean(channel, file.channels)}")
        elif speaker not in file.channels[channel].members:
            yield problem(f"{speaker} speaks in {channel!r}, of which it is not a member")
        if len(channels) > 1 and not file.agents[speaker].headers.get(channel):
            message = f"{speaker} speaks in {len(channels)} channels at once and has no header for {channel!r}"
            yield _at(layered, "agents", speaker, "headers")(message)


def _agent_problems(file: ProtocolFile, layered: LayeredData, name: str) -> Iterator[Problem]:
    agent = file.agents[name]
    headers = _at(layered, "agents", name, "headers")
    order = _at(layered, "agents", name, "channel_order")
    texts = [text.lower() for text in agent.headers.values()]
    if len(set(texts)) < len(texts):
        yield headers("two channels have the same header")
    elif any(one in other for i, one in enumerate(texts) for j, other in enumerate(texts) if i != j):
        yield headers("one header stands in another, so that an answer could not be cut at them")
    for channel in agent.headers:
        if channel not in file.channels:
            yield headers(f"no channel {channel!r}{did_you_mean(channel, file.channels)}")
    named = [c for entry in agent.channel_order or () for c in ([entry] if isinstance(entry, str) else entry)]
    for channel in named:
        if channel not in file.channels:
            yield order(f"no channel {channel!r}{did_you_mean(channel, file.channels)}")
    if len(set(named)) < len(named):
        yield order("a channel is named twice")


def _value_problems(given: Mapping[str, Any], where: PlaceOf) -> Iterator[Problem]:
    """What no protocol takes as a value; a spec's own were checked with the rest of it."""
    names = {field.name for field in fields(Parameters)}
    data = {"protocol": {name: value for name, value in given.items() if name in names}}
    parameters = {"type": "object", "properties": schema(Parameters, "parameters")["properties"]}
    for problem in check(LayeredData(data), {"type": "object", "properties": {"protocol": parameters}}):
        yield replace(problem, place=where(problem.key))


def _parameter_problems(
    file: ProtocolFile, given: Mapping[str, Any], where: PlaceOf, *, turns: bool
) -> Iterator[Problem]:
    known = [field.name for field in fields(Parameters) if field.name not in file.fixed]
    for name, value in given.items():
        key = f"protocol.{name}"
        if name in file.fixed and value != getattr(file.parameters, name):
            fixed = getattr(file.parameters, name)
            yield Problem(where(key), key, f"{file.name} fixes {name} at {fixed!r}; leave it out")
        elif name not in file.fixed and name not in known:
            yield Problem(where(key), key, f"no such parameter{did_you_mean(name, known)}")
        elif name == "verifier_first" and not turns and value != file.parameters.verifier_first:
            message = (
                f"{file.name} starts as its cycle is written; to have verifier_first turn it, add "
                f"parameters: {{verifier_first: {str(value).lower()}}} to the protocol's file"
            )
            yield Problem(where(key), key, message)


def unplayable(protocol: Protocol, where: PlaceOf) -> Iterator[Problem]:
    """What makes a game pointless: no round in which a decision would count."""
    low, high = protocol.min_message_rounds, protocol.max_message_rounds
    if low > high:
        key = "protocol.min_message_rounds"
        yield Problem(where(key), key, f"{low} is more than max_message_rounds ({high})")
    elif not any(protocol.can_ever_decide(round_) for round_ in range(high)):
        yield Problem(
            where("protocol"),
            "protocol",
            f"the verifier may decide in no round from {low - 1} to {high - 1} (rounds count from 0); "
            "change the cycle, verifier_first or the number of rounds",
        )
