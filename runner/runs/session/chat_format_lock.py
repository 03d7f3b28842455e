"""Resumes a run in the chat format and the order of turns that it started with, if its spec leaves them open.

Runs of 0.1.0 have the format `openai` with any address, and an address may change between processes. A protocol file
without `verifier_first` meant `true` in 0.1.0; now the cycle is played as written.
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
from runner.runs.finished.saved_spec import resolve_saved_spec, with_published_identity, with_recorded_dataset
from runner.runs.finished.selection import OWN_RUN, ReplayOf, WhichRun
from runner.spec.chat_formats import ChatSettings, default_role, load_saved_formats
from runner.spec.experiment import RENAMED_KEYS
from runner.spec.loader import Spec

P = TypeVar("P", bound=RunPlan)

MAX_TRIED = 16
"""The maximum number of combinations of chat formats that are tried to find a run; the first is that of 0.1.0."""


def with_original_formats(
    plan: P, results: Results, which: WhichRun = OWN_RUN, *, other_run_ids: Collection[str] = ()
) -> tuple[P, str | None]:
    """Return a plan with the formats and order of turns that its run, or the run it replays, started with.

    The second value is a note if the spec alone would give another run. Formats that the spec sets are not changed,
    nor are those of a new run. `other_run_ids` are the ids of other plans' runs.

    Raises:
        UsageError: the spec sets another format than the replayed run has, or it is a run's saved spec with another
            selection of datapoints.
        RunError: it is the saved spec of a run whose manifest is missing or damaged.
    """
    plan = with_published_identity(plan.with_spec(with_recorded_dataset(plan.spec)))
    saved_run = resolve_saved_spec(plan, results, plan.with_spec, which)
    if saved_run is not None:
        return saved_run
    if which.replay is not None:
        turned = _turned_as_replayed(plan, which.replay)
        if turned is None:
            return _with_replayed_formats(plan, which.replay), None
        note = f"run {which.replay.run.name} is replayed with {_order(turned.spec)}, as it began"
        return _with_replayed_formats(turned, which.replay), note
    if which.again or _has_begun(plan, results, which.run_id):
        return plan, None
    for candidate, (began, new) in _earlier_readings(plan):
        if candidate.run_id not in other_run_ids and _has_begun(candidate, results, which.run_id):
            run_id = which.run_id or candidate.run_id
            note = f"run {run_id} began with {began} and keeps it; a new run of this spec has {new}"
            return candidate, note
    return plan, None


def _earlier_readings(plan: P) -> Iterator[tuple[P, tuple[str, str]]]:
    """Yield the plans that the spec may have meant when its run started, each with its difference from the spec."""
    spec = plan.spec
    turned_spec = _turned_by_0_1_0(spec)
    for began in [
        *([spec] if spec.groups_with_default_format else []),
        *([] if turned_spec is None else [turned_spec]),
    ]:
        for formats in _format_combinations(spec):
            candidate = _with_formats(began, _as_asked_in(formats))
            yield plan.with_spec(candidate), _difference(spec, candidate, formats)


def _turned_by_0_1_0(spec: Spec) -> Spec | None:
    """Return the spec with its protocol's cycle as 0.1.0 turned it; None if that would be the same game."""
    protocol = spec.protocol
    if protocol.is_turned or protocol.parameters.verifier_first:
        return None
    return replace(spec, protocol=protocol.with_verifier_first(verifier_first=True))


def _turned_as_replayed(plan: P, replay: ReplayOf) -> P | None:
    """Return the plan with the order of turns of the replayed run; None if it is the same or the protocol sets it."""
    turned, saved = _turned_by_0_1_0(plan.spec), RunFolder(replay.run).spec
    if turned is None or not saved.is_file():
        return None
    section = load_layers(saved, str(saved), (), package_data.find_file, RENAMED_KEYS).data.get("protocol")
    if not isinstance(section, dict) or section.get("verifier_first") is not True:
        return None
    cycle = load_protocol(str(section.get("use")), folder=saved.parent).file.cycle
    return plan.with_spec(turned) if cycle == turned.protocol.file.cycle else None


def _order(spec: Spec) -> str:
    return f"protocol.verifier_first={str(spec.protocol.parameters.verifier_first).lower()}"


def _with_replayed_formats(plan: P, replay: ReplayOf) -> P:
    """Return the plan with the chat formats of the replayed run, for groups whose format the spec leaves open.

    Raises:
        UsageError: the spec sets another format for an agent. This check comes before a folder is created.
    """
    spec, played = plan.spec, load_saved_formats(RunFolder(replay.run).spec)
    formats = {}
    for group in sorted(spec.groups_with_default_format):
        agents = spec.experiment.agents.items()
        ways = {played[name].in_chats() for name, agent in agents if agent.model == group and name in played}
        if len(ways) == 1:
            formats[group] = ways.pop()
    replayed = plan.with_spec(_with_formats(spec, formats)) if formats else plan
    problems = list(_format_problems(replayed.spec, replay, played))
    if problems:
        raise UsageError(f"run {replay.run.name} cannot be replayed: {'; '.join(problems)}")
    return replayed


def _format_problems(spec: Spec, replay: ReplayOf, played: Mapping[str, ChatSettings]) -> Iterator[str]:
    """Yield a problem for each agent whose answers are replayed but whose format differs in the spec."""
    for name, agent in spec.experiment.agents.items():
        first = spec.protocol.first_active_round(name)
        if first is None or name not in played or (replay.until_round is not None and first >= replay.until_round):
            continue
        current_format = ChatSettings.of(spec.experiment.models[agent.model])
        if current_format.in_chats() != played[name].in_chats():
            recorded, current = (_keys(agent.model, way) for way in (played[name], current_format))
            yield f"it called {name} with {recorded}, but this spec has {current}"


def _keys(group: str, way: ChatSettings) -> str:
    """Return the spec keys that select this format for a group."""
    chat_format_key = f"models.{group}.chat_format={way.chat_format}"
    if way.chat_format != "alternating":
        return chat_format_key
    return f"{chat_format_key} models.{group}.system_role={'user' if way.in_first_turn else 'system'}"


def _format_combinations(spec: Spec) -> Iterator[dict[str, ChatFormat]]:
    """Yield combinations of formats for the groups whose format is chosen by address."""
    groups = sorted(spec.groups_with_default_format)
    ways = product(get_args(ChatFormat), repeat=len(groups))
    return (dict(zip(groups, way, strict=True)) for way in islice(ways, MAX_TRIED))


def _as_asked_in(formats: Mapping[str, ChatFormat]) -> dict[str, ChatSettings]:
    return {group: ChatSettings(format_, default_role(format_)) for group, format_ in formats.items()}


def _with_formats(spec: Spec, formats: Mapping[str, ChatSettings]) -> Spec:
    models = dict(spec.experiment.models)
    for group, way in formats.items():
        role = way.system_role if group in spec.groups_with_default_role else models[group].system_role
        models[group] = replace(models[group], chat_format=way.chat_format, system_role=role)
    return replace(spec, experiment=replace(spec.experiment, models=models))


def _has_begun(plan: RunPlan, results: Results, run_id: str | None) -> bool:
    folder = results.run(run_id or plan.run_id)
    if plan.spec.shard is not None:
        parts = (part for _, part in folder.started_parts() if part.damage() is None)
        return any(part.manifest().identity == plan.identity for part in parts)
    if not folder.manifest_path.is_file() or folder.damage() is not None:
        # The manifest can be rebuilt, and the hash in the folder's name identifies the run.
        return run_id is None and (folder.journal.is_file() or folder.stage_log.is_file())
    return folder.manifest().identity == plan.identity


def _difference(spec: Spec, other: Spec, formats: Mapping[str, ChatFormat]) -> tuple[str, str]:
    """Return the words for what another reading of a spec has, and for what the spec has now and how to select it."""
    models = spec.experiment.models
    differing = [group for group, format_ in formats.items() if models[group].chat_format != format_]
    began = [f"models.{group}.chat_format={formats[group]}" for group in differing]
    new, how = [], []
    if differing:
        new.append(" ".join(f"models.{group}.chat_format={models[group].chat_format}" for group in differing))
        new[-1] += ", by its base_url"
        how.append("set that, or add --again,")
    if spec.protocol is not other.protocol:
        began.append(_order(other))
        new.append("its protocol's cycle as it is written")
        how = ["add --again"]
    return comma_join(began), f"{' and '.join(new)}: {' '.join(how)} to start one"
