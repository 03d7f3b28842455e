"""Checks the spec key `execution` before a run has a folder, and shares one Ray connection among a command's runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from runner.base.errors import UsageError
from runner.results.leaderboard.results_folder import Results
from runner.spec.experiment import Execution

_RAY_JOB_FOLDER = ("runtime_resources", "working_dir_files")
"""The last two folders of the path where a Ray session unpacks the working folders of its jobs."""


def check_engine(execution: Execution) -> None:
    """Check that the engine of `execution` is installed.

    Raises:
        UsageError: the engine is not installed.
    """
    if execution.engine == "ray":
        from runner.runs.workers.cluster.connection import ray_package  # most runs have no cluster

        ray_package()


def check_results_are_permanent(results: Results) -> None:
    """Check that the results are not in a folder that Ray deletes after a job (`ray job submit --working-dir`).

    Raises:
        UsageError: the results are in such a folder.
    """
    parts = results.path.resolve().parts
    if _RAY_JOB_FOLDER in pairwise(parts):
        raise UsageError(
            f"{results.path} is in the working folder of a Ray job, which Ray deletes with all runs in it when the job "
            "ends; use --results DIR with a permanent folder"
        )


@contextmanager
def shared_engine(executions: Iterable[Execution]) -> Iterator[None]:
    """Keep the Ray connection of the first run in this block open for the other runs."""
    if all(execution.engine != "ray" for execution in executions):
        yield
        return
    from runner.runs.workers.cluster.connection import shared_connection

    with shared_connection():
        yield
