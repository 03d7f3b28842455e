"""What `execution` needs before a run has a folder, and what the runs of one command share of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from runner.base.errors import UsageError
from runner.results.leaderboard.results_folder import Results
from runner.spec.experiment import Execution

_UNPACKED = ("runtime_resources", "working_dir_files")
"""Folders of a Ray session below which it unpacks the working folders of jobs."""


def check_engine(execution: Execution, *, asks: bool) -> None:
    """See that what is to play is there; a run that asks nobody needs nothing.

    Raises:
        UsageError: it is not installed.
    """
    if execution.engine == "ray" and asks:
        from runner.runs.workers.cluster.connection import ray_package  # most runs have no cluster

        ray_package()


def check_stays(results: Results) -> None:
    """See that runs are not written where Ray deletes them, as within `ray job submit --working-dir`.

    Raises:
        UsageError: they would be.
    """
    parts = results.path.resolve().parts
    if _UNPACKED in pairwise(parts):
        raise UsageError(
            f"{results.path} is in a folder that Ray unpacked for a job and deletes some time after it, with the runs "
            "in it; --results DIR names a folder that stays"
        )


@contextmanager
def engine_kept(executions: Iterable[Execution]) -> Iterator[None]:
    """While this lasts, a Ray that one run has started or reached plays those after it, too."""
    if all(execution.engine != "ray" for execution in executions):
        yield
        return
    from runner.runs.workers.cluster.connection import shared_connection

    with shared_connection():
        yield
