"""The results folder of commands without `--results`. This module imports little, since command-line help needs it."""

from __future__ import annotations

import os
from pathlib import Path

from runner.base.package_data import exists, is_folder, why_unusable

RESULTS_VARIABLE = "NIP_RUN_RESULTS"
"""The environment variable that names the results folder."""


def default_results() -> str:
    """Return the results folder for commands without `--results`."""
    # Shells expand `~` in options, but not in variables that a service or a settings file sets.
    return os.path.expanduser(os.environ.get(RESULTS_VARIABLE) or "results")  # noqa: PTH111


def folder_problem(text: str) -> str | None:
    """Return an error message if a path of the user is not a folder and cannot become one; else None."""
    if not text:
        return "the folder name is empty; write `.` for the current folder"
    path = Path(text)
    source = f" (from {RESULTS_VARIABLE})" if os.environ.get(RESULTS_VARIABLE) and text == default_results() else ""
    problem = why_unusable(path) or ("not a folder" if exists(path) and not is_folder(path) else None)
    return None if problem is None else f"cannot use {text!r}{source} as a folder: {problem}; choose another"
