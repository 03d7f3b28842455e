"""Which game a record of the journal belongs to, so that it can be sent along with it."""

from __future__ import annotations

from runner.rollouts.job import Job
from runner.rollouts.plan import Plan

Game = tuple[object, ...]


def game_of_sample(plan: Plan, datapoint: str, repeat: int) -> Game:
    """The game, or the tree, that a sample is of; where games share calls, all games of its datapoint."""
    if plan.shares_between_games:
        return (datapoint,)
    variants = len(plan.variants)
    branches = 1 if plan.shape is None else plan.shape.branches
    return datapoint, repeat // variants // branches, repeat % variants


def game_of_job(plan: Plan, job: Job) -> Game:
    """The same of a job."""
    return game_of_sample(plan, job.datapoint.id, job.number)
