"""Check that a spec does not need labels if the dataset's owner hides them."""

from __future__ import annotations

from collections.abc import Iterator

from runner.game.protocols.protocol import Protocol
from runner.spec.datasets.loader import Dataset
from runner.spec.experiment import Experiment

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
