"""The names of fields that leave the program (in files, databases, JSON, SQL and templates) are frozen.

`asdict` and `vars` write a class's field names, so renaming a field would change what users and other versions read.
After adding a field, or a class that is written, run `python -m tests.test_stored_names` to record its names. A name
that disappears needs a reader for the old name first.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.results.leaderboard.schema import (
    NEW_METRIC_COLUMNS,
    NEW_ROLLOUT_COLUMNS,
    NEW_RUN_COLUMNS,
)
from runner.results.table_columns import COLUMNS

ROOT = Path(__file__).parents[1]
FROZEN = Path(__file__).parent / "fixtures" / "stored_names.json"
WRITTEN_ELSEWHERE = [
    "runner.documents.releases.manifest.FileEntry",
    "runner.documents.releases.manifest.FileSource",
    "runner.documents.releases.manifest.Release",
    "runner.documents.releases.manifest.ReleaseLink",
    "runner.results.manifest.Manifest",
    "runner.results.tasks.PlayedDatapoint",
    "runner.results.leaderboard.sweep_table.SweepRow",
    "runner.results.leaderboard.sweep_table.SweepValue",
    "runner.rollouts.rollout.Rollout",
    "runner.statistics.worst_case.WorstCase",
]
"""Classes whose fields are written by another module, or by name."""
RENDERED = ("runner.server.web.views", "runner.pages.html")
"""Modules whose classes are only rendered: tests render every template with undefined names as errors."""


def import_dataclass(path: str) -> type[Any]:
    module, _, name = path.rpartition(".")
    cls: type[Any] = getattr(importlib.import_module(module), name)
    return cls


def iterate_writing_classes() -> Iterator[str]:
    """Yield the classes with a method that writes all fields."""
    for file in sorted((ROOT / "runner").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if module in RENDERED:
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and any(map(_writes_self, ast.walk(node))):
                yield f"{module}.{node.name}"


def _writes_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node) in ("asdict(self)", "vars(self)")


def find_type_checking_imports(module: str) -> dict[str, Any]:
    """Return the names that a module imports only for type checkers."""
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(importlib.import_module(module))).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for part in node.body:
                if isinstance(part, ast.ImportFrom) and part.module is not None:
                    imported_module = importlib.import_module(part.module)
                    names |= {alias.asname or alias.name: getattr(imported_module, alias.name) for alias in part.names}
    return names


def iterate_nested_dataclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield the dataclasses in the types of a dataclass's fields."""
    for hint in typing.get_type_hints(cls, localns=find_type_checking_imports(cls.__module__)).values():
        stack = [hint]
        while stack:
            current = stack.pop()
            stack += typing.get_args(current)
            if isinstance(current, type) and dataclasses.is_dataclass(current):
                yield current


def list_current_names() -> dict[str, list[str]]:
    """Return the names of all written fields and columns by class or table."""
    names = {f"table {table}": list(columns) for table, columns in COLUMNS.items()}
    names["table runs of the leaderboard"] = list(NEW_RUN_COLUMNS)
    names["table rollouts of the leaderboard"] = list(NEW_ROLLOUT_COLUMNS)
    names["table metrics of the leaderboard"] = list(NEW_METRIC_COLUMNS)
    pending = [import_dataclass(path) for path in (*WRITTEN_ELSEWHERE, *iterate_writing_classes())]
    while pending:
        cls = pending.pop()
        key = f"{cls.__module__}.{cls.__qualname__}"
        if key not in names and dataclasses.is_dataclass(cls) and cls.__module__.startswith("runner."):
            names[key] = [field.name for field in dataclasses.fields(cls)]
            pending += iterate_nested_dataclasses(cls)
    return dict(sorted(names.items()))


@pytest.mark.gate
def test_no_stored_name_disappears_or_is_added_unrecorded() -> None:
    frozen, current = json.loads(FROZEN.read_text("utf-8")), list_current_names()
    gone = {key: sorted({*names} - {*current.get(key, ())}) for key, names in frozen.items()}
    added = {key: sorted({*names} - {*frozen.get(key, ())}) for key, names in current.items()}
    assert not (missing := {key: names for key, names in gone.items() if names}), (
        f"stored names are gone, so files that have them would be misread: {missing}"
    )
    assert not (new := {key: names for key, names in added.items() if names}), (
        f"record new names with `python -m tests.test_stored_names`: {new}"
    )


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(list_current_names(), indent=1) + "\n", "utf-8")
