"""What a process may use that plays one shard of a run: its share of the budget, of the calls at once, of the rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.base.text import counted
from runner.models.settings import ModelSettings
from runner.spec.datasets.datapoint import Datapoint, grouped
from runner.spec.datasets.shards import Shard
from runner.spec.experiment import Experiment

USD_PARTS = 1_000_000
"""Dollars are divided in millionths."""

RATES = ("requests_per_minute", "tokens_per_minute")


@dataclass(frozen=True)
class Shares:
    """The limits of a run, as one shard has them."""

    experiment: Experiment
    shard: Shard
    sizes: Sequence[int]
    """How many datapoints each shard plays."""

    def rows(self) -> Iterator[tuple[str, float, float | None]]:
        """Each limit by its key: what the spec says, and the shard's share; None: too small to be divided."""
        experiment = self.experiment
        yield "rollouts.concurrency", experiment.rollouts.concurrency, self._of(experiment.rollouts.concurrency)
        if experiment.budget.usd is not None:
            yield "budget.usd", experiment.budget.usd, self._of_usd(experiment.budget.usd)
        for name in ("tokens", "completions"):
            most = getattr(experiment.budget, name)
            if most is not None:
                yield f"budget.{name}", most, self._of(most)
        for group, settings in experiment.models.items():
            for name in RATES:
                rate = getattr(settings, name)
                if rate is not None:
                    yield f"models.{group}.{name}", rate, self._of(rate)

    def _of(self, whole: int) -> int | None:
        return self.shard.share(whole, self.sizes)

    def _of_usd(self, usd: float) -> float | None:
        parts = math.floor(usd * USD_PARTS)
        share = self.shard.share(parts if parts / USD_PARTS <= usd else parts - 1, self.sizes)
        return None if share is None else share / USD_PARTS

    def applied(self) -> Experiment:
        """The experiment with the shard's shares in the place of its limits."""
        experiment, shares = self.experiment, {key: share for key, _, share in self.rows() if share is not None}
        budget: dict[str, Any] = {
            name: shares[key] for name in ("usd", "tokens", "completions") if (key := f"budget.{name}") in shares
        }
        concurrency = int(shares.get("rollouts.concurrency", 1))
        return replace(
            experiment,
            budget=replace(experiment.budget, **budget),
            rollouts=replace(experiment.rollouts, concurrency=concurrency),
            models={group: _limited(group, one, shares) for group, one in experiment.models.items()},
        )


def _limited(group: str, settings: ModelSettings, shares: Mapping[str, float]) -> ModelSettings:
    rates: dict[str, Any] = {name: int(shares[key]) for name in RATES if (key := f"models.{group}.{name}") in shares}
    return replace(settings, **rates) if rates else settings


def wrong_shard(experiment: Experiment, points: Sequence[Datapoint], shard: Shard) -> list[str]:
    """Why a run cannot be played in so many shards, all reasons at once."""
    wrong = list(_not_in_shards(experiment))
    groups = len(grouped(points))
    if shard.of > groups:
        what = "groups" if any(point.group != point.id for point in points) else "datapoints"
        wrong.append(
            f"{shard.of} shards of {counted(groups, what.removesuffix('s'))}: a shard has whole {what}, and some would "
            f"have none; play it in {groups} at most"
        )
        return wrong
    for key, whole, share in Shares(experiment, shard, shard.sizes(points)).rows():
        if share is None:
            least = f"{shard.of / USD_PARTS:g}" if key == "budget.usd" else str(shard.of)
            wrong.append(f"{key}: {whole:g} cannot be divided among {shard.of} shards; say at least {least}")
    return wrong


def _not_in_shards(experiment: Experiment) -> Iterator[str]:
    if experiment.kind == "training":
        yield (
            "a training run is not played in shards: each iteration's models are trained on the games of all shards "
            "before the next is played. Play a benchmark of its models in shards"
        )
    if experiment.until is not None:
        yield (
            "until: a run that stops once it is decided looks at its games in one order, after each of which it may "
            "stop; a shard knows its own alone. Play it whole, or all games in shards with until=null"
        )
    if experiment.rejudge is not None:
        yield (
            "rejudge: the debates are those that the other run has when a shard begins, which may grow until the next "
            "one does; have them judged whole"
        )
