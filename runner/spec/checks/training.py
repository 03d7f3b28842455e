"""The `training` section of a spec: method, datapoints and splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from runner.base.errors import PlaceOf, Problem
from runner.base.hashing import tagged_hash
from runner.base.text import comma_join
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
    """What is wrong with the training of a spec, as far as it shows before a game is played.

    `used` has the variables of the templates; `names_datapoints` is whether messages may name datapoints.
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
        yield Problem(at("training"), "training", "this is for `kind: training`; set it, or leave the section out")
    if training.rerun_tests is None:
        yield from _method_problems(experiment, protocol, at)
        yield from trainer_problems(experiment, at)
        yield from _size_problems(training, dataset, at)
    for problem in _split_problems(experiment, dataset, test, used, at):
        yield problem if names_datapoints else replace(problem, place=replace(problem.place, is_own=False))


def _size_problems(training: TrainingSettings, dataset: Dataset, at: PlaceOf) -> Iterator[Problem]:
    asked, there = training.datapoints_per_iteration, len(dataset.datapoints)
    if asked is not None and asked > there:
        key = "training.datapoints_per_iteration"
        yield Problem(at(key), key, f"{asked} is more than the {there} datapoints there are; lower it")


def _method_problems(experiment: Experiment, protocol: Protocol, at: PlaceOf) -> Iterator[Problem]:
    training = experiment.training
    assert training is not None
    trees = experiment.rollouts.num_responses_per_timestep
    key = "rollouts.num_responses_per_timestep"
    if training.method == "malt":
        if trees is None or trees < 2:
            yield Problem(at("training.method"), key, "malt compares answers to one step; set it to 2 or more")
        if training.guess_replacement.proportion:
            name = "training.guess_replacement.proportion"
            yield Problem(at(name), name, "malt replaces no guesses, this is for expert_iteration; leave it out")
        for changed_key in changed_keys(training.selection):
            name = f"training.selection.{changed_key}"
            yield Problem(at(name), name, "malt selects no rollouts, this is for expert_iteration; leave it out")
        return
    if trees is not None:
        yield Problem(at(key), key, "expert_iteration plays single games, trees are for malt; leave it out")
    selection = training.selection
    drawn_once = selection.method == "weighted_sampling" and not selection.replacement
    if drawn_once and selection.sample_size_factor > 1:
        name = "training.selection.sample_size_factor"
        yield Problem(at(name), name, "more than there are cannot be drawn without replacement")
    if training.guess_replacement.proportion and experiment.agents[protocol.verifier_name].freeze:
        name = "training.guess_replacement.proportion"
        yield Problem(at(name), name, f"{protocol.verifier_name} is frozen, so nothing is trained on its guesses")


def _split_problems(
    experiment: Experiment, dataset: Dataset, test: Dataset | None, used: AbstractSet[str], at: PlaceOf
) -> Iterator[Problem]:
    """Datapoints that are both trained and tested on: by their ids, or by the columns that templates use.

    On the Hub each split is a file, with ids of its own.
    """
    training = experiment.training
    if training is None or test is None:
        return
    columns = sorted(used & {*dataset.columns} - {"split"})
    trained = {_content(point.columns, columns) for point in dataset.datapoints} if columns else set()
    ids = set() if experiment.dataset.path.startswith(HUB) else {point.id for point in dataset.datapoints}
    both = [p.id for p in test.datapoints if p.id in ids or _content(p.columns, columns) in trained]
    if both:
        shown = comma_join(both[:5]) + (f" and {len(both) - 5} more" if len(both) > 5 else "")
        key = "training.test.split"
        kind = f"{key}: some datapoints are trained on, too; set dataset.split"
        yield Problem(at(key), key, f"these datapoints are trained on, too: {shown}; set dataset.split", kind)
    else:
        yield from _group_problems(experiment, dataset, test, at)


def _group_problems(experiment: Experiment, dataset: Dataset, test: Dataset, at: PlaceOf) -> Iterator[Problem]:
    """Groups that are both trained and tested on. On the Hub each split is a file, with names of groups of its own."""
    if dataset.group_by is None or experiment.dataset.path.startswith(HUB):
        return
    both = sorted({point.group for point in dataset.datapoints} & {point.group for point in test.datapoints})
    if both:
        shown = comma_join(both[:5]) + (f" and {len(both) - 5} more" if len(both) > 5 else "")
        key = "training.test.split"
        message = f"datapoints of these groups are trained on, too: {shown}; a group ({dataset.group_by}) has one split"
        yield Problem(at(key), key, message, f"{key}: some groups are trained on, too; a group has one split")


def _content(columns: Mapping[str, object], names: Sequence[str]) -> str:
    """Hash what the templates show of a datapoint."""
    return tagged_hash("shown", [columns.get(name) for name in names])
