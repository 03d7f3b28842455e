"""A run's trees in its summary: what answers were worth, by round, and the first trees."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from runner.game.protocols.protocol import label_word
from runner.pages.numbers import count, decimal
from runner.pages.report.trees import TreesData
from runner.rollouts.trees import NOT_COMPARABLE

FIRST = 20
"""So many trees stand in the page for a browser without JavaScript."""

TAKEN = (
    "A training takes the pairs of the agents whose models it trains, and of several that say the same it takes one."
)


def trees_section(run_id: str, trees: TreesData) -> dict[str, Any]:
    """The facts of the section; of each agent, how many pairs of a good and a bad answer it gives."""
    expected = trees.expected()
    rounds = max(map(len, expected.values()), default=0)
    pairs = sum(trees.pairs.values())
    return {
        "words": f"{count(trees.count)} trees with {count(trees.branches)} branches; {count(pairs)} pairs of a good "
        f"and a bad answer to one step. {TAKEN}",
        "caution": f"{NOT_COMPARABLE[0].upper()}{NOT_COMPARABLE[1:]}.",
        "rounds": range(rounds),
        "agents": [
            {"agent": agent, "worth": [decimal(value) for value in values], "pairs": count(trees.pairs[agent])}
            for agent, values in expected.items()
        ],
        "first": [_row(run_id, row) for row in trees.rows[:FIRST]],
    }


def tree_link(run_id: str, datapoint: str, tree: int) -> str:
    """The address of a tree in a page that has it."""
    which = f"?tree={tree}" if tree else ""
    return f"#/run/{quote(run_id, safe='')}/tree/{quote(datapoint, safe='')}{which}"


def _row(run_id: str, row: Any) -> dict[str, Any]:
    number = row["tree"]
    return {
        "href": tree_link(run_id, row["datapoint"], number),
        "name": row["datapoint"] + (f", tree {number}" if number else ""),
        "label": label_word(row["label"]),
        **{name: count(row[name]) for name in ("branches", "right", "left_out", "pairs")},
    }
