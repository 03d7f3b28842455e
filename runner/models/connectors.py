"""Connect model groups to their providers. Nothing outside `runner.models` imports a provider; it asks here.

Clients are imported when they are needed: each takes about 0.4 s, and most commands call no model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.errors import UsageError
from runner.models.admission import Learn
from runner.models.interface import Completion, Provider, Request
from runner.models.provider_traits import ProviderName
from runner.models.providers.dummy import DummyModel
from runner.models.settings import ModelSettings
from runner.models.shared_servers import Servers, connections_of
from runner.models.toy_models import examples_behind

if TYPE_CHECKING:
    from runner.models.providers.adapters import AdapterAt
    from runner.models.providers.http_model import HttpModel
    from runner.models.providers.openai import Client
    from runner.models.providers.openai_batch import BatchModel
    from runner.models.providers.openai_fine_tuning import OpenAiFineTuning


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


def _anthropic(to: ToConnect) -> Provider:
    try:
        from runner.models.providers.anthropic import AnthropicModel
    except ImportError as error:
        raise UsageError(
            f"models.{to.group}: provider anthropic needs the package anthropic ({error}); "
            "pip install 'nip-run[anthropic]'"
        ) from error
    return _over_http(AnthropicModel, to)


def _openai(to: ToConnect) -> Provider:
    from runner.models.providers.adapters import Adapter, AdapterAt
    from runner.models.providers.openai import OpenAiModel

    path = to.servers.adapters.get(to.settings.name)
    reload = None if path is None else AdapterAt(to.settings, to.group, Adapter(to.settings.name, path)).again
    return _over_http(OpenAiModel, to, reload=reload)


def _over_http(kind: type[HttpModel], to: ToConnect, **options: Any) -> Provider:
    from runner.models.providers.http_model import close_client

    settings, servers = to.settings, to.servers
    places, connections = servers.places(settings), servers.concurrency
    # The client holds the connections, and of the settings only the address, the key, the headers and the time limit.
    client = servers.kept(
        connections_of(settings), lambda: kind.make_client(settings, to.group, connections, places), close_client
    )
    return kind(settings, to.group, connections, learn=to.learn, places=places, client=client, **options)


def _dummy(to: ToConnect) -> Provider:
    settings = to.settings
    top = (settings.top_logprobs or 0) if settings.logprobs else None
    examples = examples_behind(settings.model)
    return DummyModel(examples, to.labels, top_logprobs=top, words=settings.answer_words)


def _replay(to: ToConnect) -> Provider:
    from runner.models.layers.replay import ReplayModel

    assert to.replayed is not None, to.group
    return ReplayModel(*to.replayed, sent=lambda request: to.settings.sent_messages(request.messages))


CONNECTORS: Mapping[ProviderName, Callable[[ToConnect], Provider]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "dummy": _dummy,
    "replay": _replay,
}
"""How a group of each provider is connected."""


def connect_batches(settings: ModelSettings, group: str, *args: Any, **options: Any) -> BatchModel:
    """Connect a group that is asked by batch; the arguments are those of `BatchModel`."""
    from runner.models.providers.openai_batch import BatchModel

    return BatchModel(settings, group, *args, **options)


def sync_client(settings: ModelSettings, group: str) -> Any:
    """Return the provider's official synchronous client for a model group.

    Raises:
        UsageError: the provider has none.
        ProviderRefusal: the environment holds no key.
    """
    if not settings.traits.has_sync_client:
        raise UsageError(
            f"models.{group}: provider {settings.provider} has no client; call forward() or _make_generation_api_call()"
        )
    from runner.models.providers.openai import make_sync_client

    return make_sync_client(settings, group)


def fine_tuning_api(settings: ModelSettings, group: str) -> OpenAiFineTuning:
    """Return the fine-tuning API of a model group's server.

    Raises:
        ProviderRefusal: the environment holds no key.
    """
    from runner.models.providers.openai_fine_tuning import OpenAiFineTuning

    return OpenAiFineTuning(settings, group)


async def load_adapter(settings: ModelSettings, group: str, path: str, *, anew: bool) -> None:
    """Have a group's server load a LoRA adapter under the group's model name; raises like `AdapterAt.load`."""
    async with _adapter_client(settings, group, path) as (adapter, client):
        await adapter.load(client, anew=anew)


async def unload_adapter(settings: ModelSettings, group: str) -> None:
    """Have a group's server unload the LoRA adapter with the group's model name; raises like `AdapterAt.unload`."""
    async with _adapter_client(settings, group, "") as (adapter, client):
        await adapter.unload(client)


@asynccontextmanager
async def _adapter_client(settings: ModelSettings, group: str, path: str) -> AsyncIterator[tuple[AdapterAt, Client]]:
    from runner.models.providers.adapters import Adapter, AdapterAt
    from runner.models.providers.http_model import close_client
    from runner.models.providers.openai import make_client

    client = make_client(settings, group, connections=1)
    try:
        yield AdapterAt(settings, group, Adapter(settings.name, path)), client
    finally:
        await close_client(client)


async def offline_answer(request: Request) -> Completion:
    """Answer a request without a model or a network, in the form that the request expects."""
    return await DummyModel().complete(request)
