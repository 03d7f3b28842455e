"""Whether what `execution` names is installed, known before a run has a folder."""

from __future__ import annotations

from runner.spec.experiment import Execution


def check_engine(execution: Execution, *, asks: bool) -> None:
    """See that what is to play is there; a run that asks nobody needs nothing.

    Raises:
        UsageError: it is not installed.
    """
    if execution.engine == "ray" and asks:
        from runner.runs.workers.cluster.connection import ray_package  # most runs have no cluster

        ray_package()
