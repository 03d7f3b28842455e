"""What the command line leaves behind in its process's environment."""

from __future__ import annotations

import os

import pytest

from runner.cli.startup import one_blas_thread
from tests.support.processes import python

NAME = "OPENBLAS_NUM_THREADS"


def test_processes_that_a_run_starts_may_have_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with one_blas_thread():
        assert os.environ[NAME] == "1"
    assert NAME not in os.environ


def test_the_number_of_threads_that_a_user_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "3")
    with one_blas_thread():
        assert os.environ[NAME] == "3"
    assert os.environ[NAME] == "3"


def test_a_run_loads_only_the_functions_of_scipy_special_and_the_package_still_works() -> None:
    done = python(
        "import sys\nfrom runner.cli.startup import load_scipy_with_one_thread\n"
        "from runner.statistics.intervals import t_quantile\nload_scipy_with_one_thread()\n"
        "print(any(name in sys.modules for name in ('scipy.special', 'scipy.linalg')), t_quantile(10))\n"
        "from scipy import special\nfrom scipy.optimize import brentq\n"
        "print(special.__name__, special.stdtrit(9, 0.975), special.gammaln(1), brentq(lambda x: x, -1, 2))"
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"False {second.split()[1]}"
    assert second.split()[0] == "scipy.special"
