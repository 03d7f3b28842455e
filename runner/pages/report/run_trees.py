"""The trees of a run in its summary: the value of answers by round, and the first trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runner.pages.numbers import count
from runner.pages.report.trees import TreesData
from runner.rollouts.trees import NOT_COMPARABLE

MAX_PLAIN_TREES = 20
"""Maximum number of trees in the page for browsers without JavaScript."""

TRAINING_PAIRS = "A training run uses the pairs of the agents whose models are trained, without duplicates."


@dataclass(frozen=True)
class TreesView:
    """The trees of a run in its summary."""

    text: str
    caution: str
    rounds: range
    agents: Sequence[tuple[str, Sequence[float], int]]
    """The name of each agent, its mean expected rewards by round, and its number of pairs."""
    first: Sequence[tuple[str, Mapping[str, Any]]]
    """The link and the row of each of the first trees."""


def trees_view(run_id: str, trees: TreesData) -> TreesView:
    """Return the statistics of a run's trees so far."""
    expected = trees.expected()
    return TreesView(
        f"{count(trees.count)} trees with {count(trees.branches)} branches; {count(trees.pairs.total())} pairs of "
        f"a good and a bad answer at the same step. {TRAINING_PAIRS}",
        f"{NOT_COMPARABLE[0].upper()}{NOT_COMPARABLE[1:]}.",
        range(max(map(len, expected.values()), default=0)),
        [(agent, values, trees.pairs[agent]) for agent, values in expected.items()],
        [(tree_link(run_id, row["datapoint"], row["tree"]), row) for row in trees.rows[:MAX_PLAIN_TREES]],
    )


def tree_link(run_id: str, datapoint: str, tree: int) -> str:
    """Return the link to a tree on the run's page."""
    query = f"?tree={tree}" if tree else ""
    return f"#/run/{quote(run_id, safe='')}/tree/{quote(datapoint, safe='')}{query}"
