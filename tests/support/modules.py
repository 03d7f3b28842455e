"""The modules of the package and their syntax trees."""

from __future__ import annotations

import ast
from functools import cache

from tests.support.paths import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "runner").rglob("*.py"))
}


@cache
def tree(module: str) -> ast.Module:
    """Parse a module, once for all tests of a process; the tree must not be changed."""
    return ast.parse(FILES[module].read_text("utf-8"))


@cache
def walk(code: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree, which are collected once for all tests of a process."""
    return tuple(ast.walk(code))
