"""The name of `runner.rollouts.agents` before 1.0, which works until 2.0 with a warning."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    value = getattr(import_module("runner.rollouts.agents"), name)
    warnings.warn(
        "runner.agents is now runner.rollouts.agents; the old name works until 2.0", DeprecationWarning, stacklevel=2
    )
    return value
