"""Plan the analysis of a run: find its units, answer by code what code can answer, and write a spec for the others.

The spec is an ordinary benchmark: the protocol has a verifier alone, which chooses one of the analyzer's answers for
each unit. The labels are empty. So a model's analysis has the journal, budget, retries and pages of every run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from tempfile import TemporaryDirectory
from typing import Any, Literal

from runner.analysis.analyzer import Analyzer
from runner.analysis.functions import CodeAnswer, answer_by_code, load_function
from runner.analysis.instructions import render_instructions
from runner.analysis.units import Unit, list_units, why_not_applicable
from runner.base.errors import RunError, SpecError, UsageError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.problems import Place, Problem
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import counted, did_you_mean
from runner.documents.dataclass_schema import changed_keys, to_plain
from runner.documents.yaml_writer import dump
from runner.models.api_keys import KeyUse
from runner.models.request_body import schema_parameters
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.table_columns import ANALYSES
from runner.rollouts.plan import Plan
from runner.runs.finished.reconstruction import played_plan
from runner.spec.components import FindComponent, reject_references
from runner.spec.loader import Overrides, Spec, load_specs
from runner.spec.model_sources import FindRun, reject_run_ids

ANALYST = "analyst"
"""The model group of the model that answers."""
SPEC, UNITS = "spec.yaml", "units.jsonl"

Structured = Literal["auto", "yes", "no"]
"""Whether the server must answer in JSON of a schema. `auto`: yes at a provider's own server without `extra_body`."""

_PROTOCOL: Mapping[str, Any] = {
    "name": "analysis",
    "description": "A model answers a question about a transcript.",
    "answers": "listed",
    "agents": {"verifier": {"role": "verifier", "human_name": "Analyst"}},
    "channels": {"main": {"members": ["verifier"]}},
    "cycle": [{"speak": {"verifier": ["main"]}, "must_decide": True}],
    "parameters": {"max_message_rounds": 1},
}
_TEMPLATE = """\
{{ instructions }}

The possible answers:
{% for letter, text in answers %}
{{ letter }}) {{ text }}
{%- endfor %}

"""
_TEXT_END = """\
First give your reason in one or two sentences. Then write this line, with the letter of one answer, and write it only
once:

{{ decision_line }}
"""
_JSON_END = """\
Write a JSON object with the keys "reason" (your reason in one or two sentences) and "decision" (the letter of one
answer).
"""


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """How a model answers."""

    model: str | None = None
    """The model's name, if it is not the analyzer's."""
    overrides: Overrides = ()
    """Overrides of the analysis run's spec, such as `models.analyst.temperature=0` and `budget.usd=1`."""
    structured: Structured = "auto"
    allowed: Collection[KeyUse] = ()
    """The programs that the user allows downloaded analyzers to run."""
    find_run: FindRun = reject_run_ids
    find_component: FindComponent = reject_references

    @property
    def names_model(self) -> bool:
        return self.model is not None or any(key.startswith("models") for _, key in self._keys())

    def check_groups(self) -> None:
        """Check that no override is about a model group that an analysis does not have.

        Raises:
            SpecError: an override is.
        """
        problems = []
        for override, key in self._keys():
            names = key.split(".")
            if names[0] == "models" and len(names) > 1 and names[1] != ANALYST:
                hint = did_you_mean(names[1], [ANALYST]) or f"; the model that answers is {ANALYST!r}"
                message = f"an analysis has no model group {names[1]!r}{hint}"
                problems.append(Problem(Place(f"override {override!r}"), ".".join(names[:2]), message))
        if problems:
            raise SpecError(problems)

    def _keys(self) -> list[tuple[str, str]]:
        """Return the overrides, each with its key."""
        overrides = [self.overrides] if isinstance(self.overrides, str) else map(str, self.overrides)
        return [(override, override.lstrip("+~").partition("=")[0]) for override in overrides]


@dataclass
class DecidedUnits:
    """The units of a run, and what code decided about each."""

    units: list[Unit] = field(default_factory=list)
    answers: dict[str, CodeAnswer] = field(default_factory=dict)
    """The answers of functions by unit id. Units without one are open, or not applicable."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the question does not apply, by unit id."""
    lost_games: int = 0
    """The number of games without units, because their calls failed."""

    @property
    def open_units(self) -> list[Unit]:
        """The units about which a model is asked."""
        return [unit for unit in self.units if unit.id not in self.answers and unit.id not in self.reasons]


@dataclass(frozen=True)
class PlannedAnalysis:
    """The plan to analyze one run with one analyzer."""

    folder: RunFolder
    analyzer: Analyzer
    decided: DecidedUnits
    instrument: str
    plan: Plan | None
    """The run that asks the model; None if code decided about every unit."""
    model: str
    """The name of the model; `code` if functions answer all units to which the question applies."""

    @property
    def notes(self) -> list[str]:
        """The notes to show before the analysis."""
        run_id, lost, notes = self.folder.run_id, self.decided.lost_games, []
        if lost:
            notes.append(f"{counted(lost, 'game')} of {run_id} left out, because their calls failed")
        if (status := self.folder.manifest().status) not in PLAYED:
            notes.append(f"{run_id} is {status}, so only the games that it has finished are analyzed")
        return notes


def decide_units(folder: RunFolder, analyzer: Analyzer, allowed: Collection[KeyUse] = ()) -> DecidedUnits:
    """List the units of a run, and let code decide about them as far as it can.

    Raises:
        UsageError: the run has no games of its own or is an analysis, or the analyzer's function is unknown or not
            allowed.
        RunError: the records of the run cannot be read, or the function fails.
    """
    analyzed_run = folder.manifest().analysis_of
    if analyzed_run is not None:
        raise UsageError(f"{folder.run_id} is itself an analysis; name the run that it analyzes: {analyzed_run}")
    function, decided = load_function(analyzer, allowed), DecidedUnits()
    plan = played_plan(folder, trusts_manifest=True)
    lost: list[str] = []
    for unit in list_units(folder, analyzer, plan, lambda rollout: lost.append(rollout.job.rollout_id)):
        decided.units.append(unit)
        reason = why_not_applicable(unit, analyzer)
        if reason is not None:
            decided.reasons[unit.id] = reason
            continue
        answer = None if function is None else answer_by_code(analyzer, function, unit)
        if answer is not None and answer.answer is None:
            decided.reasons[unit.id] = answer.reason or "the function finds the question not applicable"
        elif answer is not None:
            decided.answers[unit.id] = answer
    decided.lost_games = len(lost)
    if not decided.units:
        raise UsageError(
            f"{folder.run_id} has no {analyzer.file.unit} for {analyzer.name} to ask about; name another run"
        )
    return decided


def plan_analysis(folder: RunFolder, analyzer: Analyzer, options: AnalysisOptions) -> PlannedAnalysis:
    """Plan the analysis of a run, and write the spec of the run that asks the model.

    Raises:
        UsageError: a model is needed, but none is named; or as `decide_units`.
        SpecError: the spec has errors, such as overrides with unknown keys.
        RunError: files cannot be read or written; or as `decide_units`.
    """
    options.check_groups()
    decided = decide_units(folder, analyzer, options.allowed)
    open_units = decided.open_units
    if analyzer.file.code is not None and not open_units:
        return PlannedAnalysis(folder, analyzer, decided, analyzer.sha256[:10], None, "code")
    if analyzer.file.model is None and not options.names_model:
        what = f"{analyzer.name} asks a model about {counted(len(open_units), 'unit')}"
        raise UsageError(f"{what} of {folder.run_id}; name the model with --model MODEL")
    writer = _SpecWriter(folder, analyzer, options)
    spec = writer.trial_spec()
    instrument = tagged_hash("instrument", [analyzer.sha256, Plan(spec).game_hash])[:10]
    model = spec.experiment.models[ANALYST].name
    plan = Plan(writer.write(f"{analyzer.name}-{instrument}", open_units)) if open_units else None
    return PlannedAnalysis(folder, analyzer, decided, instrument, plan, model)


class _SpecWriter:
    """Writes the spec of an analysis with its files."""

    def __init__(self, folder: RunFolder, analyzer: Analyzer, options: AnalysisOptions) -> None:
        self._folder, self._analyzer, self._options = folder, analyzer, options
        self._extra_body: Mapping[str, Any] | None = None

    def trial_spec(self) -> Spec:
        """Return the spec for one empty unit, to hash the settings; this also decides whether answers are JSON."""
        example = [self._row("unit", "unit", "")]
        try:
            with TemporaryDirectory(prefix=".plan-", dir=self._folder.additions.make(ANALYSES)) as temporary:
                spec = self._write_and_load(Path(temporary), example)
                settings = spec.experiment.models[ANALYST]
                if self._forces_schema(settings):
                    parameters = schema_parameters(settings, self._schema())
                    self._extra_body = {**(settings.extra_body or {}), **parameters}
                    spec = self._write_and_load(Path(temporary), example)
                return spec
        except OSError as error:
            raise RunError(f"cannot write to {self._folder.additions.path / ANALYSES}: {error.strerror}") from error

    def write(self, name: str, units: Sequence[Unit]) -> Spec:
        """Write the spec about these units to a folder with this name in the analyzed run's folder, and load it."""
        rows = [self._row(unit.id, unit.group, render_instructions(self._analyzer, unit)) for unit in units]
        return self._write_and_load(self._folder.additions.make(ANALYSES, name), rows)

    def _forces_schema(self, settings: ModelSettings) -> bool:
        if self._options.structured == "auto":
            return settings.sends_requests and settings.addresses == (None,) and not settings.extra_body
        return self._options.structured == "yes"

    def _schema(self) -> dict[str, object]:
        letters = list(ascii_uppercase[: len(self._analyzer.file.answers)])
        properties = {"reason": {"type": "string"}, "decision": {"type": "string", "enum": letters}}
        return {
            "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
        }  # fmt: skip

    def _row(self, unit_id: str, group: str, instructions: str) -> dict[str, object]:
        answers = list(self._analyzer.file.answers)
        return {"id": unit_id, "label": "", "answers": answers, "group": group, "instructions": instructions}

    def _write_and_load(self, target: Path, rows: Sequence[Mapping[str, object]]) -> Spec:
        RunFolder(target).make("prompts")
        atomic_write(target / UNITS, (json.dumps(row).encode() + b"\n" for row in rows))
        atomic_write(target / "protocol.yaml", dump(_PROTOCOL))
        end = _TEXT_END if self._extra_body is None else _JSON_END
        atomic_write(target / "prompts" / "verifier.jinja", _TEMPLATE + end)
        atomic_write(target / SPEC, dump(self._content()))
        options = self._options
        try:
            specs = load_specs(target / SPEC, options.overrides, options.find_run, options.find_component)
        except SpecError as error:
            raise SpecError([self._with_lasting_place(problem, target) for problem in error.problems]) from error
        if len(specs) > 1:
            raise UsageError("an analysis has no sweep; remove it, and repeat the command for each model or setting")
        if specs[0].experiment.rollouts.per_datapoint > 1:
            raise UsageError(
                "an analysis has one answer about each unit; remove rollouts.per_datapoint, or set votes to ask the "
                "model several times"
            )
        return specs[0]

    def _with_lasting_place(self, problem: Problem, target: Path) -> Problem:
        """Return the problem without a place in the written files, which the user neither wrote nor can change."""
        if not Path(problem.place.file).is_relative_to(target):
            return problem
        return replace(problem, place=Place(f"{self._analyzer.name} about {self._folder.run_id}"))

    def _content(self) -> dict[str, object]:
        """Return the content of the spec. Its paths are relative to the spec."""
        file, options, manifest = self._analyzer.file, self._options, self._folder.manifest()
        model: dict[str, Any] = {}
        if file.model is not None:
            plain = to_plain(file.model)
            model = {name: plain[name] for name in changed_keys(file.model)}
        if options.model is not None:
            model["model"] = options.model
        if self._extra_body is not None:
            model["extra_body"] = dict(self._extra_body)
        return {
            "name": f"analysis-{file.name}"[:80],
            "description": f"Answers the question of the analyzer {file.name} about {manifest.run_id}.",
            "dataset": {"path": UNITS, "answers": "answers", "group_by": "group"},
            "protocol": {"use": "protocol.yaml", "shuffle_answers": self._analyzer.values is None},
            "prompts": "prompts",
            "models": {ANALYST: model},
            "agents": {"verifier": {"model": ANALYST}},
            "votes": file.votes,
            "retry": {"invalid_response": {"attempts": file.attempts}},
            "analysis": {
                "run_id": manifest.run_id,
                "journal": manifest.journal or manifest.run_id,
                "journal_sha256": file_hash(self._folder.journal),
                "analyzer": file.name,
                "analyzer_sha256": self._analyzer.sha256,
                "question_sha256": self._analyzer.question_sha256,
                "answers": list(file.answers),
            },
        }
