"""Limit the work of rendering a template. Each operation counts as work in proportion to the size of its values.

A time limit would depend on the machine, while a limit on counted work rejects the same templates everywhere. To count,
filters are inserted into the syntax tree of a template. Their names contain brackets, so no template can use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

MAX_RENDERED = 4 << 20
"""Maximum number of characters of a rendered template, or of a text inside it."""
MAX_WORK = 32 << 20
"""Maximum number of characters that one rendering may process, including those in loops and filters."""
MAX_STRIPPED = 64
"""Maximum number of different characters that `trim` may remove."""
TOO_LONG = f"renders to more than {MAX_RENDERED >> 20} MiB"

BUDGET = "the work of this rendering"
"""The name of the template variable with the `Work` of a rendering. It has spaces, so no template can use it."""


class Work:
    """Counts the work of one rendering in characters, which is the same on every machine, unlike seconds."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def charge(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise SecurityError("does too much work; loop over less, or use fewer filters")

    def size(self, value: Any) -> int:
        """Estimate the number of characters of a value as text. Iterating over a list counts as work, too."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if isinstance(value, (list, tuple)):
            self.charge(16 * len(value))
            return sum(self.size(item) + 2 for item in value) + 2
        return 24

    def text(self, value: Any) -> str:
        """Return a value as text. A text that is too long is an error."""
        if isinstance(value, str):
            self.charge(len(value))
            return value
        size = self.size(value)
        if size > MAX_RENDERED:
            raise SecurityError(TOO_LONG)
        self.charge(size)
        return str(value)


def _work(context: Context) -> Work:
    work: Work = context.parent[BUDGET]
    return work


_SLOW_FILTERS = {"title": 16, "capitalize": 2, "wordcount": 4}
"""The work per character of slow filters. All other filters count as 1."""


def counted_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter of Jinja2 so that its value and arguments count as work."""
    weight = _SLOW_FILTERS.get(name, 1)
    takes_environment = name in ("first", "last")

    @pass_context
    def counted(context: Context, value: Any, *args: Any, **options: Any) -> Any:
        work: Work = context.parent[BUDGET]
        work.charge(64 + weight * (len(value) if type(value) is str else work.size(value)))
        for argument in (*args, *options.values()):
            work.charge(work.size(argument))
        if takes_environment:
            return original(context.environment, value, *args, **options)
        return original(value, *args, **options)

    return counted


@pass_context
def join(context: Context, values: Any, between: str = "") -> str:
    """Join a list like Jinja2's `join`, but reject a text, whose characters Jinja2 would join."""
    if not isinstance(values, (list, tuple)):
        raise SecurityError("uses join with a value that is not a list; give it a list")
    work = _work(context)
    size = work.size(values) + len(values) * work.size(between)
    if size > MAX_RENDERED:
        raise SecurityError(TOO_LONG)
    work.charge(size)
    return work.text(between).join(map(str, values))


@pass_context
def trim(context: Context, value: Any, chars: Any = None) -> str:
    """Trim like Jinja2's `trim`, with a limited number of different characters, since each one takes time."""
    work: Work = context.parent[BUDGET]
    text = value if type(value) is str else work.text(value)
    work.charge(len(text))
    if chars is None or chars == "\n":  # the common case
        return text.strip(chars)
    if not isinstance(chars, str):
        raise SecurityError("uses trim with an argument that is not a text; give it a text")
    characters = "".join(dict.fromkeys(work.text(chars)))
    if len(characters) > MAX_STRIPPED:
        raise SecurityError(f"uses trim with more than {MAX_STRIPPED} different characters; give it fewer")
    work.charge(len(characters) * len(text))
    return text.strip(characters)


@pass_context
def indent(context: Context, text: Any, width: Any = 4, first: bool = False) -> str:
    """Indent like Jinja2's `indent`, but only by a number of spaces."""
    if not isinstance(width, int) or width < 0:
        raise SecurityError("uses indent without a number of spaces; give it a number")
    work = _work(context)
    text = work.text(text)
    blanks = " " * min(width, MAX_RENDERED)
    size = len(text) + len(blanks) * (text.count("\n") + 1)
    if size > MAX_RENDERED:
        raise SecurityError(TOO_LONG)
    work.charge(size)
    indented: str = text.replace("\n", "\n" + blanks)
    return blanks + indented if first else indented


@pass_context
def _as_text(context: Context, value: Any) -> Any:
    """Convert an output value to text. A value that is already text is counted when the output is joined."""
    if type(value) is str or isinstance(value, Undefined):
        return value
    return _work(context).text(value)


@pass_context
def _count_value(context: Context, value: Any) -> Any:
    """Count the work of comparing or testing a value."""
    if type(value) is int:
        return value
    work = _work(context)
    work.charge(work.size(value))
    return value


@pass_context
def _concat(context: Context, values: Sequence[Any]) -> str:
    """Concatenate values as texts (the operator `~`)."""
    work = _work(context)
    total_size = sum(work.size(value) for value in values)
    if total_size > MAX_RENDERED:
        raise SecurityError(TOO_LONG)
    return "".join([work.text(value) for value in values])


@pass_context
def _sum(context: Context, left: Any, right: Any) -> Any:
    """Add two numbers, texts or lists (the operator `+`)."""
    work = _work(context)
    size = work.size(left) + work.size(right)
    if size > MAX_RENDERED:
        raise SecurityError(TOO_LONG)
    work.charge(size)
    return left + right


@pass_context
def _items(context: Context, values: Any, nodes_in_loop: int) -> Iterator[Any]:
    """Yield the items of a loop. Each iteration counts as work in proportion to the size of the loop's body."""
    work = _work(context)
    for item in values:
        work.charge(16 * nodes_in_loop)
        yield item


COUNTING_FILTERS = {"(text)": _as_text, "(seen)": _count_value, "(concat)": _concat, "(sum)": _sum, "(items)": _items}
"""Filters that `Counting` inserts into templates. Their names have brackets, so no template can use them."""


_TEXT_FILTERS = ("trim", "upper", "lower", "title", "capitalize", "join", "indent", "(concat)")
"""Filters whose result is already text."""


class Counting(NodeTransformer):
    """Wraps each operation whose cost grows with its values in a filter that counts the work."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - Jinja2 requires this name
        self.generic_visit(node)
        for index, child in enumerate(node.nodes):
            is_text = isinstance(child, nodes.Filter) and child.name in _TEXT_FILTERS
            if not is_text and not isinstance(child, (nodes.TemplateData, nodes.Const)):
                node.nodes[index] = _apply_filter("(text)", child)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja2 requires this name
        self.generic_visit(node)
        return _apply_filter("(concat)", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802 - Jinja2 requires this name
        self.generic_visit(node)
        return _apply_filter("(sum)", node.left, node.right)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - Jinja2 requires this name
        self.generic_visit(node)
        node.expr = _count_expression(node.expr)
        for operand in node.ops:
            operand.expr = _count_expression(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802 - Jinja2 requires this name
        self.generic_visit(node)
        if node.name not in ("defined", "undefined"):
            node.node = _count_expression(node.node)
            node.args = [_count_expression(argument) for argument in node.args]
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja2 requires this name
        body_nodes = 1 + sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        node.iter = _apply_filter("(items)", cast("nodes.Expr", node.iter), nodes.Const(body_nodes, lineno=node.lineno))
        return node


def _count_expression(value: nodes.Expr) -> nodes.Expr:
    """Return an expression with the same value that counts the work of using the value. Constants are not counted."""
    return value if isinstance(value, nodes.Const) else _apply_filter("(seen)", value)


def _apply_filter(name: str, value: nodes.Expr, *arguments: nodes.Expr) -> nodes.Filter:
    """Return the syntax node that applies a filter to an expression."""
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)
