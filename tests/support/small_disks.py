"""Small file systems that tests fill up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def mount_small_disk(at: Path, kib: int = 16 << 10) -> Iterator[None]:
    """Mount a small tmpfs, which requires root."""
    at.mkdir()
    process = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", at], check=False, capture_output=True, text=True
    )
    assert process.returncode == 0, f"mounting a tmpfs needs root: {process.stderr.strip()}"
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=False)
        if os.path.ismount(at):
            subprocess.run(["umount", "-l", at], check=False)


@contextmanager
def fill_disk(disk: Path, free_bytes: int) -> Iterator[None]:
    """Fill a disk until only `free_bytes` are left."""
    filler = disk / "filler"
    remaining = shutil.disk_usage(disk).free - free_bytes
    try:
        with filler.open("wb") as file, suppress(OSError):
            for size in (1 << 20, 1 << 12):
                while remaining >= size:
                    remaining -= file.write(b"\0" * size)
                    file.flush()
        yield
    finally:
        filler.unlink()
