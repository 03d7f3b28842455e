"""A run's trees in its summary: what answers were worth, by round, and the first trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runner.pages.numbers import count
from runner.pages.report.trees import TreesData
from runner.rollouts.trees import NOT_COMPARABLE

FIRST = 20
"""So many trees stand in the page for a browser without JavaScript."""

TAKEN = (
    "A training takes the pairs of the agents whose models it trains, and of several that say the same it takes one."
)


@dataclass(frozen=True)
class TreesView:
    """What the summary of a run says of its trees."""

    words: str
    caution: str
    rounds: range
    agents: Sequence[tuple[str, Sequence[float], int]]
    """The mean expected rewards of each agent by round, and how many pairs of a good and a bad answer it gives."""
    first: Sequence[tuple[str, Mapping[str, Any]]]
    """The address and the row of the first trees."""


def trees_view(run_id: str, trees: TreesData) -> TreesView:
    """Return what a run's trees came to so far."""
    expected = trees.expected()
    return TreesView(
        f"{count(trees.count)} trees with {count(trees.branches)} branches; {count(trees.pairs.total())} pairs of "
        f"a good and a bad answer to one step. {TAKEN}",
        f"{NOT_COMPARABLE[0].upper()}{NOT_COMPARABLE[1:]}.",
        range(max(map(len, expected.values()), default=0)),
        [(agent, values, trees.pairs[agent]) for agent, values in expected.items()],
        [(tree_link(run_id, row["datapoint"], row["tree"]), row) for row in trees.rows[:FIRST]],
    )


def tree_link(run_id: str, datapoint: str, tree: int) -> str:
    """The address of a tree in a page that has it."""
    which = f"?tree={tree}" if tree else ""
    return f"#/run/{quote(run_id, safe='')}/tree/{quote(datapoint, safe='')}{which}"
