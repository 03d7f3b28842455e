"""Creates fine-tuning backends by name, from a trainer's settings.

`runner.spec.backend_traits.TRAITS` declares the capabilities of each backend under the same name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.base.errors import RunError
from runner.base.plugins import ExtensibleTable
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.backend_traits import BACKEND_PLUGINS, BackendName
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.command import CommandBackend, startable_problems
from runner.training.backends.dummy import DummyBackend
from runner.training.backends.files import FilesBackend
from runner.training.backends.interface import Backend


@dataclass(frozen=True)
class TrainedGroup:
    """A model group to train, with everything that a backend may need to know about it."""

    name: str
    trainer: TrainerSettings
    model: ModelSettings
    manual_model: str | None = None
    """The name from `--set-model GROUP=NAME`, if given."""
    policy: TransientPolicy = field(default_factory=TransientPolicy)
    """The policy for retries of failed calls to a provider."""
    sleep: Callable[[float], object] = time.sleep
    """Waits between attempts, also for the time that a server requests. If it raises an error, the wait ends."""
    cwd: Path | None = None
    """The working folder of a `command`; None for the current folder."""


def _openai(group: TrainedGroup) -> Backend:
    # Import the backend only if it is used, because importing its client takes 0.4 s.
    from runner.training.backends.openai import OpenAiBackend

    return OpenAiBackend(group.name, group.trainer, group.model, policy=group.policy, sleep=group.sleep)


def _backend_of_plugin(name: str) -> Callable[[TrainedGroup], Backend]:
    """Import a plugin, and return the function that creates its backend."""
    plugin, create = BACKEND_PLUGINS.load(name)

    def create_and_check(group: TrainedGroup) -> Backend:
        with plugin.reported_errors():
            backend: Backend = create(group)
        plugin.check_result(backend, "submit", "poll")
        return backend

    return create_and_check


_BUILTIN: Mapping[BackendName, Callable[[TrainedGroup], Backend]] = {
    "openai": _openai,
    "command": lambda group: CommandBackend(group.name, group.trainer, group.cwd),
    "files": lambda group: FilesBackend(group.manual_model),
    "dummy": lambda _: DummyBackend(),
}

BACKENDS = ExtensibleTable[Callable[[TrainedGroup], Backend]](_BUILTIN, _backend_of_plugin)


def create_backend(group: TrainedGroup) -> Backend:
    """Create the backend of a model group.

    Raises:
        ProviderRefusal: the environment has no API key.
        RunError: the backend's settings are not valid.
    """
    return BACKENDS[group.trainer.backend](group)


def check_startable(trainers: Mapping[str, TrainerSettings], stored: Mapping[str, Collection[str]]) -> None:
    """Check that every `command` trainer can be started on this machine, before games are paid for.

    `stored` are the paths of the files that came with fetched trainers, by model group.

    Raises:
        RunError: a trainer cannot be started; the message lists everything that is missing.
    """
    problems = [
        f"training.trainers.{group}.command: {problem}"
        for group, trainer in trainers.items()
        if trainer.command is not None
        for problem in startable_problems(trainer, stored.get(group, ()))
    ]
    if problems:
        raise RunError("\n".join(problems))
