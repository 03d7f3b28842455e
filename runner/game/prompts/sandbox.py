"""Compile and render templates in a sandbox, and report everything that the sandbox rejects.

Templates may come from untrusted authors. They are rendered in Jinja2's immutable sandbox, in which an undefined
variable is an error. Only the syntax nodes in `_NODES` are allowed: no calls, multiplication, includes, attributes or
assignments. The rendered text and the work of rendering are limited. The work is counted instead of timed, so that
every machine rejects the same templates.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runner.base.errors import TemplateFailedError
from runner.base.text import comma_join
from runner.base.value_class import value_class
from runner.game.prompts.work_limit import (
    BUDGET,
    COUNTING_FILTERS,
    MAX_RENDERED,
    TOO_LONG,
    Counting,
    Work,
    counted_filter,
    indent,
    join,
    trim,
)

MAX_NODES = 5_000
MAX_DEPTH = 100
MAX_LOOPS = 1
_TOO_DEEP = "the template nests too deep"

_FILTERS = (
    "capitalize", "default", "first", "indent", "join", "last", "length", "lower", "title", "trim", "upper",
    "wordcount",
)  # fmt: skip
_TESTS = ("defined", "undefined", "none", "string", "number", "eq", "ne", "lt", "gt", "le", "ge", "in")
_LOOP_ATTRIBUTES = ("index", "first", "last")
_SPECIAL_NAMES = ("self", "super", "caller", "varargs", "kwargs")
_NODES: tuple[type[nodes.Node], ...] = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.If, nodes.For,
    nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr,
    nodes.Add, nodes.Sub, nodes.Getitem, nodes.Concat, nodes.List, nodes.Tuple, nodes.Getattr,
)  # fmt: skip


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "%", "/", "//"])

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, loader=None)
        self.globals.clear()
        counted = {name: counted_filter(name, self.filters[name]) for name in _FILTERS}
        self.filters = {**counted, "join": join, "indent": indent, "trim": trim, **COUNTING_FILTERS}
        self.tests = {name: self.tests[name] for name in _TESTS}

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up an item, but never an attribute. Jinja2 does both, so `text['title']` would be a method."""
        try:
            return obj[argument]
        except (TypeError, LookupError, AttributeError):
            return self.undefined(obj=obj, name=argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up an attribute of Jinja2's `loop`, but of nothing else, such as a dataset column named `loop`."""
        if isinstance(obj, LoopContext) and attribute in _LOOP_ATTRIBUTES:
            return super().getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute)


_environment = _Sandbox()

_FAILURES = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError)
"""Exceptions that compiling or rendering a bad template can raise."""


class SandboxedTemplate:
    """A compiled template, whose name is used in messages.

    Raises:
        TemplateFailedError: the template cannot be compiled.
    """

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        try:
            self._template = Template.from_code(_environment, _compile(source), {})
        except _FAILURES as error:
            raise self._failure(error) from error

    def render(self, variables: Mapping[str, object]) -> str:
        """Render the template with these variables.

        Raises:
            TemplateFailedError: rendering fails, or the text or the work exceeds its limit.
        """
        parts, size = [], 0
        try:
            for part in self._template.generate({**variables, BUDGET: Work()}):
                size += len(part)
                if size > MAX_RENDERED:
                    raise SecurityError(TOO_LONG)
                parts.append(part)
        except _FAILURES as error:
            raise self._failure(error) from error
        return "".join(parts)

    def _failure(self, error: Exception) -> TemplateFailedError:
        refused = isinstance(error, SecurityError)
        return TemplateFailedError.from_template(
            self._name, f"{'' if refused else 'fails: '}{error}", _failing_line(error)
        )


@lru_cache(maxsize=128)
def _compile(source: str) -> CodeType:
    return _environment.compile(Counting().visit(_environment.parse(source)))


def _failing_line(error: Exception) -> int | None:
    """Return the template line that raised `error`; Jinja2's frames have the file name `<template>`."""
    template_frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return template_frames[-1].lineno if template_frames else getattr(error, "lineno", None)


@lru_cache(maxsize=128)
def variables_of(source: str) -> frozenset[str]:
    """Return the variables that a template uses."""
    return frozenset(meta.find_undeclared_variables(_environment.parse(source)))


@value_class(frozen=True)
class Scan:
    """The variables of a template with the line of their first use, and its rejected parts as (line, message)."""

    variables: Mapping[str, int]
    refused: tuple[tuple[int, str], ...] = ()


_SYNTAX = "write {{ name }} for a variable, and end each {% if %} and {% for %}"


def scan(source: str) -> Scan:
    """Return the variables and the rejected parts of a template. Results are cached, since runs share templates."""
    try:
        return _scan(source)
    except RecursionError:  # not cached, since the error depends on the depth of the caller's stack
        return Scan({}, ((1, _TOO_DEEP),))


@lru_cache(maxsize=128)
def _scan(source: str) -> Scan:
    try:
        tree = _environment.parse(source)
        refused = tuple(_refusals(tree))
    except TemplateError as error:
        return Scan({}, ((_line_number(error), f"template syntax: {(error.message or '').rstrip('.')}; {_SYNTAX}"),))
    except (ValueError, OverflowError) as error:  # a number that Python cannot parse
        return Scan({}, ((1, f"template syntax: {error}"),))
    refused = refused or tuple(_compile_refusals(source))
    lines: dict[str, int] = {}
    for node, _, _ in _descendants(tree):  # `find_all` would recurse
        if isinstance(node, nodes.Name):
            lines[node.name] = min(node.lineno or 1, lines.get(node.name, sys.maxsize))
    used = lines.keys() - {"loop"} if refused else meta.find_undeclared_variables(tree)
    return Scan(MappingProxyType({name: lines.get(name, 1) for name in used}), refused)


def _compile_refusals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the message of the error if a template cannot be compiled."""
    try:
        _compile(source)
    except (SyntaxError, MemoryError):  # from Python's own compiler
        yield 1, _TOO_DEEP
    except (TemplateError, AssertionError, ValueError, OverflowError) as error:
        yield _line_number(error), f"template syntax: {error}"


def _line_number(error: Exception) -> int:
    return getattr(error, "lineno", 1) or 1


def _refusals(tree: nodes.Template) -> Iterator[tuple[int, str]]:
    for count, (node, depth, loops) in enumerate(_descendants(tree)):
        if count >= MAX_NODES:
            yield 1, f"a template has at most {MAX_NODES} nodes"
            return
        if depth > MAX_DEPTH:
            yield 1, _TOO_DEEP
            return
        refusal = _refusal(node, loops)
        if refusal is not None:
            yield node.lineno, refusal


def _refusal(node: nodes.Node, loops: int) -> str | None:
    """Return why a node, with this number of loops around it, is not allowed in a template, or None."""
    if not isinstance(node, _NODES):
        return f"{type(node).__name__} is not allowed in a template; use only variables, filters, if and for"
    match node:
        case nodes.Getattr() if not _is_loop_attribute(node):
            return f"attributes (.{node.attr}) are not allowed in a template; remove .{node.attr}"
        case nodes.Name() if node.name in _SPECIAL_NAMES:
            return f"{node.name} is not allowed in a template; remove {node.name}"
        case nodes.Getitem() if _is_private(node.arg):
            return "names that start with an underscore are not allowed in a template; use another name"
        case nodes.Filter():
            return _filter_refusal(node)
        case nodes.Test() if node.name not in _TESTS:
            return f"no test {node.name!r}; choose one of {comma_join(_TESTS)}"
        case nodes.For() if node.recursive or loops >= MAX_LOOPS:
            return "nested and recursive loops are not allowed in a template; write one loop after the other"
    return None


def _filter_refusal(node: nodes.Filter) -> str | None:
    if any(pair.key == "attribute" for pair in node.kwargs):
        return "a filter's attribute is not allowed in a template; remove attribute=..."
    if node.name not in _FILTERS:
        return f"no filter {node.name!r}; choose one of {comma_join(_FILTERS)}"
    return None


def _is_private(key: nodes.Node) -> bool:
    return isinstance(key, nodes.Const) and isinstance(key.value, str) and key.value.startswith("_")


def _is_loop_attribute(node: nodes.Getattr) -> bool:
    return isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr in _LOOP_ATTRIBUTES


def _descendants(top: nodes.Node) -> Iterator[tuple[nodes.Node, int, int]]:
    """Yield a node and all its descendants, each with its depth and the number of loops around it."""
    stack = [(top, 0, 0)]
    while stack:
        current, depth, loops = stack.pop()
        yield current, depth, loops
        inside = loops + isinstance(current, nodes.For)
        children = [c.value if isinstance(c, nodes.Keyword) else c for c in current.iter_child_nodes()]
        stack.extend((child, depth + 1, inside) for child in reversed(children))
