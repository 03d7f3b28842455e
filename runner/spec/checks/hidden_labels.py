"""What a spec may not ask of a dataset whose owner keeps the labels."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import PlaceOf, Problem
from runner.game.protocols.protocol import Protocol
from runner.spec.datasets.loader import Dataset
from runner.spec.experiment import Experiment

KEPT = "no row of the dataset has a label, as its owner keeps them, and"


def unlabelled_problems(experiment: Experiment, protocol: Protocol, dataset: Dataset, at: PlaceOf) -> Iterator[Problem]:
    """Each key that needs the labels, where there are none: a game is played and judged without, and nothing else."""
    if dataset.is_labelled:
        return
    wanted = {
        "protocol.force_guess": (protocol.parameters.force_guess == "y", "this decision is the label"),
        "training": (experiment.kind == "training", "a model is trained by what is right"),
        "until": (experiment.until is not None, "the accuracy that it waits for is not known"),
        "fine_tune": (experiment.fine_tune is not None, "examples are made of games whose rewards are known"),
        "rollouts.num_responses_per_timestep": (
            experiment.rollouts.num_responses_per_timestep is not None, "a tree's answers are compared by their rewards"
        ),
    }  # fmt: skip
    for key, (is_wanted, why) in wanted.items():
        if is_wanted:
            yield Problem(at(key), key, f"{KEPT} {why}; set {key} to null, or play rows with labels")
