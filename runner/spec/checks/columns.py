"""Check the columns of the dataset that templates show, and that nothing needs its labels if its owner hides them."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.problems import Place, Problem
from runner.base.text import did_you_mean, list_some
from runner.game.prompts.templates import PromptSet
from runner.game.protocols.protocol import Protocol
from runner.spec.datasets.loader import Dataset
from runner.spec.experiment import Experiment


def column_problems(dataset: Dataset, prompts: PromptSet, place: Place) -> Iterator[Problem]:
    """Yield a problem for each column that a template uses and that has values of other types, such as None."""
    used = {name for names in prompts.variables.values() for name in names}
    for name in sorted(used & set(dataset.columns)):
        rows = [p.id for p in dataset.datapoints if not isinstance(p.columns[name], (str, int, float, list))]
        if rows:
            message = (
                f"a template shows the column {name!r}, which is neither text nor a number in: {list_some(rows)}; "
                "correct these rows, or do not use the column in a template"
            )
            yield Problem(
                place, f"dataset.{name}", message, "dataset: a template shows a column without text or numbers"
            )


def protocol_column_problems(
    dataset: Dataset, protocol: Protocol, place: Place, *, shows_columns: bool
) -> Iterator[Problem]:
    """Yield a problem for each column that the protocol's `private` or `quotes` names and that the dataset lacks.

    The column that agents quote must be text in every row. Messages name columns of the dataset if `shows_columns`.
    """
    quotes = protocol.file.quotes
    keys = {column: f"private.{column}" for column in protocol.file.private}
    if quotes is not None:
        keys[quotes.source] = "quotes.source"
    for column, key in keys.items():
        if column not in dataset.columns:
            hint = did_you_mean(column, dataset.columns) if shows_columns else ""
            hint = hint or "; add it, or rename another with dataset.columns"
            message = f"`{key}` of {protocol.name} needs the column {column!r}, which the dataset lacks{hint}"
            yield Problem(place, "protocol.use", message)
        elif quotes is not None and column == quotes.source:
            rows = [p.id for p in dataset.datapoints if not isinstance(p.columns[column], str)]
            if rows:
                message = (
                    f"agents quote the column {column!r}, which is not text in: {list_some(rows)}; correct these rows"
                )
                yield Problem(place, f"dataset.{column}", message, "dataset: the column to quote is not text")


NO_LABELS = "the dataset has no labels, because its owner hides them, and"


def unlabelled_problems(experiment: Experiment, protocol: Protocol, dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield each key that needs labels, with a message, if the dataset has no labels.

    Games can be played and judged without labels. With a checker, games have labels, but datapoints have none.
    """
    if dataset.is_labelled:
        return
    if experiment.dataset.checker is not None:
        if experiment.kind == "tournament":
            yield "tournament", "ratings need the label of each datapoint, but dataset.checker labels games; play a run"
        return
    needs_labels = {
        "protocol.force_guess": (protocol.parameters.force_guess == "y", "force_guess: y decides by the label"),
        "training": (experiment.kind == "training", "training needs to know which verdicts are right"),
        "tournament": (experiment.kind == "tournament", "ratings need to know who argues for the right answer"),
        "until": (experiment.until is not None, "the accuracy, by which a run stops early, is unknown"),
        "fine_tune": (experiment.fine_tune is not None, "examples need games with known rewards"),
        "rollouts.num_responses_per_timestep": (
            experiment.rollouts.num_responses_per_timestep is not None, "a tree's answers are compared by rewards"
        ),
    }  # fmt: skip
    for key, (is_set, reason) in needs_labels.items():
        if is_set:
            yield key, f"{NO_LABELS} {reason}; set {key} to null, or use a dataset with labels"
