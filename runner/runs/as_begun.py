"""A run goes on in the chat format that it began in, also where its spec leaves the format to the address.

What 0.1.0 began is in `openai` format whatever its address; and an address may change while a run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import TypeVar, get_args

from runner.prompts.chat_format import ChatFormat
from runner.results.results import Results
from runner.rollouts.run_plan import RunPlan
from runner.spec.chat_formats import AskedIn, formats_of_run
from runner.spec.load import Spec
from runner.text import comma_join

P = TypeVar("P", bound=RunPlan)

MAX_TRIED = 16
"""In so many ways to ask the groups is a run looked for; the first is that of 0.1.0."""


def as_begun(
    plan: P,
    results: Results,
    plan_of: Callable[[Spec], P],
    *,
    run_id: str | None = None,
    again: bool = False,
    others: Collection[str] = (),
) -> tuple[P, str | None]:
    """The plan whose run has begun, and a note on it where its chat formats are not those of the address.

    A format that the spec says stays, and so does what is begun anew. `others` are the ids of other plans' runs.
    """
    spec = plan.spec
    if again or not spec.by_address or _has_begun(plan, results, run_id):
        return plan, None
    for formats in _ways(spec):
        other = plan_of(_with_formats(spec, {group: AskedIn(format_) for group, format_ in formats.items()}))
        if other.run_id not in others and _has_begun(other, results, run_id):
            return other, _note(run_id or other.run_id, spec, formats)
    return plan, None


def as_replayed(plan: P, run: Path, plan_of: Callable[[Spec], P]) -> P:
    """The plan that asks what a run was asked, where its spec leaves the chat format to the address."""
    spec, played = plan.spec, formats_of_run(run)
    asked = {}
    for group in sorted(spec.by_address):
        agents = spec.experiment.agents.items()
        ways = {AskedIn(played[name].chat_format) for name, agent in agents if agent.model == group and name in played}
        if len(ways) == 1:
            asked[group] = ways.pop()
    return plan_of(_with_formats(spec, asked)) if asked else plan


def _ways(spec: Spec) -> Iterator[dict[str, ChatFormat]]:
    """Every choice of formats that the address has made otherwise."""
    groups = sorted(spec.by_address)
    ways = product(get_args(ChatFormat), repeat=len(groups))
    return (dict(zip(groups, way, strict=True)) for way in islice(ways, MAX_TRIED))


def _with_formats(spec: Spec, asked: Mapping[str, AskedIn]) -> Spec:
    models = dict(spec.experiment.models)
    for group, way in asked.items():
        models[group] = replace(models[group], chat_format=way.chat_format)
    return replace(spec, experiment=replace(spec.experiment, models=models))


def _has_begun(plan: RunPlan, results: Results, run_id: str | None) -> bool:
    folder = results.run(run_id or plan.run_id)
    if not folder.manifest_path.is_file() or folder.damage() is not None:
        # Its manifest may be made again; the hash in its name tells whose it is.
        return run_id is None and (folder.journal.is_file() or folder.stage_log.is_file())
    return folder.manifest().identity == plan.identity


def _note(run_id: str, spec: Spec, formats: Mapping[str, ChatFormat]) -> str:
    models = spec.experiment.models
    differ = [group for group, format_ in formats.items() if models[group].chat_format != format_]
    began = comma_join(f"models.{group}.chat_format={formats[group]}" for group in differ)
    new = " ".join(f"models.{group}.chat_format={models[group].chat_format}" for group in differ)
    return (
        f"run {run_id} began with {began} and goes on with it; a new run of this spec has {new}, by its base_url: say "
        "that, or --again, to begin one"
    )
