"""Import path, temporary folder and environments of the scripts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
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


def create_environment(folder: Path, *packages: str) -> Path:
    """Create a Python environment with packages that need other versions than nip-run, and return its interpreter."""
    venv.create(folder, with_pip=True)
    subprocess.run([str(folder / "bin" / "pip"), "install", "-q", *packages], check=True)
    return folder / "bin" / "python"
