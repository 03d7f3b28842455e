"""A training run for a person: its learning curve, and what became of each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.text import in_one_line, with_interval
from runner.cli.terminal.output import calls_and_cost, can_print, columns_of_output, say
from runner.cli.terminal.wrapping import wrapped
from runner.results.metric_table import RANKING_METRIC
from runner.training.summary import describe_left_out, describe_outcome, test_name

WIDEST = 100
"""Columns of a curve, where the terminal has more or is none."""

SHORTEST = 11
"""No interval is drawn on less."""


@dataclass(frozen=True)
class Pen:
    """The characters of an interval: its ends, what is between, and the value."""

    low: str
    high: str
    between: str
    value: str
    outside: str


DRAWN = Pen("├", "┤", "─", "●", "·")
ASCII = Pen("|", "|", "-", "o", ".")


FOLDED = 6
"""Of more iterations, the first and the last ones are told."""


def show_training(metrics: Mapping[str, Any], command: str, *, whole: bool = False) -> None:
    """Print the tests and the iterations of a training run, and what comes next where it is not finished.

    `whole`: every iteration, be there ever so many; `command` shows them.
    """
    run_id, iterations, todo = metrics["run_id"], metrics["iterations"], metrics.get("next", ())
    if metrics["tests"]:
        say(f"{in_one_line(run_id)}: accuracy on the test [95% interval]", "1")
        for line in curve(
            [(test_name(row, len(iterations), over=not todo), row["accuracy"]) for row in metrics["tests"]]
        ):
            say(line)
        say()
    if any(row["outcomes"] for row in iterations):  # where models are only tested again, none was trained
        say("training", "1")
        folded = [] if whole else iterations[FOLDED // 2 : -FOLDED // 2]
        _show_iterations(iterations[: FOLDED // 2] if folded else iterations)
        if folded:
            say(f"... {len(folded)} iterations more: {command}")
            _show_iterations(iterations[-FOLDED // 2 :])
        say()
    games = metrics["games"]
    paid = calls_and_cost(games["completions"], games["cost_usd"])
    _say_wrapped(f"rollouts: {games['rollouts']}, {paid}, without what the trainers cost")
    for line in todo:
        _say_wrapped(f"next: {line}")


def curve(tests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A line for each test: which models, the interval drawn between 0 and 1, the numbers."""
    names = [name for name, _ in tests]
    numbers = [with_interval(one["value"], one["ci_low"], one["ci_high"]) for _, one in tests]
    counts = [
        f"n {one['n']}" + ("" if one["clusters"] == one["n"] else f", {one['clusters']} clusters") for _, one in tests
    ]
    same = len(set(counts)) == 1
    head = f"{RANKING_METRIC}, {counts[0]}" if same else RANKING_METRIC
    wide = max(map(len, (*names, "models")))
    after = max(len(head), max(map(len, numbers)) + (0 if same else 2 + max(map(len, counts))))
    bar = min(columns_of_output() or WIDEST, WIDEST) - wide - after - 4
    pen = DRAWN if can_print(DRAWN.low + DRAWN.high + DRAWN.between + DRAWN.value + DRAWN.outside) else ASCII
    lines = [f"{'models':<{wide}}  {_axis(bar)}  {head}".rstrip()]
    for (name, one), number, count in zip(tests, numbers, counts, strict=True):
        lines.append(f"{name:<{wide}}  {_drawn(one, bar, pen)}  {number}{'' if same else f'  {count}'}".rstrip())
    return (
        lines if bar >= SHORTEST else [f"{name:<{wide}}  {number}" for name, number in zip(names, numbers, strict=True)]
    )


def _axis(width: int) -> str:
    """`0        0.5        1`, as wide as the intervals below it."""
    places = {0: "0", width - 1: "1"}
    line = [" "] * max(width, 0)
    for place, mark in {**places, (width - 1) // 2 - 1: "0.5"}.items():
        for index, character in enumerate(mark, place):
            if 0 <= index < len(line):
                line[index] = character
    return "".join(line)


def _drawn(accuracy: Mapping[str, Any], width: int, pen: Pen) -> str:
    """One interval; a value without one is its own point."""
    line = [pen.outside] * max(width, 0)
    if not line or accuracy["value"] is None:
        return "".join(line)

    def place(value: float) -> int:
        return round(min(max(value, 0.0), 1.0) * (width - 1))

    if accuracy["ci_low"] is not None and accuracy["ci_high"] is not None:
        low, high = place(accuracy["ci_low"]), place(accuracy["ci_high"])
        line[low : high + 1] = [pen.between] * (high + 1 - low)
        line[low], line[high] = pen.low, pen.high
    line[place(accuracy["value"])] = pen.value
    return "".join(line)


def _show_iterations(iterations: Sequence[Mapping[str, Any]]) -> None:
    """A line for each group that was trained in an iteration, and why examples were left out."""
    groups = {in_one_line(group) for row in iterations for group in row["outcomes"]}
    wide = max(map(len, groups), default=0)
    for row in iterations:
        for group, outcome in row["outcomes"].items():
            examples = outcome["examples"]
            became = describe_outcome(outcome, row["models"][group]["model"])
            head = f"iteration {row['iteration']}  {in_one_line(group):<{wide}}  "
            _say_wrapped(f"{head}{examples} example{'' if examples == 1 else 's'}, {became}")
            why = describe_left_out(outcome)
            if why:
                _say_wrapped(f"left out: {why}" if outcome.get("left_out") else why, "  ")


def _say_wrapped(text: str, indent: str = "") -> None:
    for line in wrapped(text, columns_of_output(), indent):
        say(line)
