"""Shards: the division of a dataset, and each shard's share of a limit."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.shards import Shard
from tests.support.processes import python
from tests.support.shards import all_shards


def make_points(group_sizes: list[int]) -> list[Datapoint]:
    """Return datapoints in groups of these sizes, in random order."""
    result = [
        Datapoint(f"p{group}.{index}", 0, {"question": ""}, f"g{group}")
        for group, size in enumerate(group_sizes)
        for index in range(size)
    ]
    random.Random(1).shuffle(result)
    return result


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "-1/8", "3/0", "a/b", "3/8/1", "3.0/8", "1/10001", "٣/8"])
def test_invalid_shard_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"shards|K of N"):
        Shard.parse(text)


def test_shard_text_and_folder_name_parse_back() -> None:
    shard = Shard.parse(" 3/8")
    assert (str(shard), shard.folder, Shard.of_folder("3-of-8")) == ("3/8", "3-of-8", shard)
    assert [Shard.of_folder(name) for name in ("9-of-8", "3-of", "x", "03-of-8")] == [None] * 4


@pytest.mark.parametrize("count", [1, 2, 3, 8, 20])
def test_each_datapoint_is_in_one_shard_and_groups_are_not_split(count: int) -> None:
    dataset = make_points([1, 5, 2, 9, 1, 1, 3, 2, 7, 1] * 4)
    parts = [shard.points(dataset) for shard in all_shards(count)]
    assert sorted(point.id for point in chain(*parts)) == sorted(point.id for point in dataset)
    groups = [{point.group for point in part} for part in parts]
    assert sum(map(len, groups)) == len(set(chain(*groups)))
    assert [[point.id for point in part] for part in parts] == [
        [point.id for point in dataset if point.group in part_groups] for part_groups in groups
    ], "in the order of the dataset"
    sizes = [len(part) for part in parts]
    assert sizes == Shard(1, count).sizes(dataset)
    assert max(sizes) - min(sizes) <= 9, "they differ by a group at most"


def test_datapoints_without_groups_are_assigned_in_turn() -> None:
    dataset = [Datapoint(f"p{index}", 0, {}, f"p{index}") for index in range(10)]
    assert [point.id for point in Shard(2, 4).points(dataset)] == ["p1", "p5", "p9"]


def test_longer_run_keeps_the_datapoints_of_each_shard() -> None:
    dataset = sorted(make_points([3, 1, 4, 1, 5, 9, 2, 6]), key=lambda point: point.id)
    short = dataset[:14]  # contains only whole groups
    assert {point.group for point in short}.isdisjoint(point.group for point in dataset[14:])
    for shard in all_shards(3):
        points_of_short_run, points_of_long_run = (
            {point.id for point in shard.points(selection)} for selection in (short, dataset)
        )
        assert points_of_short_run <= points_of_long_run


@pytest.mark.full
def test_shards_are_the_same_in_every_process() -> None:
    code = (
        "from tests.spec.datasets.test_shards import make_points\nfrom runner.spec.datasets.shards import Shard\n"
        "print([[p.id for p in s.points(make_points([2, 1, 3, 1, 1]))] for s in [Shard(n, 3) for n in (1, 2, 3)]])"
    )
    outputs = {python(code, PYTHONHASHSEED=seed, PYTHONPATH=".").stdout for seed in ("1", "2")}
    assert len(outputs) == 1
    assert "p0.0" in outputs.pop()


@pytest.mark.parametrize("limit", [3, 4, 7, 32, 1000, 999_983])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [10, 9, 9], [100, 1, 1], [1, 50, 7]])
def test_shares_of_a_limit_sum_to_it_and_none_is_zero(limit: int, sizes: list[int]) -> None:
    shares = [shard.share(limit, sizes) for shard in all_shards(3)]
    assert None not in shares
    assert sum(share or 0 for share in shares) == limit
    assert min(share or 0 for share in shares) >= 1


def test_limit_below_the_number_of_shards_has_no_shares() -> None:
    assert [shard.share(2, [4, 4, 4]) for shard in all_shards(3)] == [None] * 3
