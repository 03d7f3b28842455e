"""An analyzer: a question about parts of a game, the answers to it, and how a model or a function answers it.

Analyzers are YAML files. `sha256` covers everything that the answers of a model depend on except the model. People
answer the same question without the prompt, so `question_sha256`, which identifies their labels, covers less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from runner.base import package_data
from runner.base.errors import SpecError, UsageError
from runner.base.hashing import tagged_hash
from runner.base.plugins import Plugin, PluginKind
from runner.base.problems import Place, Problem
from runner.base.storage.fetched_markers import fetched_folder
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import LARGEST_NUMBER, build_schema, from_plain, option, to_plain
from runner.documents.fetched_files import path_refusal
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules, LayeredData
from runner.documents.schema_check import check_schema
from runner.game.prompts.sandbox import scan
from runner.models.settings import ModelSettings
from runner.spec.experiment import NAME_RULE

UnitKind = Literal["game", "agent", "channel", "message", "pair"]
Condition = Literal["prover", "verifier", "spoke", "replied", "has_stance", "decided"]

YES_NO = ("yes", "no")
MAX_ANSWERS = 26
TEXT_VERSION = 1
"""The version of the code that renders units and reads answers. A change makes all instruments other instruments."""

QUESTION_VARIABLES: Mapping[str, str] = {
    "agent": "the agent's name in the protocol, such as `prover0`",
    "agent_name": "the agent's name in the conversation, such as `Expert_1`",
    "role": "`prover` or `verifier`",
    "stance": "`accept`, `reject` or the letter of the answer that the agent argues for; empty without one",
    "position": "the stance as a phrase",
    "channel": "the channel of the unit",
    "round": "the round of the message",
}
"""The variables of an analyzer's question. They are empty if the unit has no such property."""

TEMPLATE_VARIABLES: Mapping[str, str] = {
    **QUESTION_VARIABLES,
    "question": "the question",
    "subject": "what the question is about, as a phrase",
    "material": "the columns of the datapoint that all agents of the game saw, each in a tag",
    "context": "the messages before, in tags; for messages and pairs",
    "heading": "a heading of the messages",
    "transcript": "the messages of the unit, in tags",
    "code": "the code in all tags, which differs between units",
}
"""The variables of an analyzer's template."""

_AGENT_CONDITIONS = frozenset(("prover", "verifier", "replied", "has_stance"))
"""Conditions about an agent, which a game as a whole does not have."""


@dataclass(frozen=True, kw_only=True)
class AnalyzerFile:
    """An analyzer: a question about parts of a game, and the answers to it."""

    name: str = option("The analyzer's name.", example="role_conformance", **NAME_RULE)
    description: str = option(
        "What the analyzer measures, for readers.", default="", example="Does a prover keep to its role?"
    )
    unit: UnitKind = option(
        "The parts of a game that the question is about. `game`: the whole game. `agent`: what an agent wrote in all "
        "its channels. `channel`: what an agent wrote in one channel. `message`: one message. `pair`: a message and "
        "the last message of another agent before it in the same channel.",
        example="channel",
    )
    question: str = option(
        "The question, as the model and people read it. It is a Jinja2 template, too.",
        example="Does {{ agent_name }} argue for {{ stance }} in all of its messages?",
    )
    answers: tuple[str, ...] = option(
        "The possible answers.",
        default=YES_NO,
        example=["none", "some", "all"],
        items={"type": "string", "minLength": 1, "maxLength": 200},
        minItems=2,
        maxItems=MAX_ANSWERS,
        uniqueItems=True,
    )
    values: Mapping[str, float] | None = option(
        "The number that each answer stands for, which makes the answers a scale. `yes` and `no` are 1 and 0. null: "
        "other answers are labels without an order.",
        default=None,
        example={"none": 0, "some": 1, "all": 2},
        additionalProperties={"type": "number"},
    )
    applies: tuple[Condition, ...] = option(
        "Conditions that code checks. `prover`, `verifier`: only agents with this role have units. A unit that does "
        "not meet all other conditions is not applicable, and is not asked about. `spoke`: the agent wrote something. "
        "`replied`: another agent wrote before it. `has_stance`: the agent argues for a verdict or an answer. "
        "`decided`: the game has a verdict.",
        default=(),
        example=["prover", "spoke"],
    )
    template: str | None = option(
        "The Jinja2 template of the model's instructions; null: a general template with the question.",
        default=None,
        example="You read a debate. {{ question }}\n{{ transcript }}",
    )
    code: str | None = option(
        "A function that answers the question for some or all units: the name of a built-in function, or "
        "`FILE.py:FUNCTION` next to this file. If it returns None, the model is asked.",
        default=None,
        example="exact_quotation",
    )
    model: ModelSettings | None = option(
        "The model that answers. null: the model that the command names, if the function leaves units open.",
        default=None,
        example={"model": "gpt-6-luna"},
    )
    attempts: int = option(
        "Maximum number of times the model is asked, including the first, until it gives one of the answers. Without "
        "one, the unit has no answer.",
        default=3,
        minimum=1,
        maximum=100,
    )
    votes: int = option("How many times the model is asked; the majority counts.", default=1, minimum=1, maximum=1000)


@dataclass(frozen=True)
class Analyzer:
    """A loaded analyzer."""

    file: AnalyzerFile
    path: Path
    template: str = field(default="", repr=False)
    """The template of the model's instructions: the file's own, or the general one."""
    code_source: str | None = field(default=None, repr=False)
    """The source of the function's file, if it is next to the analyzer's file."""
    plugin: Plugin | None = None
    """The plugin that provides it, if any."""

    @property
    def name(self) -> str:
        return self.file.name

    @cached_property
    def sha256(self) -> str:
        """The hash of everything in the file that answers depend on, with the function's source or the plugin."""
        content = {key: value for key, value in to_plain(self.file).items() if key not in ("description", "model")}
        plugin = [] if self.plugin is None else [self.plugin.pin]
        return tagged_hash("analyzer", [TEXT_VERSION, content, self.template, self.code_source, *plugin])

    @cached_property
    def question_sha256(self) -> str:
        """The hash of what people answer: the question, the answers, and the units that it applies to."""
        file = self.file
        return tagged_hash(
            "analysis question", [file.unit, file.question, list(file.answers), self.values, list(file.applies)]
        )

    @property
    def code_path(self) -> Path | None:
        """The file of the function; None for a built-in function."""
        file_name, colon, _ = (self.file.code or "").partition(":")
        return self.path.parent / file_name if colon else None

    @property
    def fetched(self) -> Path | None:
        """The folder of the downloaded release that contains the analyzer, if any."""
        return fetched_folder([self.path.absolute().parent])

    @property
    def values(self) -> dict[str, float] | None:
        """The number of each answer; None if the answers are labels without an order."""
        if self.file.values is not None:
            return dict(self.file.values)
        return {"yes": 1.0, "no": 0.0} if set(self.file.answers) == set(YES_NO) else None

    @property
    def answer_values(self) -> tuple[float, ...] | None:
        """The `values` in the order of the answers."""
        values = self.values
        return None if values is None else tuple(values[answer] for answer in self.file.answers)

    @property
    def is_scale(self) -> bool:
        """Whether answers have more than two numbers, so that their mean is no rate."""
        return self.values is not None and set(self.values.values()) != {0.0, 1.0}

    def value_of(self, answer: str | None) -> float | None:
        """Return the number of an answer; None without an answer, or if the answers are labels."""
        return None if answer is None or self.values is None else self.values[answer]


def analyzer_schema() -> dict[str, Any]:
    """Return the JSON Schema of an analyzer file."""
    return build_schema(AnalyzerFile, "nip-run analyzer")


def builtin_analyzers() -> list[str]:
    """Return the names of the analyzers that ship with the package."""
    return sorted(path.stem for path in package_data.ANALYZERS.glob("*.yaml"))


ANALYZER_PLUGINS = PluginKind(
    "nip_run.analyzers",
    "analyzer",
    "the path of a YAML file that exists",
    builtin_analyzers,
    lambda value: isinstance(value, (str, Path)) and Path(value).is_file(),
)


def is_analyzer(name: str) -> bool:
    """Return whether a name is the path of a YAML file, or the name of a built-in analyzer or a plugin.

    Raises:
        UsageError: an installed plugin has the name of a built-in analyzer.
    """
    return name.endswith((".yaml", ".yml")) or name in builtin_analyzers() or ANALYZER_PLUGINS.find(name) is not None


def load_analyzer(name: str) -> Analyzer:
    """Load an analyzer by its built-in name, the path of its file, or the name of a plugin.

    Raises:
        SpecError: there is no such analyzer, or its file has errors; lists all of them.
        UsageError: the plugin cannot be used.
    """
    path = _find_file(name, Path())
    if path is None and not name.endswith((".yaml", ".yml")) and (plugin := ANALYZER_PLUGINS.find(name)) is not None:
        analyzer = load_analyzer(str(Path(plugin.load()).absolute()))
        if analyzer.name != name:
            raise UsageError(f"{plugin}: {analyzer.path} has the name {analyzer.name!r}; both names must be equal")
        return replace(analyzer, plugin=plugin)
    if path is None:
        names = builtin_analyzers()
        hint = did_you_mean(name, names) or f"; built-in analyzers are {comma_join(names)}"
        raise SpecError([Problem(Place(name), "", f"no built-in analyzer or file {name!r}{hint}")])
    schema = analyzer_schema()
    layered = load_layers(path, str(path), (), _find_base, KeyRules(schema["properties"]))
    problems = layered.problems or [*layered.wrong_nulls, *check_schema(layered, schema)]
    if problems:
        raise SpecError(problems)
    file = from_plain(AnalyzerFile, layered.data)
    template = file.template or read_bounded(_GENERAL, MAX_CODE).decode()
    analyzer = Analyzer(file, path, template)
    code_source = None
    if problems := list(_file_problems(analyzer, layered)):
        raise SpecError(problems)
    if (code_path := analyzer.code_path) is not None:
        try:
            code_source = read_bounded(code_path, MAX_CODE).decode()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read {code_path}: {getattr(error, 'strerror', error)}; correct the name of the file"
            raise SpecError([Problem(layered.place(("code",)), "code", message)]) from error
    return replace(analyzer, code_source=code_source)


def _file_problems(analyzer: Analyzer, layered: LayeredData) -> Iterator[Problem]:
    """Yield the problems of an analyzer's keys that its schema does not find."""
    file = analyzer.file

    def problem(key: str, message: str) -> Problem:
        return Problem(layered.place((key,)), key, message)

    if file.values is not None and set(file.values) != set(file.answers):
        yield problem("values", f"needs a number for each answer, and for nothing else: {comma_join(file.answers)}")
    elif file.values is not None and len(set(file.values.values())) < 2:
        yield problem("values", "all answers have the same number; give them at least two different numbers")
    elif file.values is not None and max(map(abs, file.values.values())) > LARGEST_NUMBER:
        yield problem("values", f"numbers must be between -{LARGEST_NUMBER:g} and {LARGEST_NUMBER:g}")
    for condition in file.applies:
        if file.unit == "game" and condition in _AGENT_CONDITIONS:
            yield problem("applies", f"{condition} is about an agent, but the unit is a game; remove it")
    if {"prover", "verifier"} <= set(file.applies):
        yield problem("applies", "no agent is both prover and verifier; remove one of them")
    for key, source, variables in (
        ("question", file.question, QUESTION_VARIABLES), ("template", file.template or "", TEMPLATE_VARIABLES),
    ):  # fmt: skip
        scanned = scan(source)
        yield from (problem(key, message) for _, message in scanned.refused)
        for name in () if scanned.refused else sorted(scanned.variables.keys() - variables.keys()):
            hint = did_you_mean(name, variables) or f"; use {comma_join(variables)}"
            yield problem(key, f"no variable {name!r}{hint}")
    if file.template is not None and "question" not in scan(file.template).variables:
        yield problem("template", "the model would not read the question; add {{ question }}")


MAX_CODE = 1 << 20
"""Maximum size in bytes of the file of a function, and of the general template."""
_GENERAL = package_data.ANALYZERS / "general.jinja"


def _find_base(name: str, folder: Path) -> Path | None:
    """Return the path of the analyzer that an analyzer extends: a file next to it, or a built-in one."""
    path = _find_file(name, folder)
    return None if path is None or path_refusal(folder, path) else path


def _find_file(name: str, folder: Path) -> Path | None:
    if name.endswith((".yaml", ".yml")):
        path = folder / name
        return path if package_data.is_file(path) else None
    path = package_data.ANALYZERS / f"{name}.yaml"
    return path if package_data.is_file(path) else None
