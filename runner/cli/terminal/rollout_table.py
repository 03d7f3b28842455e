"""The rollouts of a run as a table, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from runner.base.text import in_one_line
from runner.cli.terminal.output import columns_of_output, say
from runner.cli.terminal.wrapping import cells
from runner.game.protocols.protocol import Decision, label_word, stance_word
from runner.rollouts.rollout import Outcome
from runner.runs.finished.rollout_details import correct_word, verdict_word
from runner.runs.finished.rollout_rows import RolloutList, RolloutRow

STYLES = {"wrong": "31", "-": "33"}
"""Of a line, by what stands in its column `result`."""


PAGE = 1000
"""So many rows are held at once, and stand below a head of their own."""


def print_rollouts(found: RolloutList) -> RolloutRow | None:
    """Print a table of rollouts, and where there are more, how to see them. Returns the first."""
    rows = found.rows()
    first = None
    while page := list(islice(rows, PAGE)):
        first = first or page[0]
        _print_page(page)
    if found.more != 0:
        say(f"{'there are more' if found.more is None else f'{found.more} more'}: add --all, or --limit N")
    return first


def _print_page(rows: Sequence[RolloutRow]) -> None:
    width = columns_of_output()
    table = _table(rows, outcomes=True)
    if width is not None and any(cells(line) > width for line, _ in table):
        table = _table(rows, outcomes=False)
    for line, style in table:
        say(line, style)


def _table(rows: Sequence[RolloutRow], *, outcomes: bool) -> list[tuple[str, str]]:
    """The lines and their styles. Ids are whole; the datapoint's, which may be long, stands last.

    Without the column `outcomes` that of an undecided rollout stands in the place of its verdict.
    """
    repeats, swaps = any(row.repeat for row in rows), any(row.swapped is not None for row in rows)
    stances = len({row.stance for row in rows} - {None}) > 1
    exchanges = any(row.stances_exchanged is not None for row in rows)
    head = ["rollout", "label", "verdict", "result", "rounds", "retries", "failed"]
    head += ["stance"] * stances + ["stances"] * exchanges + ["seats"] * swaps + ["repeat"] * repeats
    head += ["outcome"] * outcomes + ["datapoint"]
    lines, styles = [head], ["1"]
    for row in rows:
        result = correct_word(row.correct, row.decision)
        instead = not outcomes and row.decision == Decision.NONE and row.outcome != Outcome.NO_DECISION
        lines.append(
            [
                row.rollout_id,
                label_word(row.label),
                row.outcome if instead else verdict_word(row.decision),
                result,
                str(row.rounds),
                str(row.retries),
                str(row.failed_calls),
                *(["-" if row.stance is None else stance_word(row.stance)] if stances else []),
                *(["exchanged" if row.stances_exchanged else "as written"] if exchanges else []),
                *(["swapped" if row.swapped else "as written"] if swaps else []),
                *([str(row.repeat)] if repeats else []),
                *([row.outcome] if outcomes else []),
                in_one_line(row.datapoint_id),
            ]
        )
        styles.append(STYLES.get(result, ""))
    numeric = {head.index(name) for name in ("rounds", "retries", "failed", "repeat") if name in head}
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    return [(_line(line, widths, numeric), style) for line, style in zip(lines, styles, strict=True)]


def _line(values: Sequence[str], widths: Sequence[int], numeric: set[int]) -> str:
    parts = []
    for index, (value, width) in enumerate(zip(values, widths, strict=True)):
        space = " " * (width - cells(value))
        parts.append(space + value if index in numeric else value + space)
    return "  ".join(parts).rstrip()
