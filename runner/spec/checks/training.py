"""Check the `training` section of a spec: method, datapoints and splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from runner.base.hashing import tagged_hash
from runner.base.problems import Place, Problem
from runner.base.text import list_some
from runner.documents.dataclass_schema import changed_keys
from runner.game.protocols.protocol import Protocol
from runner.spec.checks.trainers import trainer_problems
from runner.spec.datasets.loader import HUB, Dataset
from runner.spec.experiment import Experiment
from runner.spec.training_settings import TrainingSettings

TEST_SPLIT = "training.test.split"


def training_problems(experiment: Experiment, protocol: Protocol, dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield the key and the message of each problem of the section `training`, except those of `split_problems`."""
    training = experiment.training
    if training is None:
        if experiment.kind == "training":
            yield "kind", "a training run needs a section `training`; add training.method and training.trainers"
        return
    if experiment.kind != "training":
        yield "training", "training works only with `kind: training`; set kind, or remove training"
    if training.rerun_tests is not None:
        return
    yield from _method_problems(experiment, training, protocol)
    yield from trainer_problems(experiment, training)
    requested, available = training.datapoints_per_iteration, len(dataset.datapoints)
    if requested is not None and requested > available:
        key = "training.datapoints_per_iteration"
        yield key, f"{requested} is more than the {available} datapoints of the dataset; set fewer"


def _method_problems(
    experiment: Experiment, training: TrainingSettings, protocol: Protocol
) -> Iterator[tuple[str, str]]:
    """Yield keys that the training method needs or does not use, each with a message."""
    responses = experiment.rollouts.num_responses_per_timestep
    key = "rollouts.num_responses_per_timestep"
    if training.method == "malt":
        if responses is None or responses < 2:
            yield "training.method", f"malt needs at least two responses per step; set {key}=2 or more"
        if training.guess_replacement.proportion:
            name = "training.guess_replacement.proportion"
            yield name, f"malt replaces no guesses, unlike expert_iteration; remove {name}"
        for changed_key in changed_keys(training.selection):
            name = f"training.selection.{changed_key}"
            yield name, f"malt selects no rollouts, unlike expert_iteration; remove {name}"
        return
    if responses is not None:
        yield key, f"expert_iteration plays single games, unlike malt; remove {key}"
    selection = training.selection
    without_replacement = selection.method == "weighted_sampling" and not selection.replacement
    if without_replacement and selection.sample_size_factor > 1:
        name = "training.selection.sample_size_factor"
        yield name, "a sample without replacement cannot be larger than all rollouts; lower it to 1"
    is_frozen = all(experiment.agents[judge].freeze for judge in protocol.verifier_names)
    if training.guess_replacement.proportion and is_frozen:
        name, judges = "training.guess_replacement.proportion", " and ".join(protocol.verifier_names)
        verb = "is" if len(protocol.verifier_names) == 1 else "are"
        yield name, f"{judges} {verb} frozen, so no guess is replaced; remove {name}"


def split_problems(
    experiment: Experiment,
    dataset: Dataset,
    test: Dataset | None,
    place: Place,
    used_variables: AbstractSet[str],
    *,
    names_datapoints: bool,
) -> Iterator[Problem]:
    """Yield a problem at `place` if datapoints or groups are in both training and test.

    `used_variables` has the variables of the templates. With `names_datapoints`, messages may name datapoints.
    """
    if experiment.training is None or test is None:
        return
    overlap = _find_overlap(experiment, dataset, test, used_variables)
    if overlap is not None:
        message, message_without_names = overlap
        place = place if names_datapoints else replace(place, is_own=False)
        yield Problem(place, TEST_SPLIT, message, f"{TEST_SPLIT}: {message_without_names}")


def _find_overlap(
    experiment: Experiment, dataset: Dataset, test: Dataset, used_variables: AbstractSet[str]
) -> tuple[str, str] | None:
    """Return a message, with and without names, about datapoints or groups in both datasets; None if there are none.

    Datapoints are equal if their ids or the columns that templates use are equal. On the Hub, ids and groups are not
    compared, because each split has its own names for them.
    """
    is_on_hub = experiment.dataset.path.startswith(HUB)
    columns = sorted(used_variables & {*dataset.columns} - {"split"})
    trained_contents = {_content_hash(point.columns, columns) for point in dataset.datapoints} if columns else set()
    trained_ids = set() if is_on_hub else {point.id for point in dataset.datapoints}
    trained = [
        point.id
        for point in test.datapoints
        if point.id in trained_ids or _content_hash(point.columns, columns) in trained_contents
    ]
    if trained:
        message = f"these datapoints are also trained on: {list_some(trained)}; set dataset.split to another split"
        return message, "some datapoints are also trained on; set dataset.split"
    if dataset.group_by is None or is_on_hub:
        return None
    groups = sorted({point.group for point in dataset.datapoints} & {point.group for point in test.datapoints})
    if not groups:
        return None
    message = f"these groups are also trained on: {list_some(groups)}; put each {dataset.group_by} in one split"
    return message, "some groups are also trained on; a group has one split"


def _content_hash(columns: Mapping[str, object], names: Sequence[str]) -> str:
    """Return a hash of the columns of a datapoint that templates use."""
    return tagged_hash("shown", [columns.get(name) for name in names])
