"""Room on the disk for what a run will leave, looked at before anything is paid for."""

from __future__ import annotations

import os

from runner.base.errors import RunError
from runner.results.folder import RunFolder
from runner.rollouts.estimate import answer_bytes
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import used_models

TABLES = 2
"""How often an answer stands in the unsealed tables, as the call's and as the message; sealed they are compressed."""


def check_room(plan: Plan, folder: RunFolder) -> None:
    """See that the disk has room for the answers that are still to be paid for, and for what is made from them.

    The estimate is a low one: of the shortest games, with answers of the length that the agents are asked for.

    Raises:
        RunError: it has not.
    """
    if not any(settings.traits.metered for settings in used_models(plan).values()):
        return
    said = answer_bytes(plan)
    written = folder.journal.stat().st_size if folder.journal.is_file() else 0
    if said <= written:
        return  # what is left to pay for is unknown, and has room where the rest had
    fine_tune = plan.spec.experiment.fine_tune
    needed = said - written + said * (TABLES + (0 if fine_tune is None else len(fine_tune.formats)))
    try:
        disk = os.statvfs(folder.path)
    except OSError as error:
        raise RunError(f"cannot look at {folder.path}: {error.strerror}") from error
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < needed:
        raise RunError(
            f"not enough space in {folder.path}: the run needs about {_megabytes(needed)}, and {_megabytes(free)} are "
            "free. Make room, or choose another --results; nothing was called"
        )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
