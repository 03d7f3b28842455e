"""The results folder of commands without `--results`. This module imports little, since command-line help needs it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from runner.base.package_data import exists, is_folder, why_unusable
from runner.base.text import path_argument

RESULTS_VARIABLE = "NIP_RUN_RESULTS"
"""The environment variable that names the results folder."""


def default_results() -> str:
    """Return the results folder for commands without `--results`."""
    # Shells expand `~` in options, but not in variables that a service or a settings file sets.
    return os.path.expanduser(os.environ.get(RESULTS_VARIABLE) or "results")  # noqa: PTH111


def results_arguments(folder: Path) -> list[str]:
    """Return the arguments that select a results folder; none for `results`, unless a variable names another."""
    is_default = folder.as_posix() == "results" == default_results()
    return [] if is_default else ["--results", path_argument(folder)]


def results_option_text(folder: Path) -> str:
    """Return the end of a shell command that selects a results folder; empty for the default folder."""
    return "".join(f" {shlex.quote(argument)}" for argument in results_arguments(folder))


def folder_problem(text: str) -> str | None:
    """Return an error message if a path of the user is not a folder and cannot become one; else None."""
    if not text:
        return "the folder name is empty; write `.` for the current folder"
    path = Path(text)
    source = f" (from {RESULTS_VARIABLE})" if os.environ.get(RESULTS_VARIABLE) and text == default_results() else ""
    problem = why_unusable(path) or ("not a folder" if exists(path) and not is_folder(path) else None)
    return None if problem is None else f"cannot use {text!r}{source} as a folder: {problem}; choose another"
