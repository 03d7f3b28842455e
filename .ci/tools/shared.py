"""Import path and temporary folder of the scripts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.soft_assertions import SoftAssertions as SoftAssertions  # noqa: E402, PLC0414 - after the path


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nip-run-tools-") as name:
        yield Path(name)
