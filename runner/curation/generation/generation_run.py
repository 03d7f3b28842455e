"""The run that asks a model for programs: an ordinary benchmark without labels, one datapoint for each task.

So the calls have the journal, budget, retries, replay and pages of every run. The protocol has one agent, which writes
one message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, SpecError, TemplateFailedError, os_errors_as
from runner.base.problems import Place, Problem
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import make_folders
from runner.curation.generation.coding_problems import CodingProblem
from runner.curation.generation.recipe import Recipe, Task
from runner.curation.generation.screening import GeneratedAnswer, VerifiedProblem
from runner.documents.dataclass_schema import changed_keys, to_plain
from runner.documents.yaml_writer import dump
from runner.game.prompts.sandbox import SandboxedTemplate
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome
from runner.runs.execution import unusable_answers
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.spec.components import FindComponent, reject_references
from runner.spec.loader import load_spec

GENERATION, AUTHOR = unusable_answers.GENERATION
"""The folder of the run's spec in the folder of the dataset, and the model group of the model that writes programs."""

_PROTOCOL: Mapping[str, Any] = {
    "name": GENERATION,
    "description": "A model writes a program.",
    "agents": {AUTHOR: {"role": "verifier", "human_name": "Author"}},
    "channels": {"main": {"members": [AUTHOR]}},
    "cycle": [{"speak": {AUTHOR: ["main"]}}],
    "parameters": {"max_message_rounds": 1},
}


def plan_generation(
    recipe: Recipe,
    problems: Sequence[VerifiedProblem],
    folder: Path,
    find_component: FindComponent = reject_references,
) -> Plan:
    """Write the spec of the run to a folder, and return its plan.

    Raises:
        SpecError: the recipe's keys about the model are wrong together, or a template fails.
        RunError: the files cannot be written.
    """
    rows = [
        {"id": f"{item.problem.id}/{task}", "label": "", "problem": item.problem.id, "task": task,
         "instructions": _render(recipe, item.original, item.problem, task)}
        for item in problems for task in recipe.file.tasks
    ]  # fmt: skip
    with os_errors_as(RunError, f"cannot write to {folder}"):
        make_folders(folder / "prompts")
        atomic_write(folder / "requests.jsonl", (json.dumps(row).encode() + b"\n" for row in rows))
        atomic_write(folder / "protocol.yaml", dump(dict(_PROTOCOL)))
        atomic_write(folder / "prompts" / f"{AUTHOR}.jinja", "{{ instructions }}\n")
        atomic_write(folder / "spec.yaml", dump(_spec_content(recipe)))
    try:
        return Plan(load_spec(folder / "spec.yaml", find_component=find_component))
    except SpecError as error:
        raise SpecError([_in_recipe(problem, recipe) for problem in error.problems]) from error


def _in_recipe(problem: Problem, recipe: Recipe) -> Problem:
    """Return a problem of the written spec as one of the recipe, whose keys have other names."""
    key, message = (text.replace(f"models.{AUTHOR}", "model") for text in (problem.key, problem.message))
    return replace(problem, place=Place(str(recipe.path)), key=key, message=message)


def read_answers(run: RunFolder) -> dict[tuple[str, Task], list[GeneratedAnswer]]:
    """Return the answers of a finished run about each problem and task, in order.

    Raises:
        RunError: the records of the run cannot be read.
    """
    answers: dict[tuple[str, Task], list[GeneratedAnswer]] = {}
    with closing(Reconstructor(run, played_plan(run, trusts_manifest=True))) as reconstructor:
        for rollout in reconstructor.rollouts():
            columns = rollout.job.datapoint.columns
            raw = next((text for played in rollout.rounds for text in played.raw.values()), None)
            is_lost = rollout.outcome in (Outcome.TRANSPORT_FAILED, Outcome.REFUSED, Outcome.CONTEXT_EXCEEDED)
            price = reconstructor.details(rollout).prices[AUTHOR]
            cost = None if price is None else sum(price.cost_of(call.usage) for call in rollout.calls)
            key: tuple[str, Task] = (str(columns["problem"]), columns["task"])
            answers.setdefault(key, []).append(GeneratedAnswer(None if is_lost else raw, cost))
    return answers


def _render(recipe: Recipe, original: str, problem: CodingProblem, task: Task) -> str:
    variables = {
        "question": problem.question,
        "solution": original.strip("\n"),
        "inputs": problem.shown_inputs(recipe.file.shown_inputs),
    }
    try:
        return SandboxedTemplate(f"{task}.jinja", recipe.templates[task]).render(variables).strip("\n")
    except TemplateFailedError as error:
        raise SpecError(
            [Problem(Place(str(recipe.path)), "prompts", f"{task}.jinja, {problem.id}: {error}")]
        ) from error


def _spec_content(recipe: Recipe) -> dict[str, object]:
    file = recipe.file
    model = to_plain(file.model)
    return {
        "name": f"generation-{file.name}"[:80],
        "description": f"Programs for the dataset {file.name}.",
        "seed": file.seed,
        "dataset": {"path": "requests.jsonl", "group_by": "problem"},
        "protocol": {"use": "protocol.yaml"},
        "prompts": "prompts",
        "models": {AUTHOR: {name: model[name] for name in changed_keys(file.model)}},
        "agents": {AUTHOR: {"model": AUTHOR}},
        "rollouts": {"per_datapoint": file.versions, "concurrency": file.concurrency},
        "retry": to_plain(file.retry),
        "budget": to_plain(file.budget),
    }
