"""Lists of shards of a run."""

from __future__ import annotations

from runner.spec.datasets.shards import Shard


def all_shards(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(1, count + 1)]
