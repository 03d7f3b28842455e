"""Print the rollouts of a run as a table that fits the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from runner.base.text import in_one_line
from runner.cli.terminal.output import print_table, say
from runner.game.protocols.protocol import correct_word, label_word, stance_word, verdict_word
from runner.runs.finished.rollout_rows import RolloutList, RolloutRow

ROW_STYLES = {"wrong": "red", "-": "yellow"}
"""Rich style of a row by its `result` column, where `-` means that there is no verdict."""


ROWS_PER_TABLE = 1000
"""Number of rows that are read and printed as one table, to limit memory."""


def print_rollouts(rollouts: RolloutList) -> RolloutRow | None:
    """Print tables of rollouts, and the option that lists the others. Return the first row, or None."""
    rows = rollouts.rows()
    first_row = None
    while table_rows := list(islice(rows, ROWS_PER_TABLE)):
        first_row = first_row or table_rows[0]
        _print_table(table_rows)
    if (count := rollouts.further_count) != 0:
        say(f"{'there are more' if count is None else f'{count} more'}: add --all, or --limit N")
    return first_row


def _print_table(rows: Sequence[RolloutRow]) -> None:
    """Print a table of rollouts, without the columns that these rollouts do not need."""
    cells = [_row_cells(row) for row in rows]
    is_shown = {
        "stance": len({row.stance for row in rows} - {None}) > 1,
        "stances": any(row.stances_exchanged is not None for row in rows),
        "seats": any(row.swapped is not None for row in rows),
        "repeat": any(row.repeat for row in rows),
    }
    columns = [name for name in cells[0] if is_shown.get(name, True)]
    print_table(
        columns,
        [[row[name] for name in columns] for row in cells],
        drop=("outcome",),
        styles=[ROW_STYLES.get(row["result"], "") for row in cells],
    )


def _row_cells(row: RolloutRow) -> dict[str, Any]:
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
