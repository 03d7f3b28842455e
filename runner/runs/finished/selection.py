"""The run that a command selects. This module imports little, because `check` needs it but plays no games."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import UsageError


@dataclass(frozen=True)
class ReplayOf:
    """A replay of another run's answers: all of them, or only those of the rounds before `until_round`."""

    run: Path
    until_round: int | None = None

    def __post_init__(self) -> None:
        if self.until_round is not None and self.until_round < 0:
            raise UsageError(
                f"until round {self.until_round}: rounds count from 0, and rounds before the given one are replayed; "
                "use 0 to play all rounds live"
            )


@dataclass(frozen=True)
class RunSelection:
    """The selected run of a spec; by default, the run with the spec's own id."""

    run_id: str | None = None
    again: bool = False
    """Whether to start a new run if the selected run is finished."""
    replay: ReplayOf | None = None
    """The run whose answers are replayed, if any."""


OWN_RUN = RunSelection()


def is_whole_replay(replay: ReplayOf | None) -> bool:
    """Return whether a replay has all answers of a run, so that no model is called."""
    return replay is not None and replay.until_round is None
