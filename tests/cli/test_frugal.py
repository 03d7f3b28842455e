"""What the command line leaves behind in its process's environment."""

from __future__ import annotations

import os

import pytest

from runner.cli.startup import one_blas_thread

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
