"""Checks of `execution` before a run has a folder, and the Ray connection that the runs of a command share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from runner.base.errors import UsageError
from runner.results.leaderboard.results_folder import Results
from runner.spec.experiment import Execution

_UNPACKED = ("runtime_resources", "working_dir_files")
"""The folders of a Ray session that contain the unpacked working folders of jobs."""


def check_engine(execution: Execution, *, asks: bool) -> None:
    """Check that the engine is installed, if the run calls models.

    Raises:
        UsageError: it is not installed.
    """
    if execution.engine == "ray" and asks:
        from runner.runs.workers.cluster.connection import ray_package  # most runs have no cluster

        ray_package()


def check_results_are_permanent(results: Results) -> None:
    """Check that runs are not written to a folder that Ray deletes, as in `ray job submit --working-dir`.

    Raises:
        UsageError: they would be.
    """
    parts = results.path.resolve().parts
    if _UNPACKED in pairwise(parts):
        raise UsageError(
            f"{results.path} is in a folder that Ray unpacked for a job and will delete after it, with all runs in it; "
            "use --results DIR with a permanent folder"
        )


@contextmanager
def shared_engine(executions: Iterable[Execution]) -> Iterator[None]:
    """Share the Ray connection that a run opens with the runs after it, until the block ends."""
    if all(execution.engine != "ray" for execution in executions):
        yield
        return
    from runner.runs.workers.cluster.connection import shared_connection

    with shared_connection():
        yield
