"""What came from elsewhere names no file outside the folder that it was unpacked into, but those of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner import builtin
from runner.documents.layered import Layered
from runner.documents.plain import KeyPath
from runner.errors import Problem, UsageError
from runner.spec.origin import fetched_folder

_PATHS: tuple[KeyPath, ...] = (
    ("dataset", "path"), ("prompts",), ("protocol", "use"), ("cache",), ("rejudge", "run"), ("until", "compare"),
    ("models", "*", "run"), ("models", "*", "from_run"), ("training", "rerun_tests", "run"),
)  # fmt: skip
"""The keys whose values are paths, or may be; `*` is any one name."""


def leads_out(named: str, found: Path, folder: Path) -> Path | None:
    """The folder of what came from elsewhere that a file in it, which says `named` in `folder`, leads out of."""
    home = fetched_folder([folder])
    if home is None or not named:
        return None
    try:
        real = found.resolve()
    except (OSError, RuntimeError, ValueError):
        return home
    return None if any(real.is_relative_to(root) for root in (home, *builtin.folders())) else home


def check_inside(named: str, found: Path, folder: Path) -> None:
    """Raises UsageError where a file that came from elsewhere leads out of its folder."""
    home = leads_out(named, found, folder)
    if home is not None:
        raise UsageError(_words(named, home))


def confined_problems(layered: Layered) -> Iterator[Problem]:
    """The paths of a spec that lead out of the folder that the file which says them came in."""
    for pattern in _PATHS:
        for at, value in _values(layered.data, pattern, ()):
            if not isinstance(value, str) or not layered.is_said_by_a_file(at):
                continue
            folder = layered.folder(at)
            found = builtin.find(value, folder) or folder / value
            if "://" not in value and (home := leads_out(value, found, folder)):
                yield Problem(
                    layered.place(at), ".".join(map(str, at)), _words(value, home), "it leads out of its folder"
                )


def _words(named: str, home: Path) -> str:
    return f"{named!r} leads out of {str(home)!r}, which came from elsewhere; a file in there may name no other"


def _values(data: Any, pattern: KeyPath, at: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not pattern:
        yield at, data
    elif isinstance(data, dict):
        for name in list(data) if pattern[0] == "*" else [pattern[0]]:
            if name in data:
                yield from _values(data[name], pattern[1:], (*at, name))
