"""A trainer's settings into the backend that they name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

from runner.errors import RunError
from runner.models.policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.trainers import TrainerSettings
from runner.training.backends.base import Backend
from runner.training.backends.command import CommandBackend, startable_problems
from runner.training.backends.dummy import DummyBackend
from runner.training.backends.files import FilesBackend


def backend_for(
    group: str,
    trainer: TrainerSettings,
    model: ModelSettings,
    manual_model: str | None = None,
    *,
    policy: TransientPolicy | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Backend:
    """The backend of one model group. `manual_model` is what `--set-model GROUP=NAME` gave for it.

    `sleep` waits between attempts, for as long as a server asks for; one that raises ends the waiting.

    Raises:
        ProviderRefusal: the environment holds no key.
        RunError: the backend cannot work as it is set.
    """
    if trainer.backend == "dummy":
        return DummyBackend()
    if trainer.backend == "files":
        return FilesBackend(manual_model)
    if trainer.backend == "openai":
        # Here and not above: the client takes 0.4 s to import.
        from runner.training.backends.openai import OpenAiBackend

        return OpenAiBackend(group, trainer, model, policy=policy or TransientPolicy(), sleep=sleep)
    return CommandBackend(group, trainer)


def check_startable(trainers: Mapping[str, TrainerSettings]) -> None:
    """See that every trainer of the user's own can be started from here, before games are paid for.

    Raises:
        RunError: some cannot; what each lacks.
    """
    problems = [
        f"training.trainers.{group}.command: {problem}"
        for group, trainer in trainers.items()
        if trainer.backend == "command"
        for problem in startable_problems(trainer.command or ())
    ]
    if problems:
        raise RunError("\n".join(problems))


def poll_seconds_of(trainer: TrainerSettings) -> float:
    """How long to wait between two looks at a job: a process of ours is looked at for nothing, a server is not."""
    return trainer.poll_seconds or (1.0 if trainer.backend == "command" else 30.0)


def format_of_trainer(trainer: TrainerSettings) -> Literal["openai", "trl"]:
    """The format of the datasets that a trainer gets."""
    return trainer.format or ("trl" if trainer.backend == "command" else "openai")
