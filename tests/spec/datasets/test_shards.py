"""Shards: the parts that a dataset is dealt into, and each part's share of a limit."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.shards import Shard
from tests.support.processes import python
from tests.support.shards import all_shards


def points(groups: list[int]) -> list[Datapoint]:
    """Datapoints in groups of these sizes, mixed."""
    made = [
        Datapoint(f"p{group}.{index}", 0, {"question": ""}, f"g{group}")
        for group, size in enumerate(groups)
        for index in range(size)
    ]
    random.Random(1).shuffle(made)
    return made


@pytest.mark.parametrize("word", ["", "3", "0/8", "9/8", "-1/8", "3/0", "a/b", "3/8/1", "3.0/8", "1/10001", "٣/8"])
def test_what_is_no_shard_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"shards|K of N"):
        Shard.parse(word)


def test_a_shard_is_read_as_it_is_written() -> None:
    shard = Shard.parse(" 3/8")
    assert (str(shard), shard.folder, Shard.of_folder("3-of-8")) == ("3/8", "3-of-8", shard)
    assert [Shard.of_folder(name) for name in ("9-of-8", "3-of", "x", "03-of-8")] == [None] * 4


@pytest.mark.parametrize("of", [1, 2, 3, 8, 20])
def test_each_datapoint_is_in_one_shard_and_each_group_whole(of: int) -> None:
    dataset = points([1, 5, 2, 9, 1, 1, 3, 2, 7, 1] * 4)
    parts = [shard.points(dataset) for shard in all_shards(of)]
    assert sorted(point.id for point in chain(*parts)) == sorted(point.id for point in dataset)
    groups = [{point.group for point in part} for part in parts]
    assert sum(map(len, groups)) == len(set(chain(*groups)))
    assert [[point.id for point in part] for part in parts] == [
        [point.id for point in dataset if point.group in of_part] for of_part in groups
    ], "in the order of the dataset"
    sizes = [len(part) for part in parts]
    assert sizes == Shard(1, of).sizes(dataset)
    assert max(sizes) - min(sizes) <= 9, "they differ by a group at most"


def test_datapoints_of_their_own_are_dealt_in_turn() -> None:
    dataset = [Datapoint(f"p{index}", 0, {}, f"p{index}") for index in range(10)]
    assert [point.id for point in Shard(2, 4).points(dataset)] == ["p1", "p5", "p9"]


def test_a_longer_run_leaves_each_shard_what_it_has() -> None:
    dataset = sorted(points([3, 1, 4, 1, 5, 9, 2, 6]), key=lambda point: point.id)
    short = dataset[:14]  # of whole groups
    assert {point.group for point in short}.isdisjoint(point.group for point in dataset[14:])
    for shard in all_shards(3):
        had, has = ({point.id for point in shard.points(some)} for some in (short, dataset))
        assert had <= has


@pytest.mark.full
def test_the_parts_are_the_same_in_every_process() -> None:
    code = (
        "from tests.spec.datasets.test_shards import points\nfrom runner.spec.datasets.shards import Shard\n"
        "print([[p.id for p in s.points(points([2, 1, 3, 1, 1]))] for s in [Shard(n, 3) for n in (1, 2, 3)]])"
    )
    said = {python(code, PYTHONHASHSEED=seed, PYTHONPATH=".").stdout for seed in ("1", "2")}
    assert len(said) == 1
    assert "p0.0" in said.pop()


@pytest.mark.parametrize("whole", [3, 4, 7, 32, 1000, 999_983])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [10, 9, 9], [100, 1, 1], [1, 50, 7]])
def test_the_shares_of_a_limit_are_all_of_it_and_none_is_nothing(whole: int, sizes: list[int]) -> None:
    shares = [shard.share(whole, sizes) for shard in all_shards(3)]
    assert None not in shares
    assert sum(share or 0 for share in shares) == whole
    assert min(share or 0 for share in shares) >= 1


def test_a_limit_that_is_too_small_has_no_shares() -> None:
    assert [shard.share(2, [4, 4, 4]) for shard in all_shards(3)] == [None] * 3
