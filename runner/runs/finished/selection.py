"""Which run a command means; apart from the code that plays it, which `check` need not import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import UsageError


@dataclass(frozen=True)
class ReplayOf:
    """Play with another run's answers: all of them, or those of the rounds before `until_round` alone."""

    run: Path
    until_round: int | None = None

    def __post_init__(self) -> None:
        if self.until_round is not None and self.until_round < 0:
            raise UsageError(
                f"until round {self.until_round}: rounds count from 0, and those before this one are replayed; 0 asks "
                "all of them live"
            )


@dataclass(frozen=True)
class WhichRun:
    """Which run of a spec is meant; by default, its own."""

    run_id: str | None = None
    again: bool = False
    """A new one, where its own is finished."""
    replay: ReplayOf | None = None
    """One with the answers of this run."""


ITS_OWN = WhichRun()
