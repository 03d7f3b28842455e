"""LoRA adapters at servers that load them while they run, by vLLM's `/v1/load_lora_adapter` and `unload_lora_adapter`.

vLLM has these with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`. It loads from a path, as it sees it,
and answers a name that it has with an error, whatever it was loaded from: what it has, it says by `/v1/models`, where
the `root` of an adapter is that path. A server that is started again has none.
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
from runner.models.providers.client_errors import map_client_error, status_and_message, within, without_secret_cause
from runner.models.providers.openai import CLIENT_ERRORS, Client
from runner.models.settings import ModelSettings

T = TypeVar("T")

HOW = "start vLLM with --enable-lora, and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: the model's name, and the folder that it lies in, as its servers see it."""

    name: str
    path: str


@dataclass
class AdapterAt:
    """An adapter at one server."""

    settings: ModelSettings
    group: str
    adapter: Adapter

    def __post_init__(self) -> None:
        self._loading = asyncio.Lock()
        self._loaded_at = -1.0

    @property
    def _here(self) -> str:
        return self.settings.server_label(self.group)

    async def load(self, client: Client, *, anew: bool = False) -> None:
        """Have the server load it, unless it has it; `anew`: even so, since that may have been from other files.

        Raises:
            TransientError: the server does not answer.
            RunError: it cannot load it, or has another one of that name.
            ProviderRefusal: it refuses to serve us.
        """
        name, path = self.adapter.name, self.adapter.path
        found = await self._roots(client)
        if name in found:
            if found[name] not in (None, path):
                raise RunError(
                    f"{self._here} has a model {name!r} already, from {found[name]}, and not from {path}; unload it "
                    "there, or have the trainer write another name"
                )
            if not anew:
                return
            await self.unload(client)
        status, said = await self._told(client, "load_lora_adapter", {"lora_name": name, "lora_path": path})
        if status == 404 and name not in said and path not in said:
            raise RunError(f"{self._here} has no /load_lora_adapter: {HOW}")
        if status is not None and name not in await self._roots(client):  # another process may have been first
            raise RunError(f"{self._here} cannot load the adapter {name!r} from {path}: {said}")
        self._loaded_at = time.monotonic()

    async def unload(self, client: Client) -> None:
        """Have the server forget it; one that has none of that name is as it should be. Raises as `load`."""
        status, said = await self._told(client, "unload_lora_adapter", {"lora_name": self.adapter.name})
        if status not in (None, 404):
            raise RunError(f"{self._here} does not unload the adapter {self.adapter.name!r}: {said}")

    async def again(self, client: Client, since: float) -> bool:
        """Load it at a server that says it has no such model to a call sent at `since`; whether it has it now."""
        async with self._loading:
            if self._loaded_at >= since:
                return True
            try:
                await self.load(client)
            except NipRunError:
                return False  # what the server said to the call is told
            return True

    async def _roots(self, client: Client) -> dict[str, str | None]:
        """What the server serves, each model with the place that it says it is from."""

        async def listed() -> dict[str, str | None]:
            found = await client.models.list()
            return {one.id: _text((one.model_extra or {}).get("root")) for one in found.data}

        return await self._asked(listed())

    async def _told(self, client: Client, what: str, body: dict[str, Any]) -> tuple[int | None, str]:
        """Tell the server; its status and words where it refuses this, and no status where it does it."""
        try:
            return None, await self._asked(client.post(f"/{what}", cast_to=str, body=body))
        except _Refused as refused:
            return refused.status, str(refused)

    async def _asked(self, call: Awaitable[T]) -> T:
        try:
            return await within(self.settings, call)
        except (*CLIENT_ERRORS, AttributeError, TypeError) as error:
            status, said = status_and_message(error)
            if status in (400, 404, 409, 422):
                raise _Refused(status, escape_controls(redacted(said))[:500]) from None
            raise map_client_error(error, self.settings, self.group) from without_secret_cause(error)


class _Refused(RunError):
    """The server says no to this one thing."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
