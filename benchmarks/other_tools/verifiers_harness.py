"""A harness of verifiers that sends a chat to the model from this process, instead of a separate program."""

from __future__ import annotations

import json
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

CLIENT = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=None)


class DirectConfig(vf.HarnessConfig):
    pass


class Direct(vf.Harness[DirectConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, *_: Any, **__: Any) -> ProgramResult:
        raise NotImplementedError("the players are always asked by turns")

    async def resume(self, *arguments: Any) -> ProgramResult:
        context, _, _, endpoint, secret, _, _, messages, _ = arguments
        body = {"model": context.model, "messages": json.loads(messages[0].content)}
        headers = {"authorization": f"Bearer {secret}"}
        response = await CLIENT.post(f"{endpoint}/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        return ProgramResult(0, "", "")


__all__ = ["Direct"]
