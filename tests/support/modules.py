"""The modules of the package, and what Python makes of each file."""

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
    """A module's syntax tree, which nobody changes: it is parsed once for all tests of the shape."""
    return ast.parse(FILES[module].read_text("utf-8"))
