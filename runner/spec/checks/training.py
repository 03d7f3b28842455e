"""Check the `training` section of a spec: method, datapoints, splits, and a trainer for each trained model group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from runner.base.hashing import tagged_hash
from runner.base.problems import Place, Problem
from runner.base.text import comma_join, did_you_mean, list_some
from runner.documents.dataclass_schema import changed_keys
from runner.game.protocols.protocol import Protocol
from runner.models.settings import ModelSettings
from runner.spec.backend_traits import HYPERPARAMETERS, TRAITS
from runner.spec.datasets.loader import HUB, Dataset
from runner.spec.experiment import Experiment
from runner.spec.training_settings import TrainerSettings, TrainingSettings

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


def trainer_problems(experiment: Experiment, training: TrainingSettings) -> Iterator[tuple[str, str]]:
    """Yield the key and the message of each problem of the trained agents and of their trainers."""
    agents_of = {
        group: [name for name, agent in experiment.agents.items() if agent.model == group]
        for group in experiment.models
    }
    for group, agents in agents_of.items():
        yield from _untrained_problems(experiment, training, group, agents)
    if all(agent.freeze for agent in experiment.agents.values()):
        yield "training", "all agents are frozen, so there is nothing to train; set agents.NAME.freeze: false for one"
    for group, trainer in training.trainers.items():
        key = f"training.trainers.{group}"
        if group in experiment.models:
            yield from _group_problems(experiment, agents_of[group], group, key)
            yield from _server_problems(trainer, experiment.models[group], key)
            yield from _key_problems(training, trainer, key)
        else:
            yield key, f"no model group {group!r}{did_you_mean(group, experiment.models) or '; remove the trainer'}"


def _untrained_problems(
    experiment: Experiment, training: TrainingSettings, group: str, agents: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Check that no model group has both trained and frozen agents, or trained agents and no trainer."""
    frozen = [name for name in agents if experiment.agents[name].freeze]
    trained = [name for name in agents if name not in frozen]
    if frozen and trained:
        key = f"agents.{frozen[0]}.freeze"
        yield key, f"training {comma_join(trained)} would change its model too; give {frozen[0]} a separate model group"
    if trained and not frozen and group not in training.trainers:
        freeze = comma_join(f"agents.{name}.freeze: true" for name in trained)
        message = (
            f"no trainer for model group {group!r} (used by {comma_join(trained)}); add training.trainers.{group} "
            f"or set {freeze}"
        )
        yield "training.trainers", message


def _group_problems(experiment: Experiment, agents: Sequence[str], group: str, key: str) -> Iterator[tuple[str, str]]:
    """Check that the model group of a trainer can be trained, and that a trained agent uses it."""
    if all(experiment.agents[name].freeze for name in agents):
        yield key, "no trained agent uses this model group; remove the trainer"
    if experiment.models[group].traits.needs_run:
        yield key, "a group that replays a run cannot be trained; remove the trainer"
    if experiment.models[group].traits.asks_people:
        yield key, "people cannot be trained; remove the trainer, and set freeze=true for the agents of this group"


def _server_problems(trainer: TrainerSettings, model: ModelSettings, key: str) -> Iterator[tuple[str, str]]:
    """Check that the backend fits the group's provider and servers."""
    if trainer.traits.trains_at_server and not model.traits.trains:
        yield f"{key}.backend", f"the group's provider {model.provider} has no fine-tuning; choose another backend"
    if trainer.traits.trains_at_server and len(model.addresses) > 1:
        message = "only the server that trains a model serves it; set one base_url, or choose another backend"
        yield f"{key}.backend", message
    if trainer.load_lora and trainer.traits is TRAITS["command"]:
        key = f"{key}.load_lora"
        if not model.traits.remote or None in model.addresses:
            yield key, "only your own server can load adapters; set base_url of the group"
        elif trainer.command is not None and not any("{output}" in argument for argument in trainer.command):
            yield key, "the adapter is read from {output}; add {output} to the command"
    if trainer.traits.names_only and model.traits.remote:
        message = (
            f"`backend: {trainer.backend}` trains nothing, so no server knows its models; use it only with a provider "
            "without a server"
        )
        yield f"{key}.backend", message


def _key_problems(training: TrainingSettings, trainer: TrainerSettings, key: str) -> Iterator[tuple[str, str]]:
    """Check that the keys which the backend requires are set, and that it reads each key which is set."""
    minimum, min_key = trainer.traits.min_examples, "training.min_examples"
    if training.min_examples < minimum:
        yield min_key, f"`backend: {trainer.backend}` needs at least {minimum} examples; raise {min_key}"
    for name in sorted(trainer.traits.requires):
        if getattr(trainer, name) is None:
            yield f"{key}.{name}", f"required by `backend: {trainer.backend}`; add {key}.{name}"
    for message in command_problems(trainer.command) if trainer.command is not None else ():
        yield f"{key}.command", message
    for name in changed_keys(trainer):
        reason = _explain_unread(trainer, name, training.method)
        if reason is not None:
            yield f"{key}.{name}", f"`backend: {trainer.backend}`: {reason}"


def _explain_unread(trainer: TrainerSettings, name: str, method: str) -> str | None:
    """Return why the backend does not read a key of the trainer; None if it reads the key."""
    backends = [backend for backend, traits in TRAITS.items() if name in traits.reads]
    if backends and name not in trainer.traits.reads:
        if name in HYPERPARAMETERS:
            return trainer.traits.instead
        return f"{name} works only with {comma_join(f'`{backend}`' for backend in backends)}; remove {name}"
    if name == "beta" and method != "malt":
        return f"beta works only with malt (DPO), but {method} trains supervised; remove beta"
    return None


PLACEHOLDERS = ("dataset", "base_model", "output", "model_file", "method", "seed", "group")


PLACEHOLDER = re.compile(r"\{(\w+)\}")


def command_problems(command: Sequence[str]) -> list[str]:
    """Return everything that is wrong with a trainer's argument list."""
    used = [name for argument in command for name in PLACEHOLDER.findall(argument)]
    available = comma_join(f"{{{name}}}" for name in PLACEHOLDERS)
    problems = [
        f"unknown placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)} (available: {available})"
        for name in dict.fromkeys(used)
        if name not in PLACEHOLDERS
    ]
    if not command or not command[0].strip():
        problems.append("the program is missing; write it as the first argument")
    if any("\0" in argument for argument in command):
        problems.append(
            "an argument contains a NUL character, which cannot be passed to a program; remove the character"
        )
    if "dataset" not in used:
        problems.append(
            "{dataset} is missing: the trainer would not get the training file; add {dataset} as an argument"
        )
    if "model_file" not in used and "output" not in used:
        problems.append(
            "{model_file} or {output} is missing: the trainer could not report the new model; add one of them as an "
            "argument"
        )
    return problems
