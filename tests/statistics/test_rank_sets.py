"""Confidence sets of ranks, computed from pairwise tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from runner.statistics.rank_sets import MAX_PAIRWISE, PAIR_LEVEL, rank_sets
from runner.statistics.sign_flip import FLIPS, sign_flip


def test_systems_that_no_test_separates_share_ranks() -> None:
    wrong = {"best": 0, "near": 2, "far": 20, "farther": 22}

    def p_values(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [sign_flip([1.0] * abs(wrong[first] - wrong[second])).p for first, second in pairs]

    sets = rank_sets(wrong, p_values)
    assert sets == {"best": (1, 2), "near": (1, 2), "far": (3, 4), "farther": (3, 4)}
    assert rank_sets(["best"], p_values) == {"best": (1, 1)}
    assert rank_sets([], p_values) == {}


def test_rank_sets_correct_p_values_for_all_pairs() -> None:
    """Any of four systems may be the best by chance, so the correction is for six pairs, not for three."""
    p = {("a", "b"): 0.02, ("a", "c"): 0.5, ("a", "d"): 0.009}

    def p_values(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [p.get(pair, 1.0) for pair in pairs]

    assert set(rank_sets("abcd", p_values).values()) == {(1, 4)}
    p["a", "d"] = 0.008
    assert rank_sets("abcd", p_values) == {"a": (1, 3), "b": (1, 4), "c": (1, 4), "d": (2, 4)}


def test_separations_are_closed_transitively() -> None:
    """If `a` is better than `b`, and `b` better than `c`, then `a` is better than `c`, despite their own test."""

    def p_values(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [0.9 if pair == ("a", "c") else 0.001 for pair in pairs]

    assert rank_sets("abc", p_values) == {"a": (1, 1), "b": (2, 2), "c": (3, 3)}


@pytest.mark.parametrize("seed", range(20))
def test_systems_that_are_not_separated_never_have_disjoint_sets(seed: int) -> None:
    rng, names = np.random.default_rng(seed), range(12)
    p = {(i, j): float(rng.random() ** 8) for i in names for j in names if i < j}
    sets = rank_sets(names, lambda pairs: [p[pair] for pair in pairs])
    separated = separated_pairs_by_definition(p, 12)
    for i, j in p:
        disjoint = sets[i][1] < sets[j][0] or sets[j][1] < sets[i][0]
        assert not disjoint or (i, j) in separated
    for name in names:
        better = sum(pair[1] == name for pair in separated)
        assert sets[name] == (1 + better, 12 - sum(pair[0] == name for pair in separated))


def separated_pairs_by_definition(p: dict[tuple[int, int], float], count: int) -> set[tuple[int, int]]:
    """Return the separated pairs by the definition of Holm's method and Warshall's transitive closure."""
    separated = set()
    for rank, (pair, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        if value * (len(p) - rank) > 0.05:
            break
        separated.add(pair)
    for k in range(count):
        separated |= {(i, j) for i in range(count) for j in range(count) if {(i, k), (k, j)} <= separated}
    return separated


def test_many_systems_are_tested_only_against_the_leader() -> None:
    count = MAX_PAIRWISE + 1
    tested_pairs: list[tuple[int, int]] = []

    def p_values(pairs: Sequence[tuple[int, int]]) -> list[float]:
        tested_pairs.extend(pairs)
        return [1e-9 if system > 30 else 1.0 for _, system in pairs]

    sets = rank_sets(range(count), p_values)
    assert tested_pairs == [(0, system) for system in range(1, count)]
    assert sets[0] == (1, 31)
    assert {sets[system] for system in range(1, 31)} == {(1, count)}
    assert {sets[system] for system in range(31, count)} == {(2, count)}


@pytest.mark.full
def test_flips_resolve_the_corrected_level() -> None:
    """Flips of such values are sampled. At the default level, p is at least 1 / (1 + FLIPS)."""
    rng = np.random.default_rng(1)
    values = (0.28 + rng.normal(0, 0.5, 200)).tolist()
    reached = 4.4 * math.sqrt(sum(value * value for value in values))
    assert sign_flip(values, reached=reached).p > 1 / (1 + FLIPS) * 0.999
    assert sign_flip(values, reached=reached, level=PAIR_LEVEL).p < PAIR_LEVEL


def test_sign_flip_is_the_same_in_both_directions() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(0.1, 1, 60)
    assert sign_flip(values.tolist()).p == sign_flip((-values).tolist()).p
