"""The state of the test process, which all of its tests share. A test that leaves it changed can fail a later test.

Which tests share a process depends on the speed of each worker, so such a failure is hard to reproduce.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

LIBRARIES = ("PYTEST_", "HF_HUB_", "MLFLOW_", "KMP_", "TOKENIZERS_", "TORCH")
"""Prefixes of environment variables that pytest sets, or that libraries set when they are imported."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def read_process_state() -> dict[str, Any]:
    """Return the values that a test must not leave changed, by name."""
    logger = logging.getLogger("nip_run")
    return {
        "the logger nip_run": (logger.level, logger.propagate, tuple(logger.handlers)),
        "the current folder": Path.cwd(),
        "the signal handlers": tuple(map(signal.getsignal, SIGNALS)),
        "os.environ": {name: value for name, value in os.environ.items() if not name.startswith(LIBRARIES)},
    }


def describe_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a message for each value that differs."""
    return [f"{name}: {before[name]} became {after[name]}" for name in before if before[name] != after[name]]


def restore_ctrl_c() -> None:
    """Let this process and its children receive SIGINT, which a shell makes background processes ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
