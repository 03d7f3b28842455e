"""How a model group is connected to its provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from runner.models.admission import Learn
from runner.models.interface import Completion, Request
from runner.models.provider_traits import ProviderName
from runner.models.providers.dummy import DummyModel, examples_behind
from runner.models.providers.openai_body import as_sent
from runner.models.settings import ModelSettings
from runner.models.shared_servers import Servers, connections_of


class Provider(Protocol):
    """What every provider is: openai, dummy and replay are equals."""

    async def complete(self, request: Request) -> Completion: ...

    async def close(self) -> None: ...


class ReplayedRun(NamedTuple):
    """A run whose answers are taken: its folder, and its identity where that is known."""

    run: Path
    identity: str | None


@dataclass(frozen=True)
class ToConnect:
    """What a provider is connected for: a model group, who learns of its rates, and the run that it replays."""

    group: str
    settings: ModelSettings
    servers: Servers
    learn: Learn | None
    replayed: ReplayedRun | None
    labels: Mapping[str, int]


def _openai(to: ToConnect) -> Provider:
    # Here and not above: the client takes 0.4 s to import, and most commands call no model.
    from runner.models.providers.adapters import Adapter, AdapterAt
    from runner.models.providers.openai import OpenAiModel, close_client, make_client

    settings, servers = to.settings, to.servers
    places, connections = servers.places(settings), servers.concurrency
    # The client holds the connections, and of the settings only where they go, by which key, and for how long.
    client = servers.kept(
        connections_of(settings), lambda: make_client(settings, to.group, connections, places), close_client
    )
    path = servers.adapters.get(settings.name)
    reload = None if path is None else AdapterAt(settings, to.group, Adapter(settings.name, path)).again
    return OpenAiModel(settings, to.group, connections, learn=to.learn, places=places, client=client, reload=reload)


def _dummy(to: ToConnect) -> Provider:
    settings = to.settings
    top = (settings.top_logprobs or 0) if settings.logprobs else None
    examples = examples_behind(settings.model)
    return DummyModel(examples, to.labels, top_logprobs=top, words=settings.answer_words)


def _replay(to: ToConnect) -> Provider:
    from runner.models.providers.replay import ReplayModel

    assert to.replayed is not None, to.group
    return ReplayModel(*to.replayed, sent=lambda request: as_sent(to.settings, request.messages))


CONNECTORS: Mapping[ProviderName, Callable[[ToConnect], Provider]] = {
    "openai": _openai,
    "dummy": _dummy,
    "replay": _replay,
}
"""How a group of each provider is connected."""
