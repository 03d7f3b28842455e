"""The work of a rendering, counted: what takes longer the larger its values are is charged, up to a bound.

Seconds would tell one machine from another; a count refuses the same templates everywhere. A compiled template cannot
be watched from outside, so the counting is put into its syntax tree, as filters whose names no template can spell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

MAX_RENDERED = 4 << 20
"""Characters that a template renders to, or that a text in it has, at most."""
MAX_WORK = 32 << 20
"""Characters that one rendering may handle, those it loops over and puts through filters included."""
MAX_STRIPPED = 64
"""How many different characters `trim` may take away."""
TOO_LONG = f"renders to more than {MAX_RENDERED >> 20} MiB"

BUDGET = "the work of this rendering"
"""Where a rendering keeps its count of work, among its variables: no template can spell this name."""


class Work:
    """What a rendering has done so far, in characters handled; the same on every machine, unlike seconds."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def charge(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise SecurityError("does too much work; loop over less, or use fewer filters")

    def size(self, value: Any) -> int:
        """The characters of a value as text, roughly; looking is work, too."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if isinstance(value, (list, tuple)):
            self.charge(16 * len(value))
            return sum(self.size(item) + 2 for item in value) + 2
        return 24

    def text(self, value: Any) -> str:
        """A value as text, unless that is longer than any text may be."""
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
"""How much more than others these do with a character."""


def counted_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja2's that counts what it is given."""
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
    """Jinja2's `join`, of a list alone: joining the letters of a text is how a template grows without bound."""
    if not isinstance(values, (list, tuple)):
        raise SecurityError("join takes a list")
    work = _work(context)
    size = work.size(values) + len(values) * work.size(between)
    if size > MAX_RENDERED:
        raise SecurityError(TOO_LONG)
    work.charge(size)
    return work.text(between).join(map(str, values))


@pass_context
def trim(context: Context, value: Any, chars: Any = None) -> str:
    """Jinja2's `trim`, of a bounded number of different characters: each that is stripped is looked for among them."""
    work: Work = context.parent[BUDGET]
    text = value if type(value) is str else work.text(value)
    work.charge(len(text))
    if chars is None or chars == "\n":  # as nearly all prompts have it
        return text.strip(chars)
    if not isinstance(chars, str):
        raise SecurityError("trim takes a text of characters")
    strip = "".join(dict.fromkeys(work.text(chars)))
    if len(strip) > MAX_STRIPPED:
        raise SecurityError(f"trim takes at most {MAX_STRIPPED} different characters")
    work.charge(len(strip) * len(text))
    return text.strip(strip)


@pass_context
def indent(context: Context, text: Any, width: Any = 4, first: bool = False) -> str:
    """Jinja2's `indent`, by a number of blanks."""
    if not isinstance(width, int) or width < 0:
        raise SecurityError("indent takes a number of blanks")
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
    """What stands in the output; whoever renders counts the texts."""
    if type(value) is str or isinstance(value, Undefined):
        return value
    return _work(context).text(value)


@pass_context
def _seen(context: Context, value: Any) -> Any:
    """A value that is compared or tested."""
    if type(value) is int:
        return value
    work = _work(context)
    work.charge(work.size(value))
    return value


@pass_context
def _concat(context: Context, values: Sequence[Any]) -> str:
    """`~`: texts one after the other."""
    work = _work(context)
    size = sum(work.size(value) for value in values)
    if size > MAX_RENDERED:
        raise SecurityError(TOO_LONG)
    return "".join([work.text(value) for value in values])


@pass_context
def _sum(context: Context, one: Any, other: Any) -> Any:
    """`+`: of numbers, texts and lists."""
    work = _work(context)
    size = work.size(one) + work.size(other)
    if size > MAX_RENDERED:
        raise SecurityError(TOO_LONG)
    work.charge(size)
    return one + other


@pass_context
def _items(context: Context, values: Any, nodes_in_loop: int) -> Iterator[Any]:
    """What a loop goes over; each time costs what stands in it."""
    work = _work(context)
    for item in values:
        work.charge(16 * nodes_in_loop)
        yield item


COUNTING_FILTERS = {"(text)": _as_text, "(seen)": _seen, "(concat)": _concat, "(sum)": _sum, "(items)": _items}
"""Filters that only `Counting` puts into a template: no template can spell their names."""


_TEXT_FILTERS = ("trim", "upper", "lower", "title", "capitalize", "join", "indent", "(concat)")
"""What these give is a text already."""


class Counting(NodeTransformer):
    """Puts the counting of work around all that takes longer the larger its values are."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - by the name of its node
        self.generic_visit(node)
        for index, child in enumerate(node.nodes):
            is_text = isinstance(child, nodes.Filter) and child.name in _TEXT_FILTERS
            if not is_text and not isinstance(child, (nodes.TemplateData, nodes.Const)):
                node.nodes[index] = _filtered("(text)", child)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - by the name of its node
        self.generic_visit(node)
        return _filtered("(concat)", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802 - by the name of its node
        self.generic_visit(node)
        return _filtered("(sum)", node.left, node.right)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - by the name of its node
        self.generic_visit(node)
        node.expr = _watched(node.expr)
        for operand in node.ops:
            operand.expr = _watched(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802 - by the name of its node
        self.generic_visit(node)
        if node.name not in ("defined", "undefined"):
            node.node = _watched(node.node)
            node.args = [_watched(argument) for argument in node.args]
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - by the name of its node
        inside = 1 + sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        node.iter = _filtered("(items)", cast("nodes.Expr", node.iter), nodes.Const(inside, lineno=node.lineno))
        return node


def _watched(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _filtered("(seen)", value)


def _filtered(name: str, value: nodes.Expr, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)
