"""Loads and unloads LoRA adapters at servers with vLLM's endpoints `/v1/load_lora_adapter` and `unload_lora_adapter`.

vLLM has these endpoints if it runs with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`. It loads an
adapter from a path in its own file system. If an adapter of the same name is already loaded, even from the same path,
vLLM answers with an error. `/v1/models` lists the loaded adapters, with the path as `root`. A restart unloads all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from runner.base.errors import NipRunError, RunError
from runner.base.redaction import redacted
from runner.base.text import escape_controls
from runner.models.providers.client_errors import (
    map_client_error,
    status_and_message,
    with_time_limit,
    without_secret_cause,
)
from runner.models.providers.openai import CLIENT_ERRORS, Client
from runner.models.settings import ModelSettings

T = TypeVar("T")

ADVICE = "start vLLM with --enable-lora, and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"


@dataclass
class ServerAdapter:
    """A LoRA adapter at one server, with the model name of a group."""

    settings: ModelSettings
    group: str
    path: str
    """The adapter's folder, as the server sees it."""

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loaded_at = -1.0

    @property
    def _label(self) -> str:
        return self.settings.server_label(self.group)

    async def load(self, client: Client, *, reload: bool = False) -> None:
        """Load the adapter at the server if it is not loaded. With `reload`, also load it again, as files may be new.

        Raises:
            TransientError: the server does not answer.
            RunError: the server cannot load the adapter, or has another model of this name.
            ProviderRefusal: the server refuses the user's API key or the model.
        """
        name, path = self.settings.name, self.path
        roots = await self._roots(client)
        if name in roots:
            if roots[name] not in (None, path):
                raise RunError(
                    f"{self._label} already has a model {name!r}, loaded from {roots[name]} instead of {path}; unload "
                    f"{name!r} at this server, or let the trainer write another name"
                )
            if not reload:
                return
            await self.unload(client)
        status, message = await self._call_endpoint(client, "load_lora_adapter", {"lora_name": name, "lora_path": path})
        if status == 404 and name not in message and path not in message:
            raise RunError(f"{self._label} has no endpoint /load_lora_adapter: {ADVICE}")
        if status is not None and name not in await self._roots(client):  # another process may have loaded it
            raise RunError(
                f"{self._label} cannot load the adapter {name!r} from {path}: {message}. Check that this path exists "
                "on the server's machine, and see the server's log"
            )
        self._loaded_at = time.monotonic()

    async def unload(self, client: Client) -> None:
        """Unload the adapter, if the server has it. Raises the errors of `load`."""
        name = self.settings.name
        status, message = await self._call_endpoint(client, "unload_lora_adapter", {"lora_name": name})
        if status not in (None, 404):
            raise RunError(f"{self._label} cannot unload the adapter {name!r}: {message}. See the server's log")

    async def restore(self, client: Client, failed_at: float) -> bool:
        """Load the adapter again if the server has lost it, and return whether the server has it now.

        `failed_at` is the start of the failed call. If the adapter was loaded after this, nothing is done, so that
        several failed calls cause only one reload.
        """
        async with self._lock:
            if self._loaded_at >= failed_at:
                return True
            try:
                await self.load(client)
            except NipRunError:
                return False  # the caller reports the server's answer to the call
            return True

    async def _roots(self, client: Client) -> dict[str, str | None]:
        """Return the models at the server by name, with the path of each model's files if the server reports it."""

        async def list_roots() -> dict[str, str | None]:
            models = await client.models.list()
            return {model.id: _text((model.model_extra or {}).get("root")) for model in models.data}

        return await self._call(list_roots())

    async def _call_endpoint(self, client: Client, endpoint: str, body: dict[str, Any]) -> tuple[int | None, str]:
        """Call one of vLLM's endpoints, and return None and the response, or the status and message of a refusal."""
        try:
            return None, await self._call(client.post(f"/{endpoint}", cast_to=str, body=body))
        except _OperationRefused as refusal:
            return refusal.status, str(refusal)

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await with_time_limit(self.settings, call)
        except (*CLIENT_ERRORS, AttributeError, TypeError) as error:
            status, message = status_and_message(error)
            if status in (400, 404, 409, 422):
                raise _OperationRefused(status, escape_controls(redacted(message))[:500]) from None
            raise map_client_error(error, self.settings, self.group) from without_secret_cause(error)


class _OperationRefused(RunError):
    """Raised if a server refuses to load or unload an adapter, or to list its models."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
