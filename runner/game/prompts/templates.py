"""A folder of Jinja2 templates into a prompt set; a prompt set and variables into system messages."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from runner.base.errors import Place, Problem, SpecError
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, did_you_mean, did_you_mean_file
from runner.game.prompts.sandbox import SandboxedTemplate, scan, variables_of
from runner.game.protocols.protocol import Protocol

SUFFIX = ".jinja"
LAST_ROUND = ".last_round"
CONFIDENCE = ".confidence"
"""Of the template that asks a verifier for a stated confidence: added to its instructions where that is wanted."""
MAX_BYTES = 64 << 10
MAX_KEPT = 2 << 20
"""Characters of rendered texts, and of what they were rendered with, that are kept."""
REFUSED = "a template that cannot be used"

VARIABLES: Mapping[str, str] = {
    "agent": "the agent's name in the protocol, such as `prover0`",
    "agent_name": "how the other agents know it, such as `Expert_1`",
    "stance": "`accept` or `reject`: the verdict it argues for (for a verifier: the provers', where it is shared)",
    "max_response_words": "the word limit of one answer",
    "max_message_rounds": "the number of rounds of the game",
    "max_verifier_questions": "in how many rounds the verifier speaks in the whole game",
    "questions_left": "how many more questions the verifier can ask before it must decide",
    "headers": "the texts that start the part for each channel, where the agent speaks in several (a list)",
    "accept": "the text that accepts, `Decision: accept` unless the spec's `decision_format` says otherwise",
    "reject": "the text that rejects",
    "confidence_marker": "what stands before a stated confidence, `Confidence:` unless the spec's `decision_format` "
    "says otherwise; empty where `verdict.confidence` asks for none",
}
"""Every variable a template has besides the datapoint's columns."""

FORBIDDEN = ("label", "y")
"""Column names that never reach a template: the answer the verifier must find."""


class PromptTemplate(str):
    """The source of a template, which renders."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, source: str) -> Self:
        template = super().__new__(cls, source)
        template.name = name
        return template

    def __reduce__(self) -> tuple[Any, ...]:
        return PromptTemplate, (self.name, str(self))

    def render(self, **variables: Any) -> str:
        """The text with these variables, as a prompt has it.

        Raises:
            RunError: it fails with them, or grows past its bound.
        """
        return SandboxedTemplate(self.name, self).render(variables)


class RenderedTexts:
    """Texts that templates gave, the newest of them: a game's prompts are read again where its files are built."""

    def __init__(self) -> None:
        self.tell: Callable[[tuple[Any, ...], str], None] | None = None
        """Is told of each text that is new, where another process has a use for it."""
        self._texts: dict[tuple[Any, ...], str] = {}
        self._size = 0

    def get(self, key: tuple[Any, ...]) -> str | None:
        return self._texts.get(key)

    def put(self, key: tuple[Any, ...], text: str) -> None:
        size = len(text) + sum(len(value) for value in key if isinstance(value, str))
        if self._size + size > MAX_KEPT:
            self._texts.clear()
            self._size = 0
        if size <= MAX_KEPT:
            self._texts[key] = text
            self._size += size


@dataclass(frozen=True)
class PromptSet:
    """The templates' texts by name (`verifier`, `verifier.last_round`), ready to render."""

    sources: Mapping[str, str]
    inherited: tuple[str, ...] = field(default=(), compare=False)
    """Those that are another run's, since the folder has none of their name."""
    files: Mapping[str, Place] = field(default_factory=dict, repr=False, compare=False)
    """The file of each template, for messages; empty in another process."""
    _compiled: dict[str, SandboxedTemplate] = field(default_factory=dict, repr=False, compare=False)
    rendered: RenderedTexts = field(default_factory=RenderedTexts, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"sources": dict(self.sources)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "sources", state["sources"])
        object.__setattr__(self, "inherited", ())
        object.__setattr__(self, "files", {})
        object.__setattr__(self, "_compiled", {})
        object.__setattr__(self, "rendered", RenderedTexts())

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """A template's text with these variables.

        Raises:
            RunError: it fails with them, or grows past its bound.
        """
        key = self._key(name, variables)
        text = None if key is None else self.rendered.get(key)
        if text is None:
            template = self._compiled.get(name)
            if template is None:
                template = self._compiled[name] = SandboxedTemplate(name, self.sources[name])
            text = template.render(variables)
            if key is not None:
                self.rendered.put(key, text)
                if self.rendered.tell is not None:
                    self.rendered.tell(key, text)
        return text

    def _key(self, name: str, variables: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """What a text depends on; None where that cannot be told apart by equality, as 1 and True are not."""
        values = [variables.get(used) for used in self._used[name]]
        for value in values:
            if value.__class__ is not str and value.__class__ is not int:
                return None
        return (name, *values)

    def place(self, name: str, line: int) -> Place:
        """A line of a template's file, for a message."""
        return _in_line(self.files.get(name, Place(name + SUFFIX)), line, 1, self.sources[name])

    def template(self, name: str) -> PromptTemplate:
        return PromptTemplate(name, self.sources[name])

    @cached_property
    def _used(self) -> Mapping[str, Sequence[str]]:
        """The variables of each template in one order for all processes: texts go from one to another."""
        return {name: sorted(used) for name, used in self.variables.items()}

    @cached_property
    def variables(self) -> Mapping[str, frozenset[str]]:
        """The variables each template uses."""
        return {name: variables_of(source) for name, source in self.sources.items()}


def template_names(protocol: Protocol) -> list[str]:
    """The templates a protocol needs."""
    names = list(protocol.agent_names)
    names.extend(name + LAST_ROUND for name in protocol.agent_names if protocol.agent_spec(name).last_round_message)
    return names


def load_prompts(
    folder: Path,
    protocol: Protocol,
    columns: Iterable[str] | None,
    place: Place,
    shows: Callable[[Path], bool] = lambda _: True,
    *,
    names_columns: bool = True,
    confidence: str | None = None,
    otherwise: Path | None = None,
) -> PromptSet:
    """Read a protocol's templates and check them against the columns of the dataset (None: not known).

    A template that is not in the folder is taken from `otherwise`; one of the verifier must be there.
    `shows` says of a file whether it may be told what stands in it; `names_columns`, whether a hint may be a column;
    `confidence` is the text before a stated confidence, where the verifier is to state one and must be told so.

    Raises:
        SpecError: with everything that is wrong: missing files, syntax, what the sandbox forbids, a variable
            that neither the dataset nor the runner gives, the label.
    """
    problems: list[Problem] = []
    sources: dict[str, str] = {}
    files: dict[str, Place] = {}
    if not folder.is_dir():
        raise SpecError([Problem(place, "prompts", f"no folder {str(folder)!r}")])
    asks = protocol.verifier_name + CONFIDENCE
    added = [asks] if confidence is not None and (folder / (asks + SUFFIX)).is_file() else []
    names = [*template_names(protocol), *added]
    inherited = [] if otherwise is None else [name for name in names if not (folder / (name + SUFFIX)).exists()]
    missing = _no_template_of(protocol.verifier_name, {*names} - {*inherited}, folder) if inherited else None
    if missing is not None:
        problems.append(Problem(place, "prompts", missing))
    for name in names:
        path = (otherwise if otherwise is not None and name in inherited else folder) / (name + SUFFIX)
        try:
            source = _read(path)
        except OSError as error:
            problems.append(Problem(place, "prompts", f"no template {str(path)!r} ({error.strerror}){_near(path)}"))
            continue
        except ValueError as error:
            problems.append(Problem(Place(str(path), is_own=shows(path)), "", str(error), str(error)))
            continue
        file = Place(str(path), is_own=shows(path))
        found = list(template_problems(source, file, columns, names_columns=names_columns))
        problems.extend(found)
        if not found:
            sources[name], files[name] = source, file
    if confidence is not None and not problems and not _asks_for_confidence(sources, confidence):
        problems.append(_never_asked(folder, protocol.verifier_name, place))
    if problems:
        raise SpecError(problems)
    return PromptSet(sources, tuple(inherited), files)


def _no_template_of(verifier: str, there: Iterable[str], folder: Path) -> str | None:
    """What is wrong with a folder that is to change how a verifier is asked, and has no template of its."""
    own = (verifier, verifier + LAST_ROUND, verifier + CONFIDENCE)
    if any(name in own for name in there):
        return None
    path = folder / (verifier + SUFFIX)
    return f"no template {str(path)!r}, so that {verifier} would be asked as it was{_near(path)}"


def _near(path: Path) -> str:
    """The next step where a template is not in its folder."""
    there = sorted(p.name for p in path.parent.glob("*" + SUFFIX))
    return did_you_mean_file(path.name, there) or f"; there are {comma_join(there) or 'none'}"


def _asks_for_confidence(sources: Mapping[str, str], marker: str) -> bool:
    """Whether some template tells how a confidence is stated: by the variable, or by the text itself."""
    return any(
        "confidence_marker" in variables_of(source) or marker.lower() in source.lower() for source in sources.values()
    )


def _never_asked(folder: Path, verifier: str, place: Place) -> Problem:
    name = verifier + CONFIDENCE + SUFFIX
    return Problem(
        place,
        "prompts",
        f"verdict.confidence wants a stated one, and {verifier + SUFFIX} never asks for it; use "
        f"{{{{ confidence_marker }}}} there, or write {str(folder / name)!r}, which is added to its instructions",
    )


def _read(path: Path) -> str:
    try:
        raw = read_bounded(path, MAX_BYTES)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"a template is at most {MAX_BYTES >> 10} KiB") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error


def template_problems(
    source: str, file: Place, columns: Iterable[str] | None, *, names_columns: bool
) -> Iterable[Problem]:
    """What is wrong with a template's text, for a dataset with these columns (None: not known)."""
    found = scan(source)
    for line, message in found.refused:
        yield Problem(_in_line(file, line or 1, 1, source), "", message, REFUSED)
    known = {*VARIABLES, *(columns or ())} - set(FORBIDDEN)
    hints = known if names_columns else known & set(VARIABLES)
    for name, line in sorted(found.variables.items()):
        place = _place_of(name, line, source, file)
        if name in FORBIDDEN:
            yield Problem(place, name, "the label must not reach a prompt; take it out")
        elif name in VARIABLES and name in (columns or ()):
            message = "both a column of the dataset and a variable of the runner; rename the column (dataset.columns)"
            yield Problem(place, name, message)
        elif columns is not None and name not in known and not found.refused:
            message = f"no such variable, and the dataset has no such column{did_you_mean(name, hints)}"
            yield Problem(place, name, message)


def _place_of(name: str, line: int, source: str, file: Place) -> Place:
    """Where in its line a variable stands."""
    found = re.search(rf"\b{re.escape(name)}\b", source.split("\n")[line - 1])
    return _in_line(file, line, found.start() + 1 if found else 1, source)


def _in_line(file: Place, line: int, column: int, source: str) -> Place:
    """A place in a template, with the line itself where it may be quoted."""
    lines = source.split("\n")
    return replace(
        file, line=line, column=column, source=lines[line - 1] if file.is_own and line <= len(lines) else None
    )


def prompt_variables(columns: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """All variables of an agent's templates: the datapoint's columns, but never the label, and `own_variables`."""
    variables = {**columns, **own}
    for name in FORBIDDEN:
        variables.pop(name, None)
    return variables


def own_variables(
    protocol: Protocol,
    agent: str,
    *,
    prover_stance: int,
    round_: int,
    max_response_words: int,
    accept: str,
    reject: str,
    confidence_marker: str = "",
) -> dict[str, Any]:
    """The variables of an agent's templates in a round that are the runner's."""
    return {
        "agent": agent,
        "agent_name": protocol.agent_spec(agent).human_name,
        "stance": _stance(protocol, agent, prover_stance),
        "max_response_words": max_response_words,
        "max_message_rounds": protocol.max_message_rounds,
        "max_verifier_questions": protocol.max_verifier_questions,
        "questions_left": max(protocol.questions_left(round_) - 1, 0),
        "headers": list(protocol.agent_spec(agent).headers.values()),
        "accept": accept,
        "reject": reject,
        "confidence_marker": confidence_marker,
    }


def _stance(protocol: Protocol, agent: str, prover_stance: int) -> str:
    return "accept" if protocol.stance(agent, prover_stance) else "reject"
