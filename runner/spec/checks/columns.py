"""The columns that templates show."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import Place, Problem
from runner.base.text import comma_join
from runner.game.prompts.templates import PromptSet
from runner.spec.datasets.loader import Dataset


def column_problems(dataset: Dataset, prompts: PromptSet, place: Place) -> Iterator[Problem]:
    """Values that a template would show as something no author wrote, such as `None`."""
    used = sorted({name for names in prompts.variables.values() for name in names} & set(dataset.columns))
    for name in used:
        rows = [p.id for p in dataset.datapoints if not isinstance(p.columns[name], (str, int, float, list))]
        if rows:
            some = comma_join(rows[:5]) + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
            message = f"a template shows the column {name!r}, which holds no text or number in: {some}"
            yield Problem(
                place, f"dataset.{name}", message, "dataset: a template shows a column with no text or number"
            )
