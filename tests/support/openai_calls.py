"""Single calls to an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Completion, Request, SampleKey
from runner.models.provider_traits import PROVIDERS
from runner.models.providers.openai import OpenAiModel
from runner.models.settings import ModelSettings
from tests.support.hang_guard import HANG_SECONDS
from tests.support.servers import frame
from tests.support.servers.client import LoopbackServer
from tests.support.servers.frame import Answer, Server
from tests.support.servers.in_loop import run_in_event_loop

CHAT: Sequence[ChatMessage] = (
    {"role": "system", "content": "You are the verifier. Decision: accept or Decision: reject."},
    {"role": "user", "name": "Expert_1", "content": "It is right. Ünïcode \x00 too."},
    {"role": "assistant", "content": "Why?"},
)
SAMPLE = SampleKey("p", 0, 0, "verifier", 0)


def model_settings(server: LoopbackServer | None = None, **fields: Any) -> ModelSettings:
    return ModelSettings(**{"model": "tiny", "base_url": server and server.base_url, "timeout": HANG_SECONDS, **fields})


def serve_openai_at(patch: pytest.MonkeyPatch, url: str) -> None:
    """Replace OpenAI's URL, which model groups without a `base_url` use, by the URL of a test server."""
    patch.setitem(PROVIDERS, "openai", replace(PROVIDERS["openai"], base_url=url))


def complete_chat(chosen: ModelSettings, chat: Sequence[ChatMessage] = CHAT) -> Completion:
    """Request one completion, then close the connections."""

    async def request_completion() -> Completion:
        model = OpenAiModel(chosen, "small", 4)
        try:
            return await model.complete(Request("small", chat, SAMPLE))
        finally:
            await model.close()

    return asyncio.run(request_completion())


class PrescribedAnswerServer(Server):
    """Answers with the status, body and headers that the last message of the request contains as JSON."""

    async def complete(self, request: frame.Request) -> Answer:
        answer = json.loads(request.json()["messages"][-1]["content"])
        body = answer["body"] if isinstance(answer["body"], str) else json.dumps(answer["body"])
        return Answer(answer["status"], body.encode(), answer["headers"])


def complete_with_answer(status: int, body: Any, headers: dict[str, str] | None = None) -> Completion:
    """Request one completion from a server that gives this answer."""
    message = json.dumps({"status": status, "body": body, "headers": headers or {}})

    async def request_completion() -> Completion:
        async with run_in_event_loop(PrescribedAnswerServer(frame.Options()).connected) as address:
            model = OpenAiModel(model_settings(base_url=f"{address}/v1"), "small", 1)
            try:
                return await model.complete(Request("small", [{"role": "user", "content": message}], SAMPLE))
            finally:
                await model.close()

    return asyncio.run(request_completion())
