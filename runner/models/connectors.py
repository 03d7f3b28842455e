"""Connects model groups to their providers. Other packages use this module, and never a provider's module.

Clients are imported only when they are needed, because each import takes about 0.4 s and most commands call no model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.errors import RunError, UsageError
from runner.base.plugins import ExtensibleTable, Plugin
from runner.models.admission import RateListener
from runner.models.interface import Completion, Provider, Request, Usage, estimate_prompt_tokens, estimate_tokens
from runner.models.provider_traits import PROVIDER_PLUGINS, ProviderName
from runner.models.providers.dummy import DummyModel
from runner.models.server_states import Servers, connection_key
from runner.models.settings import ModelSettings
from runner.models.toy_models import training_examples

if TYPE_CHECKING:
    from runner.models.providers.http_model import HttpModel
    from runner.models.providers.lora_adapters import ServerAdapter
    from runner.models.providers.openai import Client
    from runner.models.providers.openai_batch import BatchModel
    from runner.models.providers.openai_fine_tuning import OpenAiFineTuning


NO_PAGE = "people answer only while `nip-run SPEC` or `nip-run rejudge` plays a run; use one of these commands"
"""The advice if provider `human` is used where no page can be opened."""


class ReplayedRun(NamedTuple):
    """A run whose answers are replayed: its folder, and its identity (the hash that identifies a run) if known."""

    run: Path
    identity: str | None


@dataclass(frozen=True)
class ConnectionTarget:
    """A model group to connect, with everything that a provider needs for it."""

    group: str
    settings: ModelSettings
    servers: Servers
    on_headers: RateListener | None
    """Receives the headers of each answer, which may report rate limits."""
    replayed: ReplayedRun | None
    """The run that the group replays, if any."""
    labels: Mapping[str, int | str]
    """The labels of the datapoints by id, for the dummy of a trained model, or the texts of the right answers."""


def _anthropic(target: ConnectionTarget) -> Provider:
    try:
        from runner.models.providers.anthropic import AnthropicModel
    except ImportError as error:
        raise UsageError(
            f"models.{target.group}: provider anthropic needs the package anthropic ({error}); "
            "run pip install 'nip-run[anthropic]'"
        ) from error
    return _over_http(AnthropicModel, target)


def _openai(target: ConnectionTarget) -> Provider:
    from runner.models.providers.lora_adapters import ServerAdapter
    from runner.models.providers.openai import OpenAiModel

    settings = target.settings
    path = target.servers.adapters.get(settings.name)
    reload = None if path is None else ServerAdapter(settings, target.group, path).restore
    return _over_http(OpenAiModel, target, reload=reload)


def _over_http(model: type[HttpModel], target: ConnectionTarget, **options: Any) -> Provider:
    """Return a provider of this class for a model group, with a client that may be shared with other groups."""
    from runner.models.providers.http_model import close_client

    settings, servers = target.settings, target.servers
    body_slots, connections = servers.body_slots(settings), servers.concurrency
    # Groups share a client if they have the same address, key, headers and time limit, so that they share connections.
    client = servers.shared_client(
        connection_key(settings),
        lambda: model.make_client(settings, target.group, connections, body_slots),
        close_client,
    )
    return model(settings, target.group, connections, target.on_headers, body_slots, client=client, **options)


def _dummy(target: ConnectionTarget) -> Provider:
    settings = target.settings
    top = (settings.top_logprobs or 0) if settings.logprobs else None
    examples = training_examples(settings.model)
    return DummyModel(examples, target.labels, top_logprobs=top, answer_words=settings.answer_words)


def _replay(target: ConnectionTarget) -> Provider:
    from runner.models.layers.replay import ReplayModel

    assert target.replayed is not None, target.group
    return ReplayModel(*target.replayed, sent_messages=lambda request: target.settings.sent_messages(request.messages))


def _refuse_people(target: ConnectionTarget) -> Provider:
    """Refuse to connect a group that people answer for, since only a run with a page can ask them.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"models.{target.group}: {NO_PAGE}")


@dataclass(frozen=True)
class _PluginModel:
    """A provider of a plugin. Its errors name the plugin, and tokens that it does not count are estimated."""

    plugin: Plugin
    model: Provider

    async def complete(self, request: Request) -> Completion:
        started = perf_counter()
        with self.plugin.reported_errors():
            completion = await self.model.complete(request)
        self.plugin.check_result(completion, *Completion.__slots__)
        if not completion.choices or not all(isinstance(choice.text, str | None) for choice in completion.choices):
            raise RunError(f"{self.plugin} returned a completion without choices, or whose text is not a str or None")
        usage, latency_ms = completion.usage, completion.latency_ms or (perf_counter() - started) * 1000
        if usage == Usage():
            tokens = sum(estimate_tokens(choice.text or "") for choice in completion.choices)
            usage = Usage(estimate_prompt_tokens(request.messages), tokens, estimated=True)
        return replace(completion, usage=usage, latency_ms=round(latency_ms, 3))  # the journal's precision

    async def close(self) -> None:
        with self.plugin.reported_errors():
            await self.model.close()


def _connector_of_plugin(name: str) -> Callable[[ConnectionTarget], Provider]:
    """Import a plugin, and return the function that connects a model group to its provider."""
    plugin, connect = PROVIDER_PLUGINS.load(name)

    def connect_to_plugin(target: ConnectionTarget) -> Provider:
        with plugin.reported_errors():
            model = connect(target)
        plugin.check_result(model, "complete", "close")
        return _PluginModel(plugin, model)

    return connect_to_plugin


_BUILTIN: Mapping[ProviderName, Callable[[ConnectionTarget], Provider]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "human": _refuse_people,
    "dummy": _dummy,
    "replay": _replay,
}

CONNECTORS = ExtensibleTable[Callable[[ConnectionTarget], Provider]](_BUILTIN, _connector_of_plugin)
"""The function that connects a model group to each provider."""


def connect_batches(settings: ModelSettings, group: str, *args: Any, **options: Any) -> BatchModel:
    """Connect a model group to the Batch API. The further arguments are those of `BatchModel`."""
    from runner.models.providers.openai_batch import BatchModel

    return BatchModel(settings, group, *args, **options)


def sync_client(settings: ModelSettings, group: str) -> Any:
    """Return the provider's official synchronous client for a model group.

    Raises:
        UsageError: the provider has no synchronous client.
        ProviderRefusal: the environment variable of the key is empty.
    """
    if not settings.traits.has_sync_client:
        raise UsageError(
            f"models.{group}: provider {settings.provider} has no synchronous client; call forward() or "
            "_make_generation_api_call() instead"
        )
    from runner.models.providers.openai import make_sync_client

    return make_sync_client(settings, group)


def fine_tuning_api(settings: ModelSettings, group: str) -> OpenAiFineTuning:
    """Return the fine-tuning API of a model group's server.

    Raises:
        ProviderRefusal: the environment variable of the key is empty.
    """
    from runner.models.providers.openai_fine_tuning import OpenAiFineTuning

    return OpenAiFineTuning(settings, group)


async def load_adapter(settings: ModelSettings, group: str, path: str, *, reload: bool) -> None:
    """Load a LoRA adapter at a group's server, with the group's model name. Raises as `ServerAdapter.load`."""
    async with _adapter_client(settings, group, path) as (adapter, client):
        await adapter.load(client, reload=reload)


async def unload_adapter(settings: ModelSettings, group: str) -> None:
    """Unload the LoRA adapter with the group's model name. Raises the errors of `ServerAdapter.unload`."""
    async with _adapter_client(settings, group, "") as (adapter, client):
        await adapter.unload(client)


@asynccontextmanager
async def _adapter_client(
    settings: ModelSettings, group: str, path: str
) -> AsyncIterator[tuple[ServerAdapter, Client]]:
    from runner.models.providers.http_model import close_client
    from runner.models.providers.lora_adapters import ServerAdapter
    from runner.models.providers.openai import make_client

    client = make_client(settings, group, connections=1)
    try:
        yield ServerAdapter(settings, group, path), client
    finally:
        await close_client(client)


async def offline_answer(request: Request) -> Completion:
    """Answer a request without a model or a network, in the form that the request expects."""
    return await DummyModel().complete(request)
