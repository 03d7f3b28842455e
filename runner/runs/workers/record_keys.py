"""Finds the game that a record of the journal belongs to, so that a game can be leased together with its records.

The writer and the workers use the same keys. A sample is the position of one answer in the run: datapoint, repeat,
round, agent and attempt.
"""

from __future__ import annotations

from runner.rollouts.job import Job
from runner.rollouts.plan import Plan

Game = tuple[object, ...]
"""The key of a game or tree or, if games share calls, of all games of a datapoint."""


def game_of_sample(plan: Plan, datapoint: str, repeat: int) -> Game:
    """Return the key of the game that a sample belongs to."""
    if plan.shares_between_games:
        return (datapoint,)
    variants = len(plan.variants)
    branches = 1 if plan.shape is None else plan.shape.branches
    return datapoint, repeat // variants // branches, repeat % variants


def game_of_job(plan: Plan, job: Job) -> Game:
    """Return the key of the game of a job."""
    return game_of_sample(plan, job.datapoint.id, job.number)
