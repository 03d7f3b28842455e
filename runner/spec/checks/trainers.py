"""Check that each trained model group of a spec has a trainer, and each trainer only keys that its backend reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import changed_keys
from runner.models.settings import ModelSettings
from runner.spec.backend_traits import HYPERPARAMETERS, TRAITS
from runner.spec.checks.trainer_command import command_problems
from runner.spec.experiment import Experiment
from runner.spec.training_settings import TrainerSettings, TrainingSettings


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
