"""Model groups into one way to ask any of them: provider, then limit, then retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.errors import TransientError
from runner.models import dummy
from runner.models.base import Complete, Completion, Request
from runner.models.policy import TransientPolicy
from runner.models.retry import Failed, with_retries
from runner.models.settings import ModelSettings

Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Connection:
    """How every model group of a run is asked, and how the connections are closed."""

    complete: Complete
    closers: tuple[Close, ...] = ()

    async def close(self) -> None:
        for close in self.closers:
            await close()


async def _ignore(request: Request, attempt: int, error: TransientError, wait: float) -> None:
    del request, attempt, error, wait


def connect(
    groups: Mapping[str, ModelSettings],
    policy: TransientPolicy,
    *,
    concurrency: int = 64,
    replays: Mapping[str, Path] | None = None,
    failed: Failed = _ignore,
) -> Connection:
    """Connect every group. At most `concurrency` calls are in flight; one that waits to retry is not.

    Raises:
        ProviderRefusal: a group's key is missing.
        RunError: a run to replay has no journal.
    """
    providers: dict[str, Complete] = {}
    closers: list[Close] = []
    for group, settings in groups.items():
        if settings.provider == "dummy":
            providers[group] = dummy.complete
        elif settings.provider == "replay":
            from runner.models.replay import ReplayModel

            replayed = ReplayModel((replays or {})[group])
            providers[group] = replayed.complete
            closers.append(replayed.close)
        else:
            # Here and not above: the client takes 0.4 s to import, and most commands call no model.
            from runner.models.openai import OpenAiModel

            model = OpenAiModel(settings, group, concurrency)
            providers[group] = model.complete
            closers.append(model.close)
    in_flight = asyncio.Semaphore(concurrency)

    async def limited(request: Request) -> Completion:
        async with in_flight:
            return await providers[request.group](request)

    return Connection(with_retries(limited, policy, failed), tuple(closers))
