"""Load a folder of Jinja2 templates as a prompt set, and render system messages from it."""

from __future__ import annotations

import ast
import errno
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from runner.base.errors import SpecError
from runner.base.problems import Place, Problem
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, did_you_mean, did_you_mean_file
from runner.game.prompts.sandbox import SandboxedTemplate, scan, variables_of
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.answer_verdicts import ANSWER_MARKER
from runner.game.protocols.ballot import ANSWERS
from runner.game.protocols.checkers import CheckerSettings
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schema import FORBIDDEN
from runner.game.protocols.statements import GameSubject

SUFFIX = ".jinja"
LAST_ROUND = ".last_round"
FUNCTION = ".function"
"""Suffix of the name of a Python file that selects candidates."""
CHECKER = ".checker"
"""Suffix of the name of a Python file that labels answers. Its file is `MODULE.py`, as the spec names it."""
CONFIDENCE = ".confidence"
"""Suffix of the template that asks a verifier for its confidence. Its text is appended to the instructions."""
MAX_BYTES = 64 << 10
MAX_CACHED = 3 << 20
"""Maximum number of characters of all rendered texts in the cache."""
REFUSED = "a template that cannot be used"

VARIABLES: Mapping[str, str] = {
    "agent": "the agent's name in the protocol, such as `prover0`",
    "agent_name": "the agent's name in the messages of the game, such as `Expert_1`",
    "stance": "`accept` or `reject`: the verdict that the agent argues for (for a verifier: that provers argue for)",
    "max_response_words": "the word limit of one answer",
    "max_message_rounds": "the number of rounds of the game",
    "max_verifier_questions": "the number of rounds in which the verifier speaks in the whole game",
    "questions_left": "the number of questions that the verifier can still ask before it must decide",
    "headers": "a list of the texts that start the part for each channel, if the agent speaks in several",
    "accept": "the text that accepts, `Decision: accept` unless the spec's `decision_format` sets another",
    "reject": "the text that rejects",
    "confidence_marker": "the text before a stated confidence, `Confidence:` unless the spec's `decision_format` sets "
    "another; empty if `verdict.confidence` does not request it",
    "speech_candidates": "in a template of a selector: the list of candidates for the agent's answer; else empty",
    "scratchpad_marker": "the text that ends the agent's private notes; empty if the protocol gives it none",
}
"""The variables of templates in addition to the datapoint's columns."""

ANSWER_VARIABLES: Mapping[str, str] = {
    "answers": "the answers in the order of the game, for a loop: `{% for letter, text in answers %}`",
    "answer": "the text of the answer that the agent argues for; empty for a verifier, and for a prover that chooses",
    "answer_letter": "the letter of this answer, or empty",
    "answer_marker": "the text before the letter that a prover with the stance `open` must write: `Answer:`",
    "decision_line": "the line that a verdict must have, such as `Decision: <letter>`; it depends on `verdict.form`",
    "verdict_form": "`answer`, `distribution` or `scores`: what a verdict states",
}
"""Further variables in protocols with `answers: listed`. `stance` is then the letter of the answer that the agent
argues for, or `open`. There are no variables `accept`, `reject` and `confidence_marker`."""

STATEMENT_VARIABLES: Mapping[str, str] = {
    "answer_marker": "the text before the answer that a message with `states: answer` must state: `Answer:`",
    "states": "what the agent's message must state: `answer`, `claims`, `estimates`, or empty",
    "sub_claim": "the sub-claim with which the game continues; empty before one is picked",
    "sub_claims": "the list of the sub-claims that wait for their probabilities",
    "depth": "the number of sub-claims that were picked so far",
    "max_depth": "the number of sub-claims that are picked in the whole game",
    "max_claims": "the maximum number of sub-claims of a claim",
}
"""Further variables in protocols whose steps have the key `states`."""

_BINARY_VARIABLES = ("accept", "reject", "confidence_marker")


def variables_for(protocol: Protocol) -> Mapping[str, str]:
    """Return the variables that templates of a protocol may use in addition to the datapoint's columns."""
    if not protocol.lists_answers:
        return {**VARIABLES, **STATEMENT_VARIABLES} if protocol.has_statements else VARIABLES
    return {**{name: text for name, text in VARIABLES.items() if name not in _BINARY_VARIABLES}, **ANSWER_VARIABLES}


class PromptTemplate(str):
    """The source of a template as a string with a `render` method."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, source: str) -> Self:
        template = super().__new__(cls, source)
        template.name = name
        return template

    def __reduce__(self) -> tuple[Any, ...]:
        return PromptTemplate, (self.name, str(self))

    def render(self, **variables: Any) -> str:
        """Render the template with these variables.

        Raises:
            RunError: rendering fails, or the text grows too long.
        """
        return SandboxedTemplate(self.name, self).render(variables)


class RenderedTexts:
    """A cache of rendered texts, since prompts are rendered again when a game's fine-tuning files are written."""

    def __init__(self) -> None:
        self.on_new_text: Callable[[tuple[Any, ...], str], None] | None = None
        """Called with the key and the text of each new entry, to share the entry with other processes."""
        self._texts: dict[tuple[Any, ...], str] = {}
        self._size = 0
        self.max_size = MAX_CACHED

    def get(self, key: tuple[Any, ...]) -> str | None:
        return self._texts.get(key)

    def put(self, key: tuple[Any, ...], text: str) -> None:
        if key in self._texts or len(text) > self.max_size:
            return
        self._texts[key] = text  # the key's strings are columns of the dataset, which is in memory anyway
        self._size += len(text)
        while self._size > self.max_size:
            self._size -= len(self._texts.pop(next(iter(self._texts))))  # the oldest


@dataclass(frozen=True)
class PromptSet:
    """The templates of a protocol's agents, by name such as `verifier` and `verifier.last_round`."""

    sources: Mapping[str, str]
    inherited: tuple[str, ...] = field(default=(), compare=False)
    """Names of templates that are missing in the folder, and so are taken from the run that is judged."""
    files: Mapping[str, Place] = field(default_factory=dict, repr=False, compare=False)
    """The file of each template, for messages; empty after unpickling in another process."""
    _compiled: dict[str, SandboxedTemplate] = field(default_factory=dict, repr=False, compare=False)
    rendered: RenderedTexts = field(default_factory=RenderedTexts, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return PromptSet, (dict(self.sources),)

    def render(
        self, name: str, variables: Mapping[str, object], columns: Mapping[str, object] = MappingProxyType({})
    ) -> str:
        """Render a template with these variables, and with a datapoint's columns except for the label.

        Raises:
            RunError: rendering fails, or the text grows too long.
        """
        key = self._key(name, variables, columns)
        text = None if key is None else self.rendered.get(key)
        if text is None:
            template = self._compiled.get(name)
            if template is None:
                template = self._compiled[name] = SandboxedTemplate(name, self.sources[name])
            text = template.render(prompt_variables(columns, variables))
            if key is not None:
                self.rendered.put(key, text)
                if self.rendered.on_new_text is not None:
                    self.rendered.on_new_text(key, text)
        return text

    def _key(self, name: str, variables: Mapping[str, object], columns: Mapping[str, object]) -> tuple[Any, ...] | None:
        """Return the cache key of a text, or None if equal values may render differently, such as 1 and True."""
        key: list[Any] = [name]
        for variable in self._sorted_variables[name]:
            value = variables[variable] if variable in variables else columns.get(variable)
            if value.__class__ is list and all(item.__class__ is str for item in value):
                value = tuple(value)
            elif value.__class__ is not str and value.__class__ is not int:
                return None
            key.append(value)
        return tuple(key)

    def place(self, name: str, line: int) -> Place:
        """Return the place of a line in a template's file, for a message."""
        return _line_place(self.files.get(name, Place(name + SUFFIX)), line, 1, self.sources[name])

    def variable_place(self, name: str, variable: str) -> Place:
        """Return the place of the first use of a variable in a template, for a message."""
        source, file = self.sources[name], self.files.get(name, Place(name + SUFFIX))
        return _variable_place(variable, scan(source).variables.get(variable, 1), source, file)

    def template(self, name: str) -> PromptTemplate:
        return PromptTemplate(name, self.sources[name])

    @cached_property
    def _sorted_variables(self) -> Mapping[str, Sequence[str]]:
        """The variables of each template in sorted order, because processes exchange cached texts by key."""
        return {name: sorted(variables) for name, variables in self.variables.items()}

    @property
    def functions(self) -> list[str]:
        """The names of the Python files that select candidates or label answers."""
        return [name for name in self.sources if is_function(name)]

    @cached_property
    def variables(self) -> Mapping[str, frozenset[str]]:
        """The variables that each template uses."""
        return {
            name: frozenset() if is_function(name) else variables_of(source) for name, source in self.sources.items()
        }


def template_names(protocol: Protocol) -> list[str]:
    """Return the names of the templates that a protocol needs."""
    names = list(protocol.agent_names)
    names.extend(name + LAST_ROUND for name in protocol.agent_names if protocol.agent_spec(name).last_round_message)
    selectors = (
        f"{protocol.verifier_name if kind == 'judge' else speaker}.{kind}" for speaker, kind in protocol.selections
    )
    return [*names, *dict.fromkeys(selectors)]


STORED_SUFFIXES = (SUFFIX, f"{FUNCTION}.py.txt", f"{CHECKER}.py.txt")
"""The ends of the names of files that a run's folder of prompts has."""


def is_function(name: str) -> bool:
    """Return whether a name is that of a Python file, and not of a template."""
    return name.endswith((FUNCTION, CHECKER))


def stored_name(name: str) -> str:
    """Return the name of the file that stores a template or function with a run. Python never imports it."""
    return name + (".py.txt" if is_function(name) else SUFFIX)


def template_of_file(file_name: str) -> str | None:
    """Return the name of the template or function in a file of a prompts folder; None for another file."""
    suffix = next((suffix for suffix in (SUFFIX, ".py", ".py.txt") if file_name.endswith(suffix)), "")
    name = file_name.removesuffix(suffix)
    return name if suffix and is_function(name) == (suffix != SUFFIX) else None


def source_path(folder: Path, name: str) -> Path:
    """Return the file of a template or function in a folder of prompts, or in the folder of a run's prompts."""
    if not is_function(name):
        return folder / (name + SUFFIX)
    path = folder / f"{name.removesuffix(CHECKER)}.py"
    stored = folder / stored_name(name)
    return stored if stored.exists() and not path.exists() else path


_SELECTOR_CALL = "select(candidates, game) that returns the index of the best candidate"
_CHECKER_CALL = "{}(text, columns) that returns whether an answer or sub-claim is right"


def function_problems(source: str, file: Place, checker: str | None = None) -> Iterable[Problem]:
    """Yield the problem of a Python file without the function that selects candidates, or the function `checker`.

    The file is not executed.
    """
    try:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError) as error:
        line, message = getattr(error, "lineno", None) or 1, f"not valid Python: {getattr(error, 'msg', error)}"
        yield Problem(_line_place(file, line, 1, source), "", message, "a Python file that cannot be used")
        return
    function = next((function for function in functions if function.name == (checker or "select")), None)
    if function is None or len(function.args.args) != 2:
        call = _SELECTOR_CALL if checker is None else _CHECKER_CALL.format(checker)
        message = f"the file needs a function {call}"
        yield Problem(_line_place(file, 1 if function is None else function.lineno, 1, source), "", message, message)


@dataclass
class PromptLoader:
    """Loads the templates of a protocol from a folder, and checks their variables."""

    protocol: Protocol
    columns: Collection[str] | None
    """The columns of the dataset; None if unknown."""
    place: Place
    """The place of the spec key that names the folder."""
    may_quote: Callable[[Path], bool] = lambda _: True
    """Returns whether messages may quote a file."""
    names_columns: bool = True
    """Whether hints may name columns."""
    confidence: str | None = None
    """The marker before a stated confidence, which a template of each judge must ask for; None: not required."""
    agents: Collection[str] | None = None
    """The agents whose templates are loaded; None: all."""
    checker: CheckerSettings | None = None
    """The checker that labels the answers of provers, so that no template may use its column."""

    def __post_init__(self) -> None:
        self._sources: dict[str, str] = {}
        self._files: dict[str, Place] = {}
        self._problems: list[Problem] = []

    def load(self, folder: Path, otherwise: Path | None = None) -> PromptSet:
        """Return the templates in a folder. Call this once.

        A template that is missing in the folder is read from the folder `otherwise`, but at least one template of the
        verifier must be there.

        Raises:
            SpecError: templates are missing or not valid, use unknown variables or the label; lists all problems.
        """
        if not folder.is_dir():
            self._add_problem(f"no folder {str(folder)!r}; set a folder of templates")
            raise SpecError(self._problems)
        names = self._template_names(folder)
        inherited = [] if otherwise is None else [name for name in names if not source_path(folder, name).exists()]
        own_names = {*names} - {*inherited}
        missing = _verifier_template_problem(self.protocol.verifier_name, own_names, folder) if inherited else None
        if missing is not None:
            self._add_problem(missing)
        for name in names:
            path = source_path(otherwise if otherwise is not None and name in inherited else folder, name)
            self._load_template(name, path, Place(str(path), is_own=self.may_quote(path)))
        if not self._problems:
            self._check_confidence(folder)
        if self._problems:
            raise SpecError(self._problems)
        return PromptSet(self._sources, tuple(inherited), self._files)

    def _template_names(self, folder: Path) -> list[str]:
        """Return the names of the templates to load, with those for a confidence that the folder has."""
        confidence_templates = [name + CONFIDENCE for name in self.protocol.verifier_names] if self.confidence else []
        extra = [name for name in confidence_templates if (folder / (name + SUFFIX)).is_file()]
        names = [*template_names(self.protocol), *extra]
        if self.agents is not None:
            names = [name for name in names if name.partition(".")[0] in self.agents]
        function_name = None if self.checker is None else self.checker.source_name
        return names if function_name is None else [*names, function_name]

    def _add_problem(self, message: str) -> None:
        self._problems.append(Problem(self.place, "prompts", message))

    def _load_template(self, name: str, path: Path, file: Place) -> None:
        """Load a template. `file` is the place of its file in messages."""
        try:
            source = _read_template(path)
        except OSError as error:
            kind = "Python file" if is_function(name) else "template"
            self._add_problem(f"no {kind} {str(path)!r} ({error.strerror}){_template_hint(path, self.protocol.name)}")
            return
        except ValueError as error:
            self._problems.append(Problem(file, "", str(error), str(error)))
            return
        problems = list(self._check(name, source, file))
        self._problems.extend(problems)
        if not problems:
            self._sources[name], self._files[name] = source, file

    def _check(self, name: str, source: str, file: Place) -> Iterable[Problem]:
        if is_function(name):
            is_checker = self.checker is not None and name == self.checker.source_name
            return function_problems(source, file, self.checker.function_name if self.checker and is_checker else None)
        rules = VariableRules(
            variables_for(self.protocol),
            self.columns,
            hidden=self.protocol.hidden_columns(name.partition(".")[0]),
            reference=None if self.checker is None else self.checker.column,
            names_columns=self.names_columns,
        )
        return template_problems(source, file, rules)

    def _check_confidence(self, folder: Path) -> None:
        """Add a problem for each judge that must state its confidence, but whose templates do not ask for it."""
        for judge in self.protocol.verifier_names if self.confidence is not None else ():
            sources = _templates_of_judge(self._sources, self.protocol, judge)
            if not _asks_for_confidence(sources, self.confidence or ""):
                path = str(folder / (judge + CONFIDENCE + SUFFIX))
                self._add_problem(
                    f"verdict.confidence needs a stated confidence, but {judge + SUFFIX} never asks for it; use "
                    f"{{{{ confidence_marker }}}} there, or write {path!r}, which is added to its instructions"
                )


def _templates_of_judge(sources: Mapping[str, str], protocol: Protocol, judge: str) -> dict[str, str]:
    """Return the templates that may ask a judge for its confidence: all, or those of the judge in a panel."""
    is_alone = len(protocol.verifier_names) == 1
    return {name: text for name, text in sources.items() if is_alone or name.partition(".")[0] == judge}


def _verifier_template_problem(verifier: str, existing: Iterable[str], folder: Path) -> str | None:
    """Return a message if the folder has no template of the verifier, so that it would have no effect; else None."""
    verifier_templates = (verifier, verifier + LAST_ROUND, verifier + CONFIDENCE)
    if any(name in verifier_templates for name in existing):
        return None
    path = folder / (verifier + SUFFIX)
    return f"no template {str(path)!r}, so the prompts of {verifier} would not change{_template_hint(path)}"


def _template_hint(path: Path, protocol: str = "") -> str:
    """Return a hint for a missing template or function: a folder for the protocol, a similar name, or all names."""
    folder = path.parent.with_name(protocol) if protocol else path.parent
    if folder != path.parent and (folder / path.name).is_file():
        return f"; set prompts to a folder with templates for {protocol}, such as {str(folder)!r}"
    existing = sorted(p.name for p in path.parent.glob("*" + path.suffix) if p.name != path.name)
    names = comma_join(existing) or f"no {path.suffix} files"
    return did_you_mean_file(path.name, existing) or f"; its folder has {names}"


def _asks_for_confidence(sources: Mapping[str, str], marker: str) -> bool:
    """Return whether a template asks for a confidence, with the variable or with the marker itself."""
    return any(
        "confidence_marker" in variables_of(source) or marker.lower() in source.lower()
        for name, source in sources.items()
        if not is_function(name)
    )


def _read_template(path: Path) -> str:
    try:
        raw = read_bounded(path, MAX_BYTES)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"the template is larger than {MAX_BYTES >> 10} KiB; shorten it") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}; save the file as UTF-8") from error


@dataclass(frozen=True)
class VariableRules:
    """The rules for the variables of a template."""

    runner_variables: Mapping[str, str] = field(default_factory=lambda: VARIABLES)
    columns: Collection[str] | None = None
    """The columns of the dataset; None if unknown."""
    hidden: frozenset[str] = frozenset()
    """Columns that the template's agent must not see."""
    reference: str | None = None
    """The column that a checker compares answers with, which no agent may see."""
    names_columns: bool = True
    """Whether hints may name columns."""

    def why_forbidden(self, name: str) -> str | None:
        """Return why a template must not use a variable, and what to do; None if it may, or if it is unknown."""
        if name in FORBIDDEN:
            return "the label must not reach a prompt; remove the variable"
        if name == self.reference:
            reason = "the column has the right answer (dataset.checker.column), which must not reach a prompt"
            return f"{reason}; remove the variable"
        if name in self.hidden:
            reason = "this agent must not see the column, because the protocol's `private` does not list the agent"
            return f"{reason}; remove the variable, or add the agent to private.{name}"
        if name in self.runner_variables and name in (self.columns or ()) and name != ANSWERS:
            return "both a column of the dataset and a variable of the runner; rename the column with dataset.columns"
        return None

    def why_unknown(self, name: str) -> str | None:
        """Return a message if there is no such variable; None if it exists, or if the columns are unknown."""
        variables = {*self.runner_variables, *(self.columns or ())} - set(FORBIDDEN) - self.hidden
        if self.columns is None or name in variables:
            return None
        suggestions = variables if self.names_columns else variables & set(self.runner_variables)
        hint = _hint_for_variable(name, self.runner_variables) or did_you_mean(name, suggestions)
        return f"no such variable, and the dataset has no such column{hint}"


def template_problems(source: str, file: Place, rules: VariableRules) -> Iterable[Problem]:
    """Yield the problems of a template."""
    scan_result = scan(source)
    for line, message in scan_result.refused:
        yield Problem(_line_place(file, line or 1, 1, source), "", message, REFUSED)
    for name, line in sorted(scan_result.variables.items()):
        reason = rules.why_forbidden(name)
        if reason is None and not scan_result.refused:
            reason = rules.why_unknown(name)
        if reason is not None:
            yield Problem(_variable_place(name, line, source, file), name, reason)


def _hint_for_variable(name: str, runner_variables: Mapping[str, str]) -> str:
    """Return a hint for a variable that exists only in protocols with other verdicts; empty for other names."""
    if name in runner_variables:
        return ""
    if name in ANSWER_VARIABLES:
        return "; this variable needs a protocol with answers: listed"
    if name in STATEMENT_VARIABLES:
        return "; this variable needs a protocol with a step that has the key states"
    return "; this protocol lists answers, so use decision_line and answers instead" if name in VARIABLES else ""


def _variable_place(name: str, line: int, source: str, file: Place) -> Place:
    """Return the place of a variable within its line."""
    match = re.search(rf"\b{re.escape(name)}\b", source.split("\n")[line - 1])
    return _line_place(file, line, match.start() + 1 if match else 1, source)


def _line_place(file: Place, line: int, column: int, source: str) -> Place:
    """Return a place in a template, with the text of the line if messages may quote it."""
    lines = source.split("\n")
    return replace(
        file, line=line, column=column, source=lines[line - 1] if file.is_own and line <= len(lines) else None
    )


def prompt_variables(columns: Mapping[str, object], runner_variables: Mapping[str, object]) -> dict[str, object]:
    """Return all variables of an agent's templates: the runner's, and the datapoint's columns without the label."""
    variables = dict(columns)
    for name in FORBIDDEN:
        variables.pop(name, None)
    return {**variables, **runner_variables}


def own_variables(
    protocol: Protocol,
    agent: str,
    *,
    prover_stance: int,
    round_: int,
    max_response_words: int,
    decision_format: DecisionFormat,
) -> dict[str, object]:
    """Return the variables of an agent's templates that the runner sets in a round."""
    judge = agent if agent in protocol.verifier_names else None
    binary = {
        "accept": decision_format.accept,
        "reject": decision_format.reject,
        "confidence_marker": decision_format.confidence,
    }
    return {
        "agent": agent,
        "agent_name": protocol.agent_spec(agent).human_name,
        "stance": _stance(protocol, agent, prover_stance),
        "max_response_words": max_response_words,
        "max_message_rounds": protocol.max_message_rounds,
        "max_verifier_questions": protocol.questions_left(0, judge),
        "questions_left": max(protocol.questions_left(round_, judge) - 1, 0),
        "headers": list(protocol.agent_spec(agent).headers.values()),
        "speech_candidates": [],
        "scratchpad_marker": protocol.agent_spec(agent).scratchpad or "",
        **({} if protocol.lists_answers else binary),
        **(_statement_variables(protocol, agent, round_) if protocol.has_statements else {}),
    }


def _statement_variables(protocol: Protocol, agent: str, round_: int) -> dict[str, object]:
    """Return the variables about statements, as they are before the first message."""
    speaks = round_ < protocol.max_message_rounds and agent in protocol.can_be_active(round_)
    return {
        "answer_marker": ANSWER_MARKER,
        "states": (protocol.step(round_).states or "") if speaks else "",
        "max_depth": protocol.parameters.max_depth,
        "max_claims": protocol.parameters.max_claims,
        **subject_variables(GameSubject()),
    }


def subject_variables(subject: GameSubject) -> dict[str, object]:
    """Return the variables about the sub-claims of a game."""
    return {
        "sub_claim": (subject.text or "") if subject.depth else "",
        "sub_claims": [] if subject.claims is None else list(subject.claims.texts),
        "depth": subject.depth,
    }


def _stance(protocol: Protocol, agent: str, prover_stance: int) -> str:
    return "accept" if protocol.stance(agent, prover_stance) else "reject"
