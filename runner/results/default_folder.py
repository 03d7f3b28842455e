"""The results folder where none is named. Apart from what reads it, so that help need not import that."""

from __future__ import annotations

import os
from pathlib import Path

from runner.base.package_data import is_folder, is_there, unusable

RESULTS = "NIP_RUN_RESULTS"
"""The environment variable that names the results folder."""


def default_results() -> str:
    """The results folder where none is given."""
    # No shell expands the `~` of a variable that a service or a file of settings gives; that of an option it does.
    return os.path.expanduser(os.environ.get(RESULTS) or "results")  # noqa: PTH111


def no_folder(text: str) -> str | None:
    """Why no folder can be at a path, which need not be there; None where one can."""
    if not text:
        return "a folder's name is empty; `.` is the folder that you are in"
    path = Path(text)
    source = f" (from {RESULTS})" if os.environ.get(RESULTS) and text == default_results() else ""
    wrong = unusable(path) or ("not a folder" if is_there(path) and not is_folder(path) else None)
    return None if wrong is None else f"no folder can be at {text!r}{source}: {wrong}"
