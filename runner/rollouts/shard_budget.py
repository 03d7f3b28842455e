"""Divides the limits of a run among its shards: budget, concurrency and rates.

A shard is the part of a run's datapoints that one process plays. A share is the part of a limit that a shard gets. All
shares of a limit add up to the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.base.text import counted
from runner.models.settings import ModelSettings
from runner.spec.datasets.datapoint import Datapoint, group_datapoints
from runner.spec.datasets.shards import Shard
from runner.spec.experiment import Experiment

USD_UNITS = 1_000_000
"""The number of units of a dollar. A share of `budget.usd` is a whole number of units."""

RATES = ("requests_per_minute", "tokens_per_minute")


@dataclass(frozen=True)
class Shares:
    """The limits of a run and one shard's share of each."""

    experiment: Experiment
    shard: Shard
    sizes: Sequence[int]
    """The number of datapoints of each shard."""

    def rows(self) -> Iterator[tuple[str, float, float | None]]:
        """Yield each limit as (spec key, value in the spec, share). The share is None if the value is too small."""
        experiment = self.experiment
        yield "rollouts.concurrency", experiment.rollouts.concurrency, self._share(experiment.rollouts.concurrency)
        if experiment.budget.usd is not None:
            yield "budget.usd", experiment.budget.usd, self._usd_share(experiment.budget.usd)
        for name in ("tokens", "completions"):
            limit = getattr(experiment.budget, name)
            if limit is not None:
                yield f"budget.{name}", limit, self._share(limit)
        for group, settings in experiment.models.items():
            for name in RATES:
                rate = getattr(settings, name)
                if rate is not None:
                    yield f"models.{group}.{name}", rate, self._share(rate)

    def _share(self, limit: int) -> int | None:
        return self.shard.share(limit, self.sizes)

    def _usd_share(self, usd: float) -> float | None:
        units = math.floor(usd * USD_UNITS)
        share = self.shard.share(units if units / USD_UNITS <= usd else units - 1, self.sizes)
        return None if share is None else share / USD_UNITS

    def shard_experiment(self) -> Experiment:
        """Return the experiment with each limit replaced by the shard's share."""
        experiment, shares = self.experiment, {key: share for key, _, share in self.rows() if share is not None}
        budget: dict[str, Any] = {
            name: shares[key] for name in ("usd", "tokens", "completions") if (key := f"budget.{name}") in shares
        }
        concurrency = int(shares.get("rollouts.concurrency", 1))
        return replace(
            experiment,
            budget=replace(experiment.budget, **budget),
            rollouts=replace(experiment.rollouts, concurrency=concurrency),
            models={group: _limited_settings(group, settings, shares) for group, settings in experiment.models.items()},
        )


def _limited_settings(group: str, settings: ModelSettings, shares: Mapping[str, float]) -> ModelSettings:
    rates: dict[str, Any] = {name: int(shares[key]) for name in RATES if (key := f"models.{group}.{name}") in shares}
    return replace(settings, **rates) if rates else settings


def find_shard_problems(experiment: Experiment, points: Sequence[Datapoint], shard: Shard) -> list[str]:
    """Return all reasons why a run cannot be played in this many shards."""
    problems = list(_unsupported_settings(experiment))
    groups = len(group_datapoints(points))
    if shard.of > groups:
        unit = "groups" if any(point.group != point.id for point in points) else "datapoints"
        problems.append(
            f"{shard.of} shards of {counted(groups, unit.removesuffix('s'))}: a shard plays complete {unit}, so some "
            f"shards would be empty; use at most {groups} shards"
        )
        return problems
    for key, limit, share in Shares(experiment, shard, shard.sizes(points)).rows():
        if share is None:
            minimum = f"{shard.of / USD_UNITS:g}" if key == "budget.usd" else str(shard.of)
            problems.append(f"{key}: {limit:g} cannot be divided among {shard.of} shards; set it to {minimum} or more")
    return problems


def _unsupported_settings(experiment: Experiment) -> Iterator[str]:
    if experiment.kind == "training":
        yield (
            "a training run cannot be played in shards: each iteration trains its models on the games of all shards "
            "before the next one starts. Play a benchmark of its models in shards instead"
        )
    if experiment.kind == "tournament":
        yield (
            "a tournament cannot be played in shards, because results choose its pairings. Play it on one machine; "
            "execution.processes uses several cores"
        )
    if experiment.until is not None:
        yield (
            "until: this setting stops a run by looking at its games in one order, but a shard has only some of them. "
            "Play the run without shards, or set until=null"
        )
    if experiment.rejudge is not None:
        yield (
            "rejudge: each shard would judge the debates that the other run has when the shard starts, and these may "
            "differ between shards. Play the run without shards"
        )
