"""Checks before the first paid call that the disk has enough space for a run."""

from __future__ import annotations

import os

from runner.base.errors import RunError
from runner.results.folder import RunFolder
from runner.rollouts.estimate import answer_bytes
from runner.rollouts.plan import Plan, used_models

TABLE_COPIES = 2
"""The number of copies of an answer in the tables: one as a call, one as a message."""


def check_disk_space(plan: Plan, folder: RunFolder) -> None:
    """Check that the disk has space for the remaining answers and for the files that are built from them.

    The estimate is a lower bound. It assumes the shortest possible games, and answers as long as the word limits.

    Raises:
        RunError: the disk does not have enough space.
    """
    if not any(settings.traits.metered for settings in used_models(plan).values()):
        return
    answers = answer_bytes(plan)
    written = folder.journal.stat().st_size if folder.journal.is_file() else 0
    if answers <= written:
        return  # the answers so far are longer than estimated, so the size of the remaining answers is unknown
    fine_tune = plan.spec.experiment.fine_tune
    needed = answers - written + answers * (TABLE_COPIES + (0 if fine_tune is None else len(fine_tune.formats)))
    try:
        disk = os.statvfs(folder.path)
    except OSError as error:
        raise RunError(
            f"cannot read the free disk space of {folder.path}: {error.strerror}. Check the disk, or choose another "
            "--results DIR; no model was called"
        ) from error
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < needed:
        raise RunError(
            f"not enough space in {folder.path}: the run needs about {_format_megabytes(needed)}, but only "
            f"{_format_megabytes(free)} are free. Free some space, or choose another --results DIR; no model was called"
        )


def _format_megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
