"""Errors as servers and proxies really send them: each with its class, and with what the user can do about it.

The words and forms are those of the named project or provider, as its source, its documentation or a bug report shows.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runner.base.errors import (
    NipRunError,
    ProviderRefusal,
)
from runner.models.interface import Completion, Request
from runner.models.providers.openai import OpenAiModel
from runner.models.providers.openai_errors import refuses_n
from tests.models.real_errors import (
    BILLING,
    CONTEXT,
    OTHERS,
    POLICY,
    RECEIVED,
    ROWS,
    Row,
    bare,
    error,
    litellm,
)
from tests.support.openai_calls import SAMPLE, PrescribedAnswerServer, model_settings
from tests.support.servers import frame
from tests.support.servers.in_loop import run_in_event_loop


async def _all_asked() -> dict[str, Completion | NipRunError]:
    came: dict[str, Completion | NipRunError] = {}
    async with run_in_event_loop(PrescribedAnswerServer(frame.Options()).connected) as address:
        model = OpenAiModel(model_settings(base_url=f"{address}/v1"), "small", 1)
        try:
            for name, row in ROWS.items():
                wanted = json.dumps({"status": row.status, "body": row.body, "headers": {}})
                try:
                    came[name] = await model.complete(Request("small", [{"role": "user", "content": wanted}], SAMPLE))
                except NipRunError as failure:
                    came[name] = failure
        finally:
            await model.close()
    return came


@pytest.fixture(scope="module")
def came() -> dict[str, Completion | NipRunError]:
    """What each row comes to over a socket."""
    return asyncio.run(_all_asked())


def test_what_a_real_server_says_has_its_class(came: dict[str, Completion | NipRunError]) -> None:
    for name, row in ROWS.items():
        error_ = came[name]
        of_one_call = error_.of_one_call if isinstance(error_, ProviderRefusal) else None
        assert type(of_one_call or error_) is row.expected, (name, error_)
        assert row.told in str(error_), name
        assert f"answered {row.status} {row.status}" not in str(error_), name
        assert len(str(error_)) < 1000, name


NO_N: dict[str, tuple[int, Any]] = {
    "OpenAI": (400, error("no", "invalid_request_error", None, "n")),
    "Groq": (400, error("'n' : number must be at most 1")),
    "llama.cpp": (400, error("Only one completion choice is allowed", code=400)),
    "llama.cpp, as 500": (500, error("Only one completion choice is allowed", "server_error", 500)),
    "vLLM": (400, bare("n must be 1 when using greedy sampling, got 2.")),
    "LiteLLM": (400, litellm(
        f"litellm.BadRequestError: Hosted_vllmException - n must be 1 when using greedy sampling, got 3.{RECEIVED}")),
    "DeepSeek": (400, error("Invalid n value (currently only n = 1 is supported)")),
    "FastAPI": (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "n"], "msg": "no", "input": 2}]}),
    "Mistral": (422, bare({"detail": [{"type": "extra_forbidden", "loc": ["body", "n"], "msg": "no"}]}, 422)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_N)
def test_a_server_that_gives_one_answer_a_call_is_known_by_its_words(name: str) -> None:
    assert refuses_n(*NO_N[name])


@pytest.mark.parametrize("row", [row for row in OTHERS if row.status in (400, 422, 500)], ids=lambda row: row.who)
def test_other_refusals_are_not_of_the_number_of_answers(row: Row) -> None:
    assert not refuses_n(row.status, row.body)


def test_the_table_has_enough_rows_of_each_kind() -> None:
    assert len(ROWS) == len(CONTEXT) + len(POLICY) + len(BILLING) + len(OTHERS) >= 80
