"""Programs in answers of models, and how much an edited program differs from the original."""

from __future__ import annotations

import ast
import builtins
import textwrap
import warnings
from collections.abc import Iterator
from os.path import commonprefix
from typing import Final, NamedTuple

import numpy as np

from runner.base.text import encoding_problem
from runner.curation.generation.coding_problems import MAX_PROGRAM

_FENCES: Final = ("```", "~~~")
MAX_CELLS: Final = 50_000_000
"""Maximum number of cells of the table of an edit distance, which takes about a second."""


class EditSize(NamedTuple):
    """The difference between an original and an edited program."""

    distance: int
    """The Levenshtein distance in characters."""
    share: float
    """The distance, divided by the length of the longer program."""
    first_line: int
    """The first line of the edited program that differs, from 1."""
    position: float
    """The start of the difference, as a share of the original's lines from 0 to 1."""


def find_program(answer: str) -> str | None:
    """Return the program in an answer; None if there is none.

    It is the last code block that is marked as Python, or else the last one that compiles, or else the last one.
    Without code blocks, it is the whole answer.
    """
    blocks = list(_code_blocks(answer)) or [("", answer)]
    python = [text for language, text in blocks if language.lower().startswith("py")]
    texts = python or [text for _, text in blocks if describe_program(text) is not None] or [blocks[-1][1]]
    source = texts[-1].strip("\n")
    is_usable = source.strip() and len(source) <= MAX_PROGRAM and encoding_problem(source) is None
    return f"{source}\n" if is_usable else None


def _code_blocks(answer: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each complete code block."""
    language: str | None = None
    lines: list[str] = []
    for line in answer.splitlines():
        if not line.strip().startswith(_FENCES):
            lines.append(line)
        elif language is None:
            language, lines = line.strip()[3:].strip(), []
        else:
            yield language, textwrap.dedent("\n".join(lines))
            language = None


class ProgramForm(NamedTuple):
    """Two texts that stand for a program, to find programs that are the same."""

    tree: str
    """Programs that differ only in layout, comments and docstrings have the same."""
    shape: str
    """Programs that differ only in these and in the names that they define have the same."""


def describe_program(source: str) -> ProgramForm | None:
    """Return the form of a program; None if it does not compile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences
            tree = ast.parse(source)
            compile(tree, "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            _remove_docstring(node)
    return ProgramForm(_flatten(tree), _describe_shape(tree))


def _remove_docstring(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            node.body = rest or [ast.Pass()]


def _describe_shape(tree: ast.Module) -> str:
    """Number the names that a program defines, which changes the tree, and return it as a text."""
    numbers = {name: f"name{i}" for i, name in enumerate(_defined_names(tree))}
    for node in ast.walk(tree):
        for field in _NAME_FIELDS:
            name = getattr(node, field, None)
            if isinstance(name, str) and name in numbers:
                setattr(node, field, numbers[name])
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = [numbers.get(name, name) for name in node.names]
    return _flatten(tree)


def _flatten(tree: ast.AST) -> str:
    """Return the nodes of a tree as a text. Unlike `ast.dump`, it does not recurse, since a program may be deep."""
    parts: list[str] = []
    stack: list[object] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, ast.AST):
            parts.append(type(item).__name__)
            stack += [value for _, value in ast.iter_fields(item)]
        elif isinstance(item, list):
            parts.append(f"[{len(item)}]")
            stack += item
        else:
            parts.append(hex(item) if isinstance(item, int) else repr(item))  # Python prints no very large integer
    return " ".join(parts)


_NAME_FIELDS: Final = ("id", "arg", "name", "asname")


def _defined_names(tree: ast.Module) -> dict[str, None]:
    """Return the names that a program binds, apart from builtins, in the order of its tree."""
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, ast.arg):
            names[node.arg] = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name] = None
        elif isinstance(node, ast.alias) and node.asname is not None:
            names[node.asname] = None
    return {name: None for name in names if not hasattr(builtins, name)}


def measure_edit(original: str, edited: str) -> EditSize:
    """Return how much an edited program differs from the original."""
    distance = edit_distance(original, edited)
    lines, edited_lines = original.splitlines(), edited.splitlines()
    pairs = enumerate(zip(lines, edited_lines, strict=False))
    first = next((i for i, (old, new) in pairs if old != new), min(len(lines), len(edited_lines)))
    share = distance / max(len(original), len(edited), 1)
    return EditSize(distance, share, first + 1, first / max(len(lines), 1))


def edit_distance(first: str, second: str) -> int:
    """Return the Levenshtein distance of two texts: the fewest characters to insert, delete or replace.

    If two long texts have little in common at their ends, return the length of the longer rest, an upper bound.
    """
    start = len(commonprefix([first, second]))  # noqa: RUF071 - texts, not paths
    first, second = first[start:][::-1], second[start:][::-1]
    end = len(commonprefix([first, second]))  # noqa: RUF071 - texts, not paths
    first, second = first[end:], second[end:]
    if not first or not second:
        return len(first) + len(second)
    shorter, longer = sorted((first, second), key=len)
    if len(shorter) * len(longer) > MAX_CELLS:
        return len(longer)
    codes = np.frombuffer(longer.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    positions = np.arange(len(longer) + 1)
    row = positions.copy()
    for i, character in enumerate(shorter, 1):
        costs = np.minimum(row[1:] + 1, row[:-1] + (codes != ord(character)))
        costs = np.concatenate(([i], costs))
        # A row's insertions depend on each other: the running minimum of cost minus position solves them at once.
        row = np.minimum.accumulate(costs - positions) + positions
    return int(row[-1])
