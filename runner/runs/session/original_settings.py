"""Finds the chat formats and order of turns that an existing run started with, if its spec does not set them.

Commands need these settings to find the run's folder. Between the start of a run and its resumption, the meaning of a
spec can change in two ways:

- If a spec sets no `chat_format`, the address of the model's server (`base_url`) decides the format. The address may
  change between processes, and nip-run 0.1.0 used the format `openai` for every address.
- If a protocol file sets no `verifier_first`, nip-run plays its cycle as written. In 0.1.0, `true` was the default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TypeVar, get_args

from runner.base import package_data
from runner.base.errors import UsageError
from runner.base.text import comma_join
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules
from runner.game.prompts.chat_format import ChatFormat
from runner.game.protocols.loader import load_protocol
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.run_plan import RunPlan
from runner.runs.finished.saved_spec import resolve_saved_spec, with_published_identity, with_recorded_dataset
from runner.runs.finished.selection import OWN_RUN, ReplayOf, RunSelection
from runner.spec.chat_formats import ChatSettings, default_role, load_saved_formats
from runner.spec.experiment import RENAMED_KEYS
from runner.spec.loader import Spec

P = TypeVar("P", bound=RunPlan)

MAX_COMBINATIONS = 16
"""The maximum number of combinations of chat formats to try. The first one has the format of 0.1.0 for all groups."""


def with_original_settings(
    plan: P, results: Results, selection: RunSelection = OWN_RUN, *, other_run_ids: Collection[str] = ()
) -> tuple[P, str | None]:
    """Return a plan with the chat formats and order of turns that its run, or the run it replays, started with.

    The second value is a note if the spec alone would select another run; otherwise None. Formats that the spec sets
    do not change, and neither do the formats of a new run. `other_run_ids` are the ids of the runs of other plans.

    Raises:
        UsageError: the spec sets another format than the replayed run has, or the spec is the saved spec of a run but
            selects other datapoints.
        RunError: the spec is the saved spec of a run whose manifest is missing or damaged.
    """
    plan = with_published_identity(plan.with_spec(with_recorded_dataset(plan.spec)))
    saved_run = resolve_saved_spec(plan, results, plan.with_spec, selection)
    if saved_run is not None:
        return saved_run
    if selection.replay is not None:
        original = _with_replayed_turn_order(plan, selection.replay)
        if original is None:
            return _with_replayed_formats(plan, selection.replay), None
        note = (
            f"the replay of run {selection.replay.run.name} uses {_turn_order_override(original.spec)}, because the "
            "run started with this value"
        )
        return _with_replayed_formats(original, selection.replay), note
    if selection.again or _has_started(plan, results, selection.run_id):
        return plan, None
    for candidate, (original_settings, current_settings) in _possible_original_plans(plan):
        if candidate.run_id not in other_run_ids and _has_started(candidate, results, selection.run_id):
            run_id = selection.run_id or candidate.run_id
            note = (
                f"run {run_id} started with {original_settings} and resumes with this value. A new run of this spec "
                f"would have {current_settings}"
            )
            return candidate, note
    return plan, None


def plans_with_original_settings(
    plans: Sequence[P], results: Results, selection: RunSelection = OWN_RUN
) -> tuple[list[P], list[list[str]]]:
    """Return the plans of one command, changed by `with_original_settings`, and a list of notes for each."""
    run_ids = {plan.run_id for plan in plans}
    pairs = [with_original_settings(plan, results, selection, other_run_ids=run_ids - {plan.run_id}) for plan in plans]
    return [plan for plan, _ in pairs], [[] if note is None else [note] for _, note in pairs]


def _possible_original_plans(plan: P) -> Iterator[tuple[P, tuple[str, str]]]:
    """Yield each plan that the spec could describe when its run started, with the result of `_describe_difference`."""
    spec = plan.spec
    originals = [spec] if spec.groups_with_default_format else []
    if (reordered_spec := _with_0_1_0_turn_order(spec)) is not None:
        originals.append(reordered_spec)
    for original in originals:
        for formats in _format_combinations(spec):
            settings = {group: ChatSettings(format_, default_role(format_)) for group, format_ in formats.items()}
            candidate = _with_formats(original, settings)
            yield plan.with_spec(candidate), _describe_difference(spec, candidate, formats)


def _with_0_1_0_turn_order(spec: Spec) -> Spec | None:
    """Return the spec with the order of turns of nip-run 0.1.0; None if the spec has the same order today."""
    protocol = spec.protocol
    if protocol.declares_verifier_first or protocol.parameters.verifier_first:
        return None
    return replace(spec, protocol=protocol.with_verifier_first(verifier_first=True))


def _with_replayed_turn_order(plan: P, replay: ReplayOf) -> P | None:
    """Return the plan with the replayed run's order of turns; None if the plan has or sets its order already."""
    reordered_spec, spec_path = _with_0_1_0_turn_order(plan.spec), RunFolder(replay.run).spec
    if reordered_spec is None or not spec_path.is_file():
        return None
    layers = load_layers(spec_path, str(spec_path), (), package_data.find_file, KeyRules(renamed=RENAMED_KEYS))
    section = layers.data.get("protocol")
    if not isinstance(section, dict) or section.get("verifier_first") is not True:
        return None
    # The order of turns is the same only if both protocols also have the same cycle of turns.
    cycle = load_protocol(str(section.get("use")), folder=spec_path.parent).file.cycle
    return plan.with_spec(reordered_spec) if cycle == reordered_spec.protocol.file.cycle else None


def _turn_order_override(spec: Spec) -> str:
    """Return the override that sets a spec's order of turns."""
    return f"protocol.verifier_first={str(spec.protocol.parameters.verifier_first).lower()}"


def _with_replayed_formats(plan: P, replay: ReplayOf) -> P:
    """Return the plan with the chat formats of the replayed run for model groups whose format the spec does not set.

    Raises:
        UsageError: the spec sets another format for an agent than the replayed run has.
    """
    spec, replayed = plan.spec, load_saved_formats(RunFolder(replay.run).spec)
    formats = {}
    for group in sorted(spec.groups_with_default_format):
        agents = spec.experiment.agents.items()
        settings = {
            replayed[name].without_sending_settings()
            for name, agent in agents
            if agent.model == group and name in replayed
        }
        if len(settings) == 1:
            formats[group] = settings.pop()
    replayed_plan = plan.with_spec(_with_formats(spec, formats)) if formats else plan
    problems = list(_format_problems(replayed_plan.spec, replay, replayed))
    if problems:
        raise UsageError(f"run {replay.run.name} cannot be replayed: {'; '.join(problems)}")
    return replayed_plan


def _format_problems(spec: Spec, replay: ReplayOf, replayed: Mapping[str, ChatSettings]) -> Iterator[str]:
    """Yield a message for each agent whose answers are replayed but whose format differs in the spec."""
    for name, agent in spec.experiment.agents.items():
        first_round = spec.protocol.first_active_round(name)
        if first_round is None or name not in replayed:
            continue
        if replay.until_round is not None and first_round >= replay.until_round:
            continue  # all answers of this agent are new
        current_format = ChatSettings.from_group(spec.experiment.models[agent.model])
        if current_format.without_sending_settings() != replayed[name].without_sending_settings():
            replayed_format = _format_overrides(agent.model, replayed[name])
            spec_format = _format_overrides(agent.model, current_format)
            yield (
                f"that run called {name} with {replayed_format}, but this spec has {spec_format}; add "
                f"{replayed_format} to the command"
            )


def _format_overrides(group: str, settings: ChatSettings) -> str:
    """Return the overrides that select this format for a model group."""
    chat_format_override = f"models.{group}.chat_format={settings.chat_format}"
    if settings.chat_format != "alternating":
        return chat_format_override
    role = "user" if settings.has_instructions_in_first_turn else "system"
    return f"{chat_format_override} models.{group}.system_role={role}"


def _format_combinations(spec: Spec) -> Iterator[dict[str, ChatFormat]]:
    """Yield combinations of formats for the model groups whose format the server's address decides."""
    groups = sorted(spec.groups_with_default_format)
    combinations = product(get_args(ChatFormat), repeat=len(groups))
    return (dict(zip(groups, formats, strict=True)) for formats in islice(combinations, MAX_COMBINATIONS))


def _with_formats(spec: Spec, formats: Mapping[str, ChatSettings]) -> Spec:
    models = dict(spec.experiment.models)
    for group, settings in formats.items():
        role = settings.system_role if group in spec.groups_with_default_role else models[group].system_role
        models[group] = replace(models[group], chat_format=settings.chat_format, system_role=role)
    return replace(spec, experiment=replace(spec.experiment, models=models))


def _has_started(plan: RunPlan, results: Results, run_id: str | None) -> bool:
    """Return whether a run of this plan has started, with the id `run_id` or, if that is None, with the plan's id."""
    folder = results.run(run_id or plan.run_id)
    if plan.spec.shard is not None:
        parts = (part for _, part in folder.started_parts() if part.damage() is None)
        return any(part.manifest().identity == plan.identity for part in parts)
    if not folder.manifest_path.is_file() or folder.damage() is not None:
        # The manifest can be rebuilt, and the hash in the folder's name identifies the run.
        return run_id is None and (folder.journal.is_file() or folder.stage_log.is_file())
    return folder.manifest().identity == plan.identity


def _describe_difference(spec: Spec, original: Spec, formats: Mapping[str, ChatFormat]) -> tuple[str, str]:
    """Describe the original settings, then the current ones and how to start a run with the current ones."""
    models = spec.experiment.models
    differing = [group for group, format_ in formats.items() if models[group].chat_format != format_]
    original_settings = [f"models.{group}.chat_format={formats[group]}" for group in differing]
    current, advice = [], ""
    if differing:
        current.append(" ".join(f"models.{group}.chat_format={models[group].chat_format}" for group in differing))
        current[-1] += " (chosen by its base_url)"
        advice = "set this value or add --again"
    if spec.protocol is not original.protocol:
        original_settings.append(_turn_order_override(original))
        current.append("the turns in the order of its protocol file")
        advice = "add --again"
    return comma_join(original_settings), f"{' and '.join(current)}; to start one, {advice}"
