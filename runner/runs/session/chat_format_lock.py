"""A run goes on in the chat format and the order of turns that it began in, also where its spec leaves them open.

What 0.1.0 began is in `openai` format whatever its address; and an address may change while a run goes on. A protocol's
file that says no `verifier_first` meant `true` then, and its cycle as it is written now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from typing import TypeVar, get_args

from runner.base import package_data
from runner.base.errors import UsageError
from runner.base.text import comma_join
from runner.documents.layer_merge import load_layers
from runner.game.prompts.chat_format import ChatFormat
from runner.game.protocols.loader import load_protocol
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.run_plan import RunPlan
from runner.runs.finished.saved_spec import as_published, of_own_folder, with_records
from runner.runs.finished.selection import ITS_OWN, ReplayOf, WhichRun
from runner.spec.chat_formats import AskedIn, default_role, saved_formats
from runner.spec.experiment import RENAMED_KEYS
from runner.spec.loader import Spec

P = TypeVar("P", bound=RunPlan)

MAX_TRIED = 16
"""How many ways to ask the groups are tried to find a run; the first is that of 0.1.0."""


def as_begun(
    plan: P, results: Results, which: WhichRun = ITS_OWN, *, others: Collection[str] = ()
) -> tuple[P, str | None]:
    """A plan as its run, or the run that it replays, began; and a note where the spec alone would mean another.

    A format that the spec gives stays, and so does that of a new run. `others` are the ids of other plans' runs.

    Raises:
        UsageError: the spec says another format than the run that it replays was asked in; or it is a run's own, with
            another selection of datapoints.
        RunError: it is the own spec of a run whose manifest is missing or damaged.
    """
    plan = as_published(plan.with_spec(with_records(plan.spec)))
    replaying = which.replay is not None
    own = of_own_folder(plan, results, plan.with_spec, run_id=which.run_id, again=which.again, replaying=replaying)
    if own is not None:
        return own
    if which.replay is not None:
        turned = _turned_as_replayed(plan, which.replay)
        if turned is None:
            return _as_replayed(plan, which.replay), None
        note = f"run {which.replay.run.name} is replayed with {_order(turned.spec)}, as it began"
        return _as_replayed(turned, which.replay), note
    if which.again or _has_begun(plan, results, which.run_id):
        return plan, None
    for other, said in _others(plan):
        if other.run_id not in others and _has_begun(other, results, which.run_id):
            run_id = which.run_id or other.run_id
            return other, f"run {run_id} began with {said[0]} and keeps it; a new run of this spec has {said[1]}"
    return plan, None


def _others(plan: P) -> Iterator[tuple[P, tuple[str, str]]]:
    """The plans that the spec may have meant when its run began, and how each differs: its own way, and the spec's."""
    spec = plan.spec
    turned = _turned_by_0_1_0(spec)
    for began in [*([spec] if spec.by_address else []), *([] if turned is None else [turned])]:
        for formats in _ways(spec):
            other = _with_formats(began, _ways_of(formats))
            yield plan.with_spec(other), _difference(spec, other, formats)


def _turned_by_0_1_0(spec: Spec) -> Spec | None:
    """The spec with its protocol's cycle as 0.1.0 turned it, where the file leaves it open and that is another game."""
    protocol = spec.protocol
    if protocol.is_turned or protocol.parameters.verifier_first:
        return None
    return replace(spec, protocol=protocol.turned(verifier_first=True))


def _turned_as_replayed(plan: P, replay: ReplayOf) -> P | None:
    """The plan with the order of turns of the run that it replays, where the protocol's file leaves it open."""
    turned, saved = _turned_by_0_1_0(plan.spec), RunFolder(replay.run).spec
    if turned is None or not saved.is_file():
        return None
    section = load_layers(saved, str(saved), (), package_data.find, RENAMED_KEYS).data.get("protocol")
    if not isinstance(section, dict) or section.get("verifier_first") is not True:
        return None
    cycle = load_protocol(str(section.get("use")), folder=saved.parent).file.cycle
    return plan.with_spec(turned) if cycle == turned.protocol.file.cycle else None


def _order(spec: Spec) -> str:
    return f"protocol.verifier_first={str(spec.protocol.parameters.verifier_first).lower()}"


def _as_replayed(plan: P, replay: ReplayOf) -> P:
    """The plan that asks what a run was asked, where its spec leaves the chat format to the address.

    Raises:
        UsageError: it asks an agent in another format; before there is a folder for what cannot be replayed.
    """
    spec, played = plan.spec, saved_formats(RunFolder(replay.run).spec)
    asked = {}
    for group in sorted(spec.by_address):
        agents = spec.experiment.agents.items()
        ways = {played[name].in_chats() for name, agent in agents if agent.model == group and name in played}
        if len(ways) == 1:
            asked[group] = ways.pop()
    replayed = plan.with_spec(_with_formats(spec, asked)) if asked else plan
    wrong = list(_asked_otherwise(replayed.spec, replay, played))
    if wrong:
        raise UsageError(f"run {replay.run.name} cannot be replayed: {'; '.join(wrong)}")
    return replayed


def _asked_otherwise(spec: Spec, replay: ReplayOf, played: Mapping[str, AskedIn]) -> Iterator[str]:
    """The agents whose answers are replayed, and that the spec asks in another format than they were asked in."""
    for name, agent in spec.experiment.agents.items():
        first = spec.protocol.first_active_round(name)
        if first is None or name not in played or (replay.until_round is not None and first >= replay.until_round):
            continue
        ours = AskedIn.of(spec.experiment.models[agent.model])
        if ours.in_chats() != played[name].in_chats():
            there, here = (_keys(agent.model, way) for way in (played[name], ours))
            yield f"it asked {name} with {there}, and this spec says {here}"


def _keys(group: str, way: AskedIn) -> str:
    """What a spec says to have a group asked in this way."""
    said = f"models.{group}.chat_format={way.chat_format}"
    if way.chat_format != "alternating":
        return said
    return f"{said} models.{group}.system_role={'user' if way.in_first_turn else 'system'}"


def _ways(spec: Spec) -> Iterator[dict[str, ChatFormat]]:
    """Every choice of formats that the address has made otherwise."""
    groups = sorted(spec.by_address)
    ways = product(get_args(ChatFormat), repeat=len(groups))
    return (dict(zip(groups, way, strict=True)) for way in islice(ways, MAX_TRIED))


def _ways_of(formats: Mapping[str, ChatFormat]) -> dict[str, AskedIn]:
    return {group: AskedIn(format_, default_role(format_)) for group, format_ in formats.items()}


def _with_formats(spec: Spec, asked: Mapping[str, AskedIn]) -> Spec:
    models = dict(spec.experiment.models)
    for group, way in asked.items():
        role = way.system_role if group in spec.by_format else models[group].system_role
        models[group] = replace(models[group], chat_format=way.chat_format, system_role=role)
    return replace(spec, experiment=replace(spec.experiment, models=models))


def _has_begun(plan: RunPlan, results: Results, run_id: str | None) -> bool:
    folder = results.run(run_id or plan.run_id)
    if plan.spec.shard is not None:
        parts = (part for _, part in folder.begun_parts() if part.damage() is None)
        return any(part.manifest().identity == plan.identity for part in parts)
    if not folder.manifest_path.is_file() or folder.damage() is not None:
        # Its manifest may be made again; the hash in its name tells whose it is.
        return run_id is None and (folder.journal.is_file() or folder.stage_log.is_file())
    return folder.manifest().identity == plan.identity


def _difference(spec: Spec, other: Spec, formats: Mapping[str, ChatFormat]) -> tuple[str, str]:
    """What another reading of a spec has, and what the spec has today, with how to say it."""
    models = spec.experiment.models
    differ = [group for group, format_ in formats.items() if models[group].chat_format != format_]
    began = [f"models.{group}.chat_format={formats[group]}" for group in differ]
    new, how = [], []
    if differ:
        new.append(" ".join(f"models.{group}.chat_format={models[group].chat_format}" for group in differ))
        new[-1] += ", by its base_url"
        how.append("say that, or --again,")
    if spec.protocol is not other.protocol:
        began.append(_order(other))
        new.append("its protocol's cycle as it is written")
        how = ["say --again"]
    return comma_join(began), f"{' and '.join(new)}: {' '.join(how)} to begin one"
