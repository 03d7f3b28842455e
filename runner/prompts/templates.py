"""A folder of Jinja2 templates into a prompt set; a prompt set and variables into system messages.

Templates come from strangers. They render in Jinja2's immutable sandbox with strict undefined variables, and
only what is on the allow-list below parses at all: no calls, no arithmetic that can blow up, no includes, no
attributes, no assignments. Variables are plain text and numbers, and what is rendered has a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runner.errors import Place, Problem, RunError, SpecError
from runner.protocols.protocol import Protocol
from runner.text import comma_join, did_you_mean, did_you_mean_file

SUFFIX = ".jinja"
LAST_ROUND = ".last_round"
MAX_BYTES = 64 << 10
MAX_NODES = 5_000
MAX_LOOPS = 1
MAX_RENDERED = 4 << 20
_TOO_LONG = f"renders to more than {MAX_RENDERED >> 20} MiB"

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
}
"""Every variable a template has besides the datapoint's columns."""

FORBIDDEN = ("label", "y")
"""Column names that never reach a template: the answer the verifier must find."""

_FILTERS = (
    "capitalize",
    "default",
    "first",
    "indent",
    "join",
    "last",
    "length",
    "lower",
    "title",
    "trim",
    "upper",
    "wordcount",
)
_TESTS = ("defined", "undefined", "none", "string", "number", "eq", "ne", "lt", "gt", "le", "ge", "in")
_SPECIAL_NAMES = ("self", "super", "caller", "varargs", "kwargs")
_NODES: tuple[type[nodes.Node], ...] = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.If, nodes.For,
    nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr,
    nodes.Add, nodes.Sub, nodes.Getitem, nodes.Concat, nodes.List, nodes.Tuple, nodes.Getattr,
)  # fmt: skip


def _join(values: Any, between: str = "") -> str:
    """Jinja2's `join`, of a list alone: joining the letters of a text is how a template grows without bound."""
    if not isinstance(values, (list, tuple)):
        raise SecurityError("join takes a list")
    if sum(len(str(value)) for value in values) + len(values) * len(between) > MAX_RENDERED:
        raise SecurityError(_TOO_LONG)
    return str(between).join(map(str, values))


def _indent(text: str, width: int = 4, first: bool = False) -> str:
    """Jinja2's `indent`, by a number of blanks."""
    if len(str(text)) + width * (str(text).count("\n") + 1) > MAX_RENDERED:
        raise SecurityError(_TOO_LONG)
    indented = str(text).replace("\n", "\n" + " " * width)
    return " " * width + indented if first else indented


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "%", "/", "//"])

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, loader=None)
        self.globals.clear()
        self.filters = {**{name: self.filters[name] for name in _FILTERS}, "join": _join, "indent": _indent}
        self.tests = {name: self.tests[name] for name in _TESTS}


@dataclass(frozen=True)
class PromptSet:
    """The templates' texts by name (`verifier`, `verifier.last_round`), ready to render."""

    sources: Mapping[str, str]
    _compiled: dict[str, Template] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"sources": dict(self.sources)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "sources", state["sources"])
        object.__setattr__(self, "_compiled", {})

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """A template's text with these variables.

        Raises:
            RunError: it fails with them, or grows past its bound.
        """
        template = self._compiled.get(name)
        parts, size = [], 0
        try:
            if template is None:
                template = self._compiled[name] = _environment.from_string(self.sources[name])
            for part in template.generate(variables):
                size += len(part)
                if size > MAX_RENDERED:
                    raise SecurityError(_TOO_LONG)
                parts.append(part)
        except SecurityError as error:
            raise RunError(f"template {name!r} {error}") from error
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise RunError(f"template {name!r} fails: {error}") from error
        return "".join(parts)

    @cached_property
    def variables(self) -> Mapping[str, frozenset[str]]:
        """The variables each template uses."""
        return {
            name: frozenset(meta.find_undeclared_variables(_environment.parse(source)))
            for name, source in self.sources.items()
        }


_environment = _Sandbox()


def template_names(protocol: Protocol) -> list[str]:
    """The templates a protocol needs."""
    names = list(protocol.agent_names)
    names.extend(name + LAST_ROUND for name in protocol.agent_names if protocol.agent_spec(name).last_round_message)
    return names


def load_prompts(folder: Path, protocol: Protocol, columns: Iterable[str] | None, place: Place) -> PromptSet:
    """Read a protocol's templates and check them against the columns of the dataset (None: not known).

    Raises:
        SpecError: with everything that is wrong: missing files, syntax, what the sandbox forbids, a variable
            that neither the dataset nor the runner gives, the label.
    """
    problems: list[Problem] = []
    sources: dict[str, str] = {}
    if not folder.is_dir():
        raise SpecError([Problem(place, "prompts", f"no folder {str(folder)!r}")])
    for name in template_names(protocol):
        path = folder / (name + SUFFIX)
        try:
            source = _read(path)
        except OSError as error:
            there = sorted(p.name for p in folder.glob("*" + SUFFIX))
            hint = did_you_mean_file(path.name, there) or f"; there are {comma_join(there) or 'none'}"
            problems.append(Problem(place, "prompts", f"no template {str(path)!r} ({error.strerror}){hint}"))
            continue
        except ValueError as error:
            problems.append(Problem(Place(str(path)), "", str(error)))
            continue
        found = list(_template_problems(source, path, columns))
        problems.extend(found)
        if not found:
            sources[name] = source
    if problems:
        raise SpecError(problems)
    return PromptSet(sources)


def _read(path: Path) -> str:
    raw = path.read_bytes()
    if len(raw) > MAX_BYTES:
        raise ValueError(f"a template is at most {MAX_BYTES >> 10} KiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error


def _template_problems(source: str, path: Path, columns: Iterable[str] | None) -> Iterable[Problem]:
    try:
        tree = _environment.parse(source)
    except TemplateError as error:
        yield Problem(Place(str(path), getattr(error, "lineno", 1) or 1), "", f"template syntax: {error.message}")
        return
    except RecursionError:
        yield Problem(Place(str(path)), "", "the template nests too deep")
        return
    try:
        refused = list(_forbidden(tree))
        _environment.compile(tree)
    except RecursionError:
        yield Problem(Place(str(path)), "", "the template nests too deep")
        return
    except (TemplateError, AssertionError) as error:
        refused = [(getattr(error, "lineno", 1) or 1, f"template syntax: {error}")]
    for line, message in refused:
        yield Problem(Place(str(path), line or 1), "", message)
    known = {*VARIABLES, *(columns or ())} - set(FORBIDDEN)
    used = meta.find_undeclared_variables(tree) if not refused else set(_names(tree)) - {"loop"}
    for name in sorted(used):
        place = _place_of(name, tree, source, path)
        if name in FORBIDDEN:
            yield Problem(place, name, "the label must not reach a prompt")
        elif name in VARIABLES and name in (columns or ()):
            message = "both a column of the dataset and a variable of the runner; rename the column (dataset.columns)"
            yield Problem(place, name, message)
        elif columns is not None and name not in known and not refused:
            message = f"no such variable, and the dataset has no such column{did_you_mean(name, known)}"
            yield Problem(place, name, message)


def _names(tree: nodes.Template) -> Iterable[str]:
    return (node.name for node in tree.find_all(nodes.Name))


def _place_of(name: str, tree: nodes.Template, source: str, path: Path) -> Place:
    """Where a template uses a variable first."""
    line = min((node.lineno or 1 for node in tree.find_all(nodes.Name) if node.name == name), default=1)
    text = source.split("\n")[line - 1]
    found = re.search(rf"\b{re.escape(name)}\b", text)
    return Place(str(path), line, found.start() + 1 if found else 1)


def _forbidden(tree: nodes.Template) -> Iterable[tuple[int, str]]:
    for count, node in enumerate(_descendants(tree)):
        if count >= MAX_NODES:
            yield 1, f"a template has at most {MAX_NODES} nodes"
            return
        if not isinstance(node, _NODES):
            yield node.lineno, f"{type(node).__name__} is not allowed in a template"
        elif isinstance(node, nodes.Getattr) and not _is_loop_attribute(node):
            yield node.lineno, f"attributes (.{node.attr}) are not allowed in a template"
        elif isinstance(node, nodes.Name) and node.name in _SPECIAL_NAMES:
            yield node.lineno, f"{node.name} is not allowed in a template"
        elif isinstance(node, nodes.Getitem) and _is_hidden(node.arg):
            yield node.lineno, "names that start with an underscore are not allowed in a template"
        elif isinstance(node, nodes.Filter) and any(pair.key == "attribute" for pair in node.kwargs):
            yield node.lineno, "a filter's attribute is not allowed in a template"
        elif isinstance(node, nodes.Filter) and node.name not in _FILTERS:
            yield node.lineno, f"no filter {node.name!r}; allowed are {comma_join(_FILTERS)}"
        elif isinstance(node, nodes.Test) and node.name not in _TESTS:
            yield node.lineno, f"no test {node.name!r}; allowed are {comma_join(_TESTS)}"
        elif isinstance(node, nodes.For) and (node.recursive or _loops_above(node, tree) >= MAX_LOOPS):
            yield node.lineno, "a loop inside a loop, or a recursive one, is not allowed in a template"


def _is_hidden(key: nodes.Node) -> bool:
    return isinstance(key, nodes.Const) and isinstance(key.value, str) and key.value.startswith("_")


def _is_loop_attribute(node: nodes.Getattr) -> bool:
    return isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr in ("index", "first", "last")


def _descendants(node: nodes.Node) -> Iterable[nodes.Node]:
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        children = list(current.iter_child_nodes())
        stack.extend(child for child in reversed(children) if not isinstance(child, nodes.Keyword))
        stack.extend(child.value for child in children if isinstance(child, nodes.Keyword))


def _loops_above(target: nodes.For, tree: nodes.Template) -> int:
    def depth(node: nodes.Node, loops: int) -> int | None:
        if node is target:
            return loops
        inner = loops + isinstance(node, nodes.For)
        for child in node.iter_child_nodes():
            found = depth(child, inner)
            if found is not None:
                return found
        return None

    return depth(tree, 0) or 0


def prompt_variables(
    protocol: Protocol,
    agent: str,
    *,
    columns: Mapping[str, Any],
    prover_stance: int,
    round_: int,
    max_response_words: int,
    accept: str,
    reject: str,
) -> dict[str, Any]:
    """The variables of an agent's templates in a round. The label is none of them."""
    return {
        **{name: value for name, value in columns.items() if name not in FORBIDDEN},
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
    }


def _stance(protocol: Protocol, agent: str, prover_stance: int) -> str:
    return "accept" if protocol.stance(agent, prover_stance) else "reject"
