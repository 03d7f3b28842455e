"""Print a training run: its learning curve, and the outcome of each iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runner.base.text import in_one_line, with_interval
from runner.cli.terminal.output import can_print, describe_usage, say, say_wrapped, wrap_width
from runner.results.metric_definitions import RANKING_METRIC
from runner.training.summary import describe_left_out, describe_outcome, test_name

MAX_CURVE_WIDTH = 100
"""Maximum width of a curve, also used if there is no terminal."""

MIN_BAR_WIDTH = 11
"""Minimum width of a drawn interval. If the terminal is too narrow for it, only numbers are printed."""


class BarCharacters(NamedTuple):
    """The characters that draw an interval on a line from 0 to 1; `outside` is the line left and right of it."""

    low: str
    high: str
    between: str
    value: str
    outside: str


UNICODE_BAR = BarCharacters("├", "┤", "─", "●", "·")
ASCII_BAR = BarCharacters("|", "|", "-", "o", ".")


MAX_SHOWN_ITERATIONS = 6
"""If there are more iterations, only the first and the last ones are printed."""


def show_training(metrics: Mapping[str, Any], command: str, *, full: bool = False) -> None:
    """Print the tests and iterations of a training run, and the next steps if it is unfinished.

    Without `full`, print only some iterations. Then also print `command`, which prints all iterations.
    """
    run_id, iterations, next_steps = metrics["run_id"], metrics["iterations"], metrics.get("next", ())
    if metrics["tests"]:
        say(f"{in_one_line(run_id)}: accuracy on the test [95% interval]", "1")
        for line in format_curve(
            [(test_name(row, len(iterations), over=not next_steps), row["accuracy"]) for row in metrics["tests"]]
        ):
            say(line)
        say()
    if any(row["outcomes"] for row in iterations):  # a run that only tests models again trains nothing
        say("training", "1")
        half = MAX_SHOWN_ITERATIONS // 2
        hidden = [] if full else iterations[half:-half]
        _show_iterations(iterations[:half] if hidden else iterations)
        if hidden:
            say(f"... {len(hidden)} more iterations: {command}")
            _show_iterations(iterations[-half:])
        say()
    games = metrics["games"]
    usage = describe_usage(games["completions"], games["cost_usd"])
    say_wrapped(f"rollouts: {games['rollouts']}, {usage}, without the cost of the trainers")
    for line in next_steps:
        say_wrapped(f"next: {line}")


def format_curve(tests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a line for each test: its name, the interval of its accuracy on a line from 0 to 1, and the numbers.

    `tests` has the name and the accuracy of each test.
    """
    names = [name for name, _ in tests]
    numbers = [with_interval(accuracy["value"], accuracy["ci_low"], accuracy["ci_high"]) for _, accuracy in tests]
    counts = [
        f"n {accuracy['n']}" + ("" if accuracy["clusters"] == accuracy["n"] else f", {accuracy['clusters']} clusters")
        for _, accuracy in tests
    ]
    same_counts = len(set(counts)) == 1
    header = f"{RANKING_METRIC}, {counts[0]}" if same_counts else RANKING_METRIC
    name_width = max(map(len, (*names, "models")))
    numbers_width = max(len(header), max(map(len, numbers)) + (0 if same_counts else 2 + max(map(len, counts))))
    bar_width = min(wrap_width() or MAX_CURVE_WIDTH, MAX_CURVE_WIDTH) - name_width - numbers_width - 4
    characters = UNICODE_BAR if can_print("".join(UNICODE_BAR)) else ASCII_BAR
    lines = [f"{'models':<{name_width}}  {_draw_axis(bar_width)}  {header}".rstrip()]
    for (name, accuracy), number, count in zip(tests, numbers, counts, strict=True):
        bar = _draw_interval(accuracy, bar_width, characters)
        lines.append(f"{name:<{name_width}}  {bar}  {number}{'' if same_counts else f'  {count}'}".rstrip())
    return (
        lines
        if bar_width >= MIN_BAR_WIDTH
        else [f"{name:<{name_width}}  {number}" for name, number in zip(names, numbers, strict=True)]
    )


def _draw_axis(width: int) -> str:
    """Return an axis such as `0        0.5        1`, as wide as the intervals below it."""
    marks = {0: "0", width - 1: "1"}
    line = [" "] * max(width, 0)
    for position, mark in {**marks, (width - 1) // 2 - 1: "0.5"}.items():
        for index, character in enumerate(mark, position):
            if 0 <= index < len(line):
                line[index] = character
    return "".join(line)


def _draw_interval(accuracy: Mapping[str, Any], width: int, characters: BarCharacters) -> str:
    """Return a drawing of an interval, such as `··├──●───┤···`. A value without an interval is a single point."""
    line = [characters.outside] * max(width, 0)
    if not line or accuracy["value"] is None:
        return "".join(line)

    def position(value: float) -> int:
        return round(min(max(value, 0.0), 1.0) * (width - 1))

    if accuracy["ci_low"] is not None and accuracy["ci_high"] is not None:
        low, high = position(accuracy["ci_low"]), position(accuracy["ci_high"])
        line[low : high + 1] = [characters.between] * (high + 1 - low)
        line[low], line[high] = characters.low, characters.high
    line[position(accuracy["value"])] = characters.value
    return "".join(line)


def _show_iterations(iterations: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each trained group of each iteration, and the reasons why examples were left out."""
    groups = {in_one_line(group) for row in iterations for group in row["outcomes"]}
    group_width = max(map(len, groups), default=0)
    for row in iterations:
        for group, outcome in row["outcomes"].items():
            examples = outcome["examples"]
            outcome_text = describe_outcome(outcome, row["models"][group]["model"])
            line_start = f"iteration {row['iteration']}  {in_one_line(group):<{group_width}}  "
            say_wrapped(f"{line_start}{examples} example{'' if examples == 1 else 's'}, {outcome_text}")
            left_out_text = describe_left_out(outcome)
            if left_out_text:
                say_wrapped(f"left out: {left_out_text}" if outcome.get("left_out") else left_out_text, "  ")
