"""The results folder where none is named. Apart from what reads it, so that help need not import that."""

from __future__ import annotations

import os
from pathlib import Path

from runner.builtin import is_folder, is_there, unusable

RESULTS = "NIP_RUN_RESULTS"
"""The environment variable that names the results folder."""


def default_results() -> str:
    """The results folder where nobody says one."""
    return os.environ.get(RESULTS) or "results"


def no_folder(text: str) -> str | None:
    """Why no folder can be at a path, which need not be there; None where one can."""
    path = Path(text)
    source = f" (from {RESULTS})" if text == os.environ.get(RESULTS) else ""
    wrong = unusable(path) or ("not a folder" if is_there(path) and not is_folder(path) else None)
    return None if wrong is None else f"no folder can be at {text!r}{source}: {wrong}"
