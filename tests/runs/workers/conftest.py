"""A test with the mark `ray` is run again by a process in a network namespace of its own, and nowhere else."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import ray_nodes
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT

SECONDS = 240


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Have the test run where Ray can listen to nobody else; there, run it."""
    if pyfuncitem.get_closest_marker("ray") is None:
        return None
    if ray_nodes.is_inside():
        ray_nodes.check_alone()
        return None
    reason = ray_nodes.missing()
    if reason is not None:
        pytest.skip(reason)
    inside = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "ray", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    with (Path(tempfile.gettempdir()) / "nip-run-tests-ray.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # a cluster at a time is what a small machine has room for
        done = subprocess.run(
            ray_nodes.in_namespace(inside), cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "1 passed" in done.stdout, done.stdout
    return True
