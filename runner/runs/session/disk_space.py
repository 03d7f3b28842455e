"""The check of disk space before anything is paid for."""

from __future__ import annotations

import os

from runner.base.errors import RunError
from runner.results.folder import RunFolder
from runner.rollouts.estimate import answer_bytes
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import used_models

TABLES = 2
"""How often an answer occurs in the unsealed tables: as a call and as a message. Sealed tables are compressed."""


def check_disk_space(plan: Plan, folder: RunFolder) -> None:
    """Check that the disk has space for the remaining answers and for the files that are built from them.

    The estimate is a lower bound: for the shortest games, with answers of the length of the word limits.

    Raises:
        RunError: the disk does not have enough space.
    """
    if not any(settings.traits.metered for settings in used_models(plan).values()):
        return
    answers = answer_bytes(plan)
    written = folder.journal.stat().st_size if folder.journal.is_file() else 0
    if answers <= written:
        return  # the size of the remaining answers is unknown, but most of the run has fit on the disk
    fine_tune = plan.spec.experiment.fine_tune
    needed = answers - written + answers * (TABLES + (0 if fine_tune is None else len(fine_tune.formats)))
    try:
        disk = os.statvfs(folder.path)
    except OSError as error:
        raise RunError(f"cannot read the free space of {folder.path}: {error.strerror}") from error
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < needed:
        raise RunError(
            f"not enough space in {folder.path}: the run needs about {_megabytes(needed)}, but only {_megabytes(free)} "
            "are free. Free some space, or choose another --results; no model was called"
        )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
