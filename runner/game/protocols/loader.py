"""Load a `Protocol` by its name or path, with the parameters that a spec sets, or report all problems."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from runner.base import package_data
from runner.base.errors import SpecError
from runner.base.problems import Place, PlaceOf, Problem
from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import build_schema, from_plain, removable_keys, resettable_keys
from runner.documents.editor_schemas import derive_editor_schema
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules, LayeredData
from runner.documents.schema_check import check_schema
from runner.documents.source_tree import ProjectTree
from runner.game.protocols.ballot import CORRECT, INCORRECT, OPEN
from runner.game.protocols.protocol import ACCEPT, REJECT, Protocol
from runner.game.protocols.schedule import verifiers_without_decision
from runner.game.protocols.schema import FORBIDDEN, Parameters, ProtocolFile


def protocol_schema() -> dict[str, Any]:
    """Return the JSON Schema of a protocol file."""
    return build_schema(ProtocolFile, "nip-run protocol")


def protocol_editor_schema() -> dict[str, Any]:
    """Return the editor schema of a protocol file, which may leave out keys that its base sets.

    `verifier_first` has no default: if a file leaves it out, its cycle is not rotated.
    """
    result = derive_editor_schema(protocol_schema(), "debate")
    parameters = result["properties"]["parameters"]
    del (
        result["$defs"]["Parameters"]["properties"]["verifier_first"]["default"],
        parameters["default"]["verifier_first"],
    )
    return result


def builtin_names() -> list[str]:
    return sorted(path.stem for path in package_data.PROTOCOLS.glob("*.yaml"))


_BINARY_STANCES = (ACCEPT, REJECT)
_LISTED_STANCES = (CORRECT, INCORRECT, OPEN)

_SPEC_KEYS = {"dataset", "models", "prompts", "protocol"}
"""Keys that only specs have, not protocol files."""

_PROTOCOL_KEYS = {"cycle", "channels", "panel", "parameters", "fixed"}
"""Keys that only protocol files have, not specs."""


def find_protocol(name: str, folder: Path) -> Path | None:
    """Return the file of a protocol, whose name is a path relative to `folder` or a built-in name; None if missing."""
    if name.endswith((".yaml", ".yml")):
        return package_data.find_file(name, folder)
    path = package_data.PROTOCOLS / f"{name}.yaml"
    return path if package_data.is_file(path) else None


def _find_base(name: str, folder: Path) -> Path | None:
    """Return the file that a protocol file extends: a path relative to `folder`, or a built-in protocol; else None."""
    relative = folder / name
    if package_data.is_file(relative):
        return relative
    path = package_data.PROTOCOLS / (name if name.endswith(".yaml") else f"{name}.yaml")
    return path if package_data.is_file(path) else None


def load_protocol(
    name: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    folder: Path = Path(),
    where: PlaceOf = lambda _: Place("protocol"),
    tree: ProjectTree | None = None,
) -> Protocol:
    """Load a protocol by its built-in name or the path of its file.

    `where` returns the place of a key such as `protocol.use`. `tree` has the files that messages may quote; the default
    is the project of the protocol's file.

    Raises:
        SpecError: the file or the parameters have errors; lists all of them.
    """
    path = find_protocol(name, folder)
    if path is None:
        names = builtin_names()
        hint = did_you_mean(name, names) or f"; built-in protocols are {comma_join(names)}"
        raise SpecError(
            [Problem(where("protocol.use"), "protocol.use", f"no built-in protocol or file {name!r}{hint}")]
        )
    checked = protocol_schema()
    display_name = str(path) if path.parent != package_data.PROTOCOLS else f"{path.stem}.yaml"
    rules = KeyRules(
        checked["properties"], removable=removable_keys(ProtocolFile), resettable=resettable_keys(ProtocolFile)
    )
    layered = load_layers(path, display_name, (), _find_base, rules, tree=tree)
    if _SPEC_KEYS & layered.data.keys() and not _PROTOCOL_KEYS & layered.data.keys():
        message = (
            f"a spec, not a protocol file; name a protocol ({comma_join(builtin_names())}), or a file with a `cycle`"
        )
        raise SpecError([Problem(where("protocol.use"), "protocol.use", message, "a spec, not a protocol file")])
    violations = layered.problems or _suggest_names(check_schema(layered, checked), layered.data)
    problems = [*layered.wrong_nulls, *violations]
    if problems:
        raise SpecError(problems)
    file = from_plain(ProtocolFile, layered.data)
    declares_verifier_first = "verifier_first" in layered.data.get("parameters", {})
    if not declares_verifier_first:  # the cycle starts as it is written
        file = replace(file, parameters=replace(file.parameters, verifier_first=_starts_with_verifier(file)))
    problems = list(_static_problems(file, layered))
    parameter_values = dict(parameters or {})
    problems.extend(_value_problems(parameter_values, where))
    problems.extend(_parameter_problems(file, parameter_values, where, may_rotate=declares_verifier_first))
    if problems:
        raise SpecError(problems)
    paths = tuple(file.path for file in layered.read_files)
    return Protocol(
        file,
        _with_values(file.parameters, parameter_values),
        declares_verifier_first,
        paths=paths,
        places=_find_places(file, layered),
    )


def _find_places(file: ProtocolFile, layered: LayeredData) -> dict[str, Place]:
    """Return the place of each agent, channel and step, by dotted key."""
    keys: list[tuple[str | int, ...]] = [("agents", name) for name in file.agents]
    keys += [("channels", name) for name in file.channels]
    for number, step in enumerate(file.cycle):
        keys += [("cycle", number), *(("cycle", number, "speak", speaker) for speaker in step.speak)]
    return {".".join(map(str, key)): layered.place(key) for key in keys}


def _suggest_names(problems: Sequence[Problem], data: Mapping[str, object]) -> list[Problem]:
    """Return the problems with a different example of `human_name` for each agent, since the schema has only one."""
    agents = data.get("agents")
    if not isinstance(agents, Mapping):
        return list(problems)
    names, provers = {}, 0
    for agent, rule in agents.items():
        is_verifier = (rule.get("role") if isinstance(rule, Mapping) else agent) == "verifier"
        provers += not is_verifier
        names[f"agents.{agent}"] = "Verifier" if is_verifier else f"Expert_{provers}"
    return [
        replace(problem, message=problem.message.replace("human_name: Expert_1", f"human_name: {names[problem.key]}"))
        if problem.key in names
        else problem
        for problem in problems
    ]


def _starts_with_verifier(file: ProtocolFile) -> bool:
    return any(file.agents[name].role == "verifier" for name in file.cycle[0].speak if name in file.agents)


def _with_values(parameters: Parameters, values: Mapping[str, Any]) -> Parameters:
    """Return parameters with these values. A whole number may be written as 5.0 or 1e2."""
    are_whole = {name: isinstance(getattr(parameters, name), int) for name in values}
    numbers = {name: int(value) for name, value in values.items() if isinstance(value, float) and are_whole[name]}
    return replace(parameters, **{**values, **numbers})


def _static_problems(file: ProtocolFile, layered: LayeredData) -> Iterator[Problem]:
    verifiers = [name for name, agent in file.agents.items() if agent.role == "verifier"]
    names = comma_join(verifiers) or "none"
    if file.panel is not None and len(verifiers) < 2:
        yield _problem_at(layered, "panel")(
            f"a panel needs several verifiers; here {names} is one; add agents with role: verifier, or remove panel"
        )
    elif file.panel is not None and file.answers != "accept_reject":
        message = "a panel decides to accept or reject, not between listed answers; remove panel, or answers"
        yield _problem_at(layered, "answers")(message)
    elif file.panel is None and len(verifiers) > 1:
        message = "exactly one agent must be the verifier; here {} are; add panel: {{rule: majority}}, or remove some"
        yield _problem_at(layered, "agents")(message.format(names))
    elif not verifiers:
        yield _problem_at(layered, "agents")(f"exactly one agent must be the verifier; here {names} is")
    for name, channel in file.channels.items():
        yield from _unknown_names("agent", channel.members, file.agents, layered, "channels", name, "members")
    for index in range(len(file.cycle)):
        yield from _step_problems(file, layered, index)
    for name in file.agents:
        yield from _agent_problems(file, layered, name)
        yield from _stance_problems(file, layered, name)
    yield from _column_problems(file, layered)
    parameters = [parameter.name for parameter in fields(Parameters)]
    yield from _unknown_names("parameter", file.fixed, parameters, layered, "fixed")


def _step_problems(file: ProtocolFile, layered: LayeredData, index: int) -> Iterator[Problem]:
    step = file.cycle[index]
    for speaker, channels in step.speak.items():
        yield from _speaker_problems(file, layered, index, speaker, channels)
    yield from _statement_problems(file, layered, index)
    yield from _must_decide_problems(file, layered, index)
    if step.best_of is None:
        return
    judges = [name for name, agent in file.agents.items() if agent.role == "verifier"]
    for speaker in step.speak.keys() & set(judges):
        message = f"only provers have candidates, and {speaker} is the verifier; give it a step of its own"
        yield _problem_at(layered, "cycle", index, "best_of")(message)
    if step.best_of.by == "judge" and (len(judges) > 1 or file.answers == "listed"):
        message = "`judge` needs a single verifier that accepts or rejects; choose another selector"
        yield _problem_at(layered, "cycle", index, "best_of", "by")(message)


def _statement_problems(file: ProtocolFile, layered: LayeredData, index: int) -> Iterator[Problem]:
    """Yield a problem for a step whose messages cannot state what it requires, or after which nothing can be picked."""
    step, kind = file.cycle[index], file.cycle[index].states
    if kind is None and not step.pick_claim:
        return
    problem = _problem_at(layered, "cycle", index, "pick_claim" if kind is None else "states")
    provers = [name for name in step.speak if name in file.agents and file.agents[name].role == "prover"]
    if kind not in ("claims", "estimates") and step.pick_claim:
        yield problem("a sub-claim is picked after a step with states: claims or states: estimates; move this key")
    if file.answers == "listed":
        yield problem("the verifier chooses from listed answers, so no message can state another one; remove this key")
    if kind is not None and len(step.speak) != 1:
        yield problem(f"exactly one agent must speak in a step that states {kind}; split the step")
    elif kind in ("answer", "claims") and not provers:
        yield problem(f"only a prover can state {'an answer' if kind == 'answer' else kind}; let a prover speak here")
    if len(provers) < len(step.speak) and step.may_decide:
        yield problem("the verifier speaks in this step, but must not decide here; add may_decide: false")
    if (kind == "estimates" or step.pick_claim) and not _has_claims_to_pick(file, index):
        yield problem("there are no sub-claims to pick from in this step; add a step with states: claims before it")
    if step.pick_claim and any(earlier.pick_claim for earlier in file.cycle[:index]):
        yield problem("an earlier step picks a sub-claim, too; keep one of them, and set max_depth to repeat it")
    for name in provers if kind in ("answer", "claims") else ():
        if file.agents[name].word_limit != "stated":
            message = f"{name} states {kind} in step {index + 1}, which must not be cut; remove word_limit"
            yield _problem_at(layered, "agents", name, "word_limit")(message)


def _must_decide_problems(file: ProtocolFile, layered: LayeredData, index: int) -> Iterator[Problem]:
    """Yield a problem if a step has `must_decide`, but no verifier may decide in it."""
    step = file.cycle[index]
    has_verifier = any(name in file.agents and file.agents[name].role == "verifier" for name in step.speak)
    if step.must_decide and not (step.may_decide and has_verifier):
        message = (
            "no verifier may decide in this step; let the verifier speak here with may_decide: true, or remove this key"
        )
        yield _problem_at(layered, "cycle", index, "must_decide")(message)


def _has_claims_to_pick(file: ProtocolFile, index: int) -> bool:
    """Return whether sub-claims are stated in this step of the cycle or before it, and not picked from before it."""
    last = max((i for i, step in enumerate(file.cycle[: index + 1]) if step.states == "claims"), default=None)
    return last is not None and not any(step.pick_claim for step in file.cycle[last:index])


def _unknown_names(
    kind: str, names: Sequence[str], valid_names: Collection[str], layered: LayeredData, *at: str | int
) -> Iterator[Problem]:
    """Yield a problem for each name that is not in `valid_names`."""
    for index, name in enumerate(names):
        if name not in valid_names:
            yield _problem_at(layered, *at, index)(f"no {kind} {name!r}{did_you_mean(name, valid_names)}")


def _problem_at(layered: LayeredData, *at: str | int) -> Callable[[str], Problem]:
    return lambda message: Problem(layered.place(at), ".".join(map(str, at)), message)


def _speaker_problems(
    file: ProtocolFile, layered: LayeredData, index: int, speaker: str, channels: Sequence[str]
) -> Iterator[Problem]:
    problem = _problem_at(layered, "cycle", index, "speak", speaker)
    if speaker not in file.agents:
        yield problem(f"no agent {speaker!r}{did_you_mean(speaker, file.agents)}")
        return
    if not channels:
        yield problem("a speaker needs at least one channel; add one")
    for channel in channels:
        if channel not in file.channels:
            yield problem(f"no channel {channel!r}{did_you_mean(channel, file.channels)}")
        elif speaker not in file.channels[channel].members:
            yield problem(f"{speaker} speaks in {channel!r}, but is not a member; add it to channels.{channel}.members")
        if len(channels) > 1 and not file.agents[speaker].headers.get(channel):
            message = f"{speaker} speaks in {len(channels)} channels at once and has no header for {channel!r}; add one"
            yield _problem_at(layered, "agents", speaker, "headers")(message)


def _agent_problems(file: ProtocolFile, layered: LayeredData, name: str) -> Iterator[Problem]:
    agent = file.agents[name]
    headers = _problem_at(layered, "agents", name, "headers")
    order = _problem_at(layered, "agents", name, "channel_order")
    texts = [text.lower() for text in agent.headers.values()]
    if not all(map(str.strip, texts)):
        yield headers("a header is blank; write the text that starts the message")
    elif len(set(texts)) < len(texts):
        yield headers("two channels have the same header; change one")
    elif any(shorter in longer for i, shorter in enumerate(texts) for j, longer in enumerate(texts) if i != j):
        yield headers("one header is part of another, so answers cannot be split at headers; change one")
    for channel in agent.headers:
        if channel not in file.channels:
            yield headers(f"no channel {channel!r}{did_you_mean(channel, file.channels)}")
    listed = [c for entry in agent.channel_order or () for c in ([entry] if isinstance(entry, str) else entry)]
    for channel in listed:
        if channel not in file.channels:
            yield order(f"no channel {channel!r}{did_you_mean(channel, file.channels)}")
    if len(set(listed)) < len(listed):
        yield order("a channel is listed twice; remove one")


def _column_problems(file: ProtocolFile, layered: LayeredData) -> Iterator[Problem]:
    """Yield a problem for each agent in `private` that does not exist, and for rules that would reveal the label."""
    for column, agents in file.private.items():
        yield from _unknown_names("agent", agents, file.agents, layered, "private", column)
        if column in FORBIDDEN:
            yield _problem_at(layered, "private", column)("no agent ever sees the label; remove this column")
    if file.quotes is not None and file.quotes.source in FORBIDDEN:
        message = "the label cannot be quoted; name the column with the text"
        yield _problem_at(layered, "quotes", "source")(message)


def _stance_problems(file: ProtocolFile, layered: LayeredData, name: str) -> Iterator[Problem]:
    """Yield a problem if an agent's stance has no meaning for the answers of the protocol."""
    stance, is_prover = file.agents[name].stance, file.agents[name].role == "prover"
    problem = _problem_at(layered, "agents", name, "stance")
    if file.answers == "accept_reject" and stance not in _BINARY_STANCES:
        if _is_listed_stance(stance):
            hint = "; correct, incorrect, open and letters need the protocol key answers: listed"
        else:
            hint = did_you_mean(stance, _BINARY_STANCES) or "; write one of them"
        yield problem(f"{stance!r} is not one of {comma_join(_BINARY_STANCES)}{hint}")
    elif file.answers == "listed" and is_prover and not _is_listed_stance(stance):
        needed = "a prover about listed answers needs the stance correct, incorrect, open, or a letter from A to Z"
        yield problem(f"{needed}, not {stance!r}{did_you_mean(stance, _LISTED_STANCES)}")


def _is_listed_stance(stance: str) -> bool:
    return stance in _LISTED_STANCES or (len(stance) == 1 and stance in ascii_uppercase)


def _value_problems(values: Mapping[str, object], where: PlaceOf) -> Iterator[Problem]:
    """Yield the problems that the schema finds in parameter values. Values of a spec were already checked with it."""
    names = {field.name for field in fields(Parameters)}
    data = {"protocol": {name: value for name, value in values.items() if name in names}}
    parameters = {"type": "object", "properties": build_schema(Parameters, "parameters")["properties"]}
    for problem in check_schema(LayeredData(data), {"type": "object", "properties": {"protocol": parameters}}):
        yield replace(problem, place=where(problem.key))


def _parameter_problems(
    file: ProtocolFile, values: Mapping[str, object], where: PlaceOf, *, may_rotate: bool
) -> Iterator[Problem]:
    changeable = [field.name for field in fields(Parameters) if field.name not in file.fixed]
    for name, value in values.items():
        key = f"protocol.{name}"
        if name in file.fixed and value != getattr(file.parameters, name):
            fixed = getattr(file.parameters, name)
            yield Problem(where(key), key, f"{file.name} fixes {name} at {fixed!r}; remove {key}")
        elif name not in file.fixed and name not in changeable:
            hint = did_you_mean(name, changeable) or f"; choose one of {comma_join(changeable)}"
            yield Problem(where(key), key, f"no such parameter{hint}")
        elif name == "verifier_first" and not may_rotate and value != file.parameters.verifier_first:
            message = (
                f"the cycle of {file.name} starts as written; to make verifier_first rotate it, add "
                f"parameters: {{verifier_first: {str(value).lower()}}} to the protocol's file"
            )
            yield Problem(where(key), key, message)
    force = values.get("force_guess")
    if file.answers == "listed" and force in ("zero", "one"):
        message = f"{force} stands for accept or reject, but {file.name} lists answers; set it to y or null"
        yield Problem(where("protocol.force_guess"), "protocol.force_guess", message)
    if file.answers != "listed" and values.get("shuffle_answers") is False:
        message = f"{file.name} lists no answers; remove protocol.shuffle_answers"
        yield Problem(where("protocol.shuffle_answers"), "protocol.shuffle_answers", message)
    for name in ("max_depth", "max_claims"):
        is_changed = values.get(name, getattr(file.parameters, name)) != getattr(file.parameters, name)
        if is_changed and not any(step.states == "claims" for step in file.cycle):
            message = f"no step of {file.name} states sub-claims; remove protocol.{name}"
            yield Problem(where(f"protocol.{name}"), f"protocol.{name}", message)


def unplayable_parameters(protocol: Protocol, where: PlaceOf) -> Iterator[Problem]:
    """Yield a problem if the parameters leave no round in which a decision counts."""
    low, high = protocol.min_message_rounds, protocol.max_message_rounds
    if depth_problems := list(_depth_problems(protocol, where)):
        yield from depth_problems
    elif low > high:
        key = "protocol.min_message_rounds"
        yield Problem(where(key), key, f"{low} is more than max_message_rounds ({high}); lower it")
    elif protocol.file.panel is not None:
        for name, in_all_games in verifiers_without_decision(protocol).items():
            if in_all_games:
                key, rounds = f"agents.{name}", f"from {low - 1} to {high - 1} (rounds count from 0)"
                message = f"{name} may decide in no round {rounds}; add a step in which {name} may decide, or remove it"
                yield Problem(protocol.place(key), key, message)
    elif not any(protocol.can_ever_decide(round_) for round_ in range(high)):
        yield Problem(
            where("protocol"),
            "protocol",
            f"the verifier may decide in no round from {low - 1} to {high - 1} (rounds count from 0); "
            "change the cycle, verifier_first or the number of rounds",
        )


def _depth_problems(protocol: Protocol, where: PlaceOf) -> Iterator[Problem]:
    """Yield a problem if a game of the maximum number of rounds picks more or fewer sub-claims than `max_depth`."""
    if not any(step.pick_claim for step in protocol.file.cycle):
        return
    depth, rounds = protocol.parameters.max_depth, protocol.max_message_rounds
    picks = sum(protocol.step(round_).pick_claim for round_ in range(rounds))
    if picks != depth:
        key = "protocol.max_message_rounds"
        message = f"games of {rounds} rounds pick {picks} sub-claims, but max_depth is {depth}"
        yield Problem(where(key), key, f"{message}; set {key} to {len(protocol.steps)}")
