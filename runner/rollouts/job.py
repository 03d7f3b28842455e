"""One game to play, as a plain value."""

from __future__ import annotations

from dataclasses import dataclass

from runner.datasets.load import Datapoint


@dataclass(frozen=True, slots=True)
class Job:
    """One game to play. `index` is its place in the run's tables, nothing more."""

    index: int
    rollout_id: str
    datapoint: Datapoint
    repeat: int
    seed: int
