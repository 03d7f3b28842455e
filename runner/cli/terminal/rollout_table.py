"""Print the rollouts of a run as a table that fits the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from runner.base.text import in_one_line
from runner.cli.terminal.output import print_table, say
from runner.game.protocols.protocol import correct_word, label_word, stance_word, verdict_word
from runner.runs.finished.rollout_rows import RolloutList, RolloutRow

STYLES = {"wrong": "red", "-": "yellow"}
"""Style of a row by its `result` column."""


PAGE_ROWS = 1000
"""Number of rows that are read and printed as one table."""


def print_rollouts(rollouts: RolloutList) -> RolloutRow | None:
    """Print a table of rollouts, and the option that lists the others. Return the first row, or None."""
    rows = rollouts.rows()
    first = None
    while page := list(islice(rows, PAGE_ROWS)):
        first = first or page[0]
        _print_page(page)
    if (count := rollouts.further_count) != 0:
        say(f"{'there are more' if count is None else f'{count} more'}: add --all, or --limit N")
    return first


def _print_page(rows: Sequence[RolloutRow]) -> None:
    """Print a table of rollouts."""
    cells = [_cells(row) for row in rows]
    optional = {
        "stance": len({row.stance for row in rows} - {None}) > 1,
        "stances": any(row.stances_exchanged is not None for row in rows),
        "seats": any(row.swapped is not None for row in rows),
        "repeat": any(row.repeat for row in rows),
    }
    columns = [name for name in cells[0] if optional.get(name, True)]
    print_table(
        columns,
        [[row[name] for name in columns] for row in cells],
        drop=("outcome",),
        styles=[STYLES.get(row["result"], "") for row in cells],
    )


def _cells(row: RolloutRow) -> dict[str, Any]:
    return {
        "rollout": row.rollout_id,
        "label": label_word(row.label),
        "verdict": verdict_word(row.decision),
        "result": correct_word(row.correct, row.decision),
        "rounds": row.rounds,
        "retries": row.retries,
        "failed": row.failed_calls,
        "stance": "-" if row.stance is None else stance_word(row.stance),
        "stances": "exchanged" if row.stances_exchanged else "as written",
        "seats": "swapped" if row.swapped else "as written",
        "repeat": row.repeat,
        "outcome": row.outcome,
        "datapoint": in_one_line(row.datapoint_id),
    }
