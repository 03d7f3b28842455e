"""The sources of nip-run's own modules that play a game, rewritten for a package of another name.

They are collected from the installed nip-run whenever an environment is written: `ROOT`, and every module of
nip-run that it imports, directly or not, also inside functions. So the package plays by the same code, without nip-run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import runner

ROOT = "runner.exports.verifiers_env.packaged_game"
"""The module that plays the games of a package."""

_PACKAGE = Path(runner.__file__).resolve().parent
_NAME = runner.__name__


def collect_sources(package: str) -> Mapping[Path, str]:
    """Return the source of each module below a package of this name, by its path in the package's folder.

    An `__init__.py` of nip-run is replaced by an empty one, since it may import more than the game needs.
    """
    sources: dict[Path, str] = {}
    names, visited = [ROOT], {ROOT}
    while names:
        path = _module_path(names.pop())
        text = (_PACKAGE / path).read_text("utf-8")
        sources[path] = _rename_imports(text, package)
        new = {name for node in _find_imports(ast.parse(text)) for name in _imported_modules(node)} - visited
        visited |= new
        names += sorted(new)
    packages = {Path(*path.parts[:depth]) for path in sources for depth in range(1, len(path.parts))}
    return dict(sorted({**{folder / "__init__.py": "" for folder in packages}, **sources}.items()))


def _module_path(name: str) -> Path:
    """Return the path of a module in nip-run's folder, if it is a module and no package."""
    return Path(*name.split(".")[1:]).with_suffix(".py")


def _is_module(name: str) -> bool:
    return "." in name and (_PACKAGE / _module_path(name)).is_file()


def _find_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield each statement that imports from nip-run when the program runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for part in child.orelse:
                yield from _find_imports(part)
        elif isinstance(child, ast.ImportFrom):
            if (child.module or "").split(".")[0] == _NAME:
                yield child
        elif isinstance(child, ast.Import):
            if any(alias.name.split(".")[0] == _NAME for alias in child.names):
                yield child
        else:
            yield from _find_imports(child)


def _imported_modules(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the modules of nip-run that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_module(alias.name))
        return
    for alias in node.names:
        submodule = f"{node.module}.{alias.name}"
        yield from (name for name in (submodule, node.module or "") if _is_module(name))


def _rename_imports(text: str, package: str) -> str:
    """Return the source with `package` instead of nip-run's name in each statement that imports from nip-run."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if any(module.split(".")[0] == _NAME for module in modules):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f" {_NAME}.", f" {package}.", 1)
    return "".join(lines)
