"""Trees of responses into preferences."""

from __future__ import annotations

from collections.abc import Iterator

from runner.datasets.examples import Preference, Source
from runner.errors import UsageError
from runner.rundir import RunFolder


def preferences(folder: RunFolder) -> Iterator[tuple[str, Preference, Source]]:
    """Every preference of a run, with the agent whose answers it compares.

    Raises:
        UsageError: the run holds no tree of responses. None does yet: games are played one answer at a time.
    """
    raise UsageError(f"{folder.run_id}: this run holds no tree of responses, so there are no preferences")
