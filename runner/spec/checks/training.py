"""Check the `training` section of a spec: method, datapoints and splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from runner.base.errors import PlaceOf, Problem
from runner.base.hashing import tagged_hash
from runner.base.text import list_some
from runner.documents.dataclass_schema import changed_keys
from runner.game.protocols.protocol import Protocol
from runner.spec.checks.trainers import trainer_problems
from runner.spec.datasets.loader import HUB, Dataset
from runner.spec.experiment import Experiment
from runner.spec.training_settings import TrainingSettings


def training_problems(
    experiment: Experiment,
    protocol: Protocol,
    dataset: Dataset,
    test: Dataset | None,
    at: PlaceOf,
    *,
    used: AbstractSet[str],
    names_datapoints: bool = True,
) -> Iterator[Problem]:
    """Yield the problems of the section `training`.

    `used` has the variables of the templates. With `names_datapoints`, messages may name datapoints.
    """
    training = experiment.training
    if training is None:
        if experiment.kind == "training":
            yield Problem(
                at("kind"),
                "kind",
                "a training run needs a section `training`; add training.method and training.trainers",
            )
        return
    if experiment.kind != "training":
        yield Problem(
            at("training"), "training", "training works only with `kind: training`; set kind, or remove training"
        )
    if training.rerun_tests is None:
        yield from _method_problems(experiment, protocol, at)
        yield from trainer_problems(experiment, at)
        yield from _size_problems(training, dataset, at)
    for problem in _split_problems(experiment, dataset, test, used, at):
        yield problem if names_datapoints else replace(problem, place=replace(problem.place, is_own=False))


def _size_problems(training: TrainingSettings, dataset: Dataset, at: PlaceOf) -> Iterator[Problem]:
    requested, available = training.datapoints_per_iteration, len(dataset.datapoints)
    if requested is not None and requested > available:
        key = "training.datapoints_per_iteration"
        yield Problem(at(key), key, f"{requested} is more than the {available} datapoints of the dataset; set fewer")


def _method_problems(experiment: Experiment, protocol: Protocol, at: PlaceOf) -> Iterator[Problem]:
    training = experiment.training
    assert training is not None
    trees = experiment.rollouts.num_responses_per_timestep
    key = "rollouts.num_responses_per_timestep"
    if training.method == "malt":
        if trees is None or trees < 2:
            yield Problem(
                at("training.method"), key, f"malt needs at least two responses per step; set {key}=2 or more"
            )
        if training.guess_replacement.proportion:
            name = "training.guess_replacement.proportion"
            yield Problem(at(name), name, f"malt replaces no guesses, unlike expert_iteration; remove {name}")
        for changed_key in changed_keys(training.selection):
            name = f"training.selection.{changed_key}"
            yield Problem(at(name), name, f"malt selects no rollouts, unlike expert_iteration; remove {name}")
        return
    if trees is not None:
        yield Problem(at(key), key, f"expert_iteration plays single games, unlike malt; remove {key}")
    selection = training.selection
    without_replacement = selection.method == "weighted_sampling" and not selection.replacement
    if without_replacement and selection.sample_size_factor > 1:
        name = "training.selection.sample_size_factor"
        yield Problem(at(name), name, "a sample without replacement cannot be larger than all rollouts; lower it to 1")
    if training.guess_replacement.proportion and experiment.agents[protocol.verifier_name].freeze:
        name = "training.guess_replacement.proportion"
        yield Problem(at(name), name, f"{protocol.verifier_name} is frozen, so no guess is replaced; remove {name}")


def _split_problems(
    experiment: Experiment, dataset: Dataset, test: Dataset | None, used: AbstractSet[str], at: PlaceOf
) -> Iterator[Problem]:
    """Yield a problem if datapoints are in both training and test: with equal ids, or equal columns in templates.

    Ids are not compared on the Hub, where each split is a file with its own ids.
    """
    training = experiment.training
    if training is None or test is None:
        return
    columns = sorted(used & {*dataset.columns} - {"split"})
    trained_contents = {_content_hash(point.columns, columns) for point in dataset.datapoints} if columns else set()
    ids = set() if experiment.dataset.path.startswith(HUB) else {point.id for point in dataset.datapoints}
    overlap = [p.id for p in test.datapoints if p.id in ids or _content_hash(p.columns, columns) in trained_contents]
    if overlap:
        key = "training.test.split"
        message = f"these datapoints are also trained on: {list_some(overlap)}; set dataset.split to another split"
        yield Problem(at(key), key, message, f"{key}: some datapoints are also trained on; set dataset.split")
    else:
        yield from _group_problems(experiment, dataset, test, at)


def _group_problems(experiment: Experiment, dataset: Dataset, test: Dataset, at: PlaceOf) -> Iterator[Problem]:
    """Yield a problem if groups are in both training and test, except on the Hub, where splits have their own names."""
    if dataset.group_by is None or experiment.dataset.path.startswith(HUB):
        return
    overlap = sorted({point.group for point in dataset.datapoints} & {point.group for point in test.datapoints})
    if overlap:
        key = "training.test.split"
        message = f"these groups are also trained on: {list_some(overlap)}; put each {dataset.group_by} in one split"
        yield Problem(at(key), key, message, f"{key}: some groups are also trained on; a group has one split")


def _content_hash(columns: Mapping[str, object], names: Sequence[str]) -> str:
    """Return a hash of the columns of a datapoint that templates use."""
    return tagged_hash("shown", [columns.get(name) for name in names])
