"""What a template may do: texts into templates that render in a sandbox, and all that the sandbox refuses.

Templates come from strangers. They render in Jinja2's immutable sandbox with strict undefined variables, and
only what is on the allow-list below parses at all: no calls, no arithmetic that can blow up, no includes, no
attributes, no assignments. Variables are plain text and numbers, and what is rendered has a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import StrictUndefined, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runner.errors import RunError
from runner.text import comma_join

MAX_NODES = 5_000
MAX_LOOPS = 1
MAX_RENDERED = 4 << 20
_TOO_LONG = f"renders to more than {MAX_RENDERED >> 20} MiB"
_TOO_DEEP = "the template nests too deep"

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


_environment = _Sandbox()

_FAILURES = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError)
"""What a template raises that cannot be rendered."""


class SandboxedTemplate:
    """One template, compiled. Its name is for messages.

    Raises:
        RunError: it cannot be compiled.
    """

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        try:
            self._template = _environment.from_string(source)
        except _FAILURES as error:
            raise self._failure(error) from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The template's text with these variables.

        Raises:
            RunError: it fails with them, or grows past its bound.
        """
        parts, size = [], 0
        try:
            for part in self._template.generate(variables):
                size += len(part)
                if size > MAX_RENDERED:
                    raise SecurityError(_TOO_LONG)
                parts.append(part)
        except _FAILURES as error:
            raise self._failure(error) from error
        return "".join(parts)

    def _failure(self, error: Exception) -> RunError:
        refused = isinstance(error, SecurityError)
        return RunError(f"template {self._name!r} {'' if refused else 'fails: '}{error}")


def variables_of(source: str) -> frozenset[str]:
    """The variables that a template uses."""
    return frozenset(meta.find_undeclared_variables(_environment.parse(source)))


@dataclass(frozen=True)
class Scan:
    """What there is in a template: each variable with the line of its first use, and what is refused, with its line."""

    variables: Mapping[str, int]
    refused: Sequence[tuple[int, str]] = ()


def scan(source: str) -> Scan:
    """Look through a template before it is rendered."""
    try:
        tree = _environment.parse(source)
        refused = list(_refusals(tree))
    except TemplateError as error:
        return Scan({}, [(_line(error), f"template syntax: {error.message}")])
    except RecursionError:
        return Scan({}, [(1, _TOO_DEEP)])
    try:
        _environment.compile(tree)
    except RecursionError:
        return Scan({}, [(1, _TOO_DEEP)])
    except (TemplateError, AssertionError) as error:
        refused = [(_line(error), f"template syntax: {error}")]
    names = {node.name for node in tree.find_all(nodes.Name)} - {"loop"}
    used = names if refused else meta.find_undeclared_variables(tree)
    return Scan({name: _first_line(name, tree) for name in used}, refused)


def _line(error: Exception) -> int:
    return getattr(error, "lineno", 1) or 1


def _first_line(name: str, tree: nodes.Template) -> int:
    return min((node.lineno or 1 for node in tree.find_all(nodes.Name) if node.name == name), default=1)


def _refusals(tree: nodes.Template) -> Iterator[tuple[int, str]]:
    for count, node in enumerate(_descendants(tree)):
        if count >= MAX_NODES:
            yield 1, f"a template has at most {MAX_NODES} nodes"
            return
        why = _refusal(node, tree)
        if why is not None:
            yield node.lineno, why


def _refusal(node: nodes.Node, tree: nodes.Template) -> str | None:
    """Why a node must not stand in a template."""
    if not isinstance(node, _NODES):
        return f"{type(node).__name__} is not allowed in a template"
    match node:
        case nodes.Getattr() if not _is_loop_attribute(node):
            return f"attributes (.{node.attr}) are not allowed in a template"
        case nodes.Name() if node.name in _SPECIAL_NAMES:
            return f"{node.name} is not allowed in a template"
        case nodes.Getitem() if _is_hidden(node.arg):
            return "names that start with an underscore are not allowed in a template"
        case nodes.Filter():
            return _filter_refusal(node)
        case nodes.Test() if node.name not in _TESTS:
            return f"no test {node.name!r}; allowed are {comma_join(_TESTS)}"
        case nodes.For() if node.recursive or _loops_above(node, tree) >= MAX_LOOPS:
            return "a loop inside a loop, or a recursive one, is not allowed in a template"
    return None


def _filter_refusal(node: nodes.Filter) -> str | None:
    if any(pair.key == "attribute" for pair in node.kwargs):
        return "a filter's attribute is not allowed in a template"
    if node.name not in _FILTERS:
        return f"no filter {node.name!r}; allowed are {comma_join(_FILTERS)}"
    return None


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
