"""Tests with the fixture `ray_namespace` run in a separate process and network namespace."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import ray_cluster
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT

if ray_cluster.is_in_namespace():

    @pytest.fixture(autouse=True)
    def _unchanged_process_state() -> None:
        """Allow changes of the process: it runs one test, and Ray changes the environment and signal handlers."""


@pytest.fixture
def ray_namespace() -> None:
    """Run the test in a network namespace that isolates its Ray cluster; see `pytest_pyfunc_call`."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with `ray_namespace` in a process that has a network namespace; there, run it as it is."""
    if "ray_namespace" not in pyfuncitem.fixturenames:
        return None
    if ray_cluster.is_in_namespace():
        ray_cluster.check_only_loopback()
        return None
    reason = ray_cluster.find_missing_requirement()
    if reason is not None:
        pytest.skip(reason)
    test_command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        pyfuncitem.nodeid,
    ]
    with (Path(tempfile.gettempdir()) / "nip-run-tests-ray.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)  # a small machine has room for only one cluster at a time
        done = subprocess.run(
            ray_cluster.in_namespace(test_command),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=3 * HANG_SECONDS,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "1 passed" in done.stdout, done.stdout
    return True
