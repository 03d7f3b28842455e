"""The state of the test process that all of its tests share. A test that leaves it changed can fail a later test.

Which tests share a process depends on how fast each worker is, so such a failure looks like one of a busy machine.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

LIBRARIES = ("PYTEST_", "HF_HUB_", "MLFLOW_", "KMP_", "TOKENIZERS_", "TORCH")
"""Beginnings of variables that pytest sets, and that the program sets for good when it imports a library."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def process_state() -> dict[str, Any]:
    """Return what a test must leave as it found it, by name."""
    logger = logging.getLogger("nip_run")
    return {
        "the logger nip_run": (logger.level, logger.propagate, tuple(logger.handlers)),
        "the current folder": Path.cwd(),
        "the signal handlers": tuple(map(signal.getsignal, SIGNALS)),
        "os.environ": {name: value for name, value in os.environ.items() if not name.startswith(LIBRARIES)},
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Name what differs, with both values."""
    return [f"{name}: {before[name]} became {after[name]}" for name in before if before[name] != after[name]]


def restore_ctrl_c() -> None:
    """Let this process and its children receive SIGINT: a shell makes what it starts in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
