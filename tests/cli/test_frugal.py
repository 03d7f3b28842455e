"""Environment variables and modules that the command line sets or loads at startup."""

from __future__ import annotations

import os

import pytest

from runner.cli.startup import one_blas_thread
from tests.support.processes import python

NAME = "OPENBLAS_NUM_THREADS"


def test_blas_thread_limit_is_removed_from_the_environment_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with one_blas_thread():
        assert os.environ[NAME] == "1"
    assert NAME not in os.environ


def test_thread_count_set_by_the_user_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "3")
    with one_blas_thread():
        assert os.environ[NAME] == "3"
    assert os.environ[NAME] == "3"


def test_startup_skips_the_scipy_special_package_which_can_still_be_imported() -> None:
    process = python(
        "import sys\nfrom runner.cli.startup import load_scipy_with_one_thread\n"
        "from runner.statistics.intervals import t_quantile\nload_scipy_with_one_thread()\n"
        "print(any(name in sys.modules for name in ('scipy.special', 'scipy.linalg')), t_quantile(10))\n"
        "from scipy import special\nfrom scipy.optimize import brentq\n"
        "print(special.__name__, special.stdtrit(9, 0.975), special.gammaln(1), brentq(lambda x: x, -1, 2))"
    )
    assert process.returncode == 0, process.stderr
    first, second = process.stdout.splitlines()
    assert first == f"False {second.split()[1]}"
    assert second.split()[0] == "scipy.special"
