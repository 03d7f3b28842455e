"""The fine-tune backends by name, and a trainer's settings into the backend that they name.

What each backend can do is declared under the same names in `runner.spec.backend_traits.TRAITS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import RunError
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.backend_traits import BackendName
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.command import CommandBackend, startable_problems
from runner.training.backends.dummy import DummyBackend
from runner.training.backends.files import FilesBackend
from runner.training.backends.interface import Backend


@dataclass(frozen=True)
class TrainedGroup:
    """All that a backend may need to know of the model group that it trains."""

    name: str
    trainer: TrainerSettings
    model: ModelSettings
    manual_model: str | None
    """What `--set-model GROUP=NAME` gave."""
    policy: TransientPolicy
    sleep: Callable[[float], object]
    here: Path | None = None
    """The folder that a `command` runs in; None: the current folder."""


def _openai(group: TrainedGroup) -> Backend:
    # Imported here and not above: the client takes 0.4 s.
    from runner.training.backends.openai import OpenAiBackend

    return OpenAiBackend(group.name, group.trainer, group.model, policy=group.policy, sleep=group.sleep)


BACKENDS: Mapping[BackendName, Callable[[TrainedGroup], Backend]] = {
    "openai": _openai,
    "command": lambda group: CommandBackend(group.name, group.trainer, group.here),
    "files": lambda group: FilesBackend(group.manual_model),
    "dummy": lambda _: DummyBackend(),
}


def backend_for(
    group: str,
    trainer: TrainerSettings,
    model: ModelSettings,
    manual_model: str | None = None,
    *,
    policy: TransientPolicy | None = None,
    sleep: Callable[[float], object] = time.sleep,
    here: Path | None = None,
) -> Backend:
    """The backend of one model group. `manual_model` is what `--set-model GROUP=NAME` gave for it, and `here` is the
    folder that a `command` runs in.

    `sleep` waits between attempts, for as long as a server asks for; one that raises ends the waiting.

    Raises:
        ProviderRefusal: the environment holds no key.
        RunError: the backend cannot work as it is set.
    """
    made_for = TrainedGroup(group, trainer, model, manual_model, policy or TransientPolicy(), sleep, here)
    return BACKENDS[trainer.backend](made_for)


def check_startable(trainers: Mapping[str, TrainerSettings], stored: Mapping[str, Collection[str]]) -> None:
    """See that every trainer of the user's own can be started from here, before games are paid for.

    `stored` are the paths of the files that came with fetched trainers, by model group.

    Raises:
        RunError: some cannot; what each lacks.
    """
    problems = [
        f"training.trainers.{group}.command: {problem}"
        for group, trainer in trainers.items()
        if trainer.command is not None
        for problem in startable_problems(trainer, stored.get(group, ()))
    ]
    if problems:
        raise RunError("\n".join(problems))
