"""Rows are matched by what they are of: what one missing, doubled or moved row does is told once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner.registry.verification import row_matching
from runner.registry.verification.row_matching import Match, OrdersTooDifferent, Row, match_rows

LONG = 20_000


def rows(words: str) -> Iterator[Row]:
    return ({"id": word} for word in words.split())


def found(recorded: str, again: str) -> list[Match]:
    return list(match_rows(rows(recorded), rows(again), lambda row: (row["id"],)))


@pytest.mark.parametrize(
    ("recorded", "missing", "added", "moved"),
    [
        ("a b c d e f", [], [], []),
        ("b c d e f", ["a"], [], []),
        ("a b d f", ["c", "e"], [], []),
        ("a b c", ["d", "e", "f"], [], []),
        ("", ["a", "b", "c", "d", "e", "f"], [], []),
        ("a b x c d e f", [], ["x"], []),
        ("a b c d e f x y", [], ["x", "y"], []),
        ("a b c c d e f", [], ["c"], []),
        ("a b c d e f c", [], ["c"], []),
        ("a x c d e f", ["b"], ["x"], []),
        ("a c d e b f", [], [], ["b"]),
        ("a e b c d f", [], [], ["e"]),
        ("b a c d f e", [], [], ["b", "f"]),
        ("f a c x d e", ["b"], ["x"], ["f"]),
    ],
)
def test_each_row_is_matched_once(recorded: str, missing: list[str], added: list[str], moved: list[str]) -> None:
    again = "a b c d e f"
    pairs = found(recorded, again)
    assert sorted(one.key[0] for one in pairs if one.recorded is None) == missing
    assert [one.key[0] for one in pairs if one.recomputed is None] == added
    assert len(pairs) == len(again.split()) + len(added)
    places = recorded.split()
    assert all(places[one.position - 1] == one.key[0] for one in pairs if one.recorded is not None)
    out_of_place = [one.key[0] for one in pairs if one.is_out_of_order]
    assert (bool(out_of_place), set(moved) <= set(out_of_place)) == (bool(moved), True)


def test_memory_is_bounded_whatever_the_order_and_however_many_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_matching, "MAX_UNMATCHED", LONG)
    names = [f"{number:05}" for number in range(LONG)]
    with pytest.raises(OrdersTooDifferent) as far:
        found(" ".join(reversed(names)), " ".join(names))
    assert far.value.row_count < LONG / 20
    assert len(found(" ".join(names[1:]), " ".join(names))) == LONG, "moved up by one, and few wait"
    assert len(found("", " ".join(names))) == LONG, "nothing is to come, and none waits"
