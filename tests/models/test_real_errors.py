"""Real errors of servers and proxies: each raises its class, with a message that says what to do.

The texts are taken from the source, documentation or bug reports of the named project or provider.
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
    OTHER_ERRORS,
    POLICY,
    ROWS,
    SUFFIX,
    Row,
    bare,
    error,
    litellm,
)
from tests.support.openai_calls import SAMPLE, PrescribedAnswerServer, model_settings
from tests.support.servers import frame
from tests.support.servers.in_loop import run_in_event_loop


async def _complete_all() -> dict[str, Completion | NipRunError]:
    outcomes: dict[str, Completion | NipRunError] = {}
    async with run_in_event_loop(PrescribedAnswerServer(frame.Options()).connected) as address:
        model = OpenAiModel(model_settings(base_url=f"{address}/v1"), "small", 1)
        try:
            for name, row in ROWS.items():
                prescribed = json.dumps({"status": row.status, "body": row.body, "headers": {}})
                try:
                    outcomes[name] = await model.complete(
                        Request("small", [{"role": "user", "content": prescribed}], SAMPLE)
                    )
                except NipRunError as failure:
                    outcomes[name] = failure
        finally:
            await model.close()
    return outcomes


@pytest.fixture(scope="module")
def outcomes_by_row() -> dict[str, Completion | NipRunError]:
    """Map each row's name to the outcome of a call that gets the row as its response."""
    return asyncio.run(_complete_all())


@pytest.mark.gate
def test_real_error_raises_its_class_with_the_expected_message(
    outcomes_by_row: dict[str, Completion | NipRunError],
) -> None:
    for name, row in ROWS.items():
        outcome = outcomes_by_row[name]
        of_one_call = outcome.of_one_call if isinstance(outcome, ProviderRefusal) else None
        assert type(of_one_call or outcome) is row.expected, (name, outcome)
        assert row.expected_message in str(outcome), name
        assert f"answered {row.status} {row.status}" not in str(outcome), name
        assert len(str(outcome)) < 1000, name


NO_N: dict[str, tuple[int, Any]] = {
    "OpenAI": (400, error("no", "invalid_request_error", None, "n")),
    "Groq": (400, error("'n' : number must be at most 1")),
    "llama.cpp": (400, error("Only one completion choice is allowed", code=400)),
    "llama.cpp, as 500": (500, error("Only one completion choice is allowed", "server_error", 500)),
    "vLLM": (400, bare("n must be 1 when using greedy sampling, got 2.")),
    "LiteLLM": (400, litellm(
        f"litellm.BadRequestError: Hosted_vllmException - n must be 1 when using greedy sampling, got 3.{SUFFIX}")),
    "DeepSeek": (400, error("Invalid n value (currently only n = 1 is supported)")),
    "FastAPI": (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "n"], "msg": "no", "input": 2}]}),
    "Mistral": (422, bare({"detail": [{"type": "extra_forbidden", "loc": ["body", "n"], "msg": "no"}]}, 422)),
}  # fmt: skip


@pytest.mark.gate
@pytest.mark.parametrize("name", NO_N)
def test_refusal_of_n_is_recognized_by_its_message(name: str) -> None:
    assert refuses_n(*NO_N[name])


@pytest.mark.gate
@pytest.mark.parametrize(
    "row", [row for row in OTHER_ERRORS if row.status in (400, 422, 500)], ids=lambda row: row.source
)
def test_other_errors_are_not_taken_for_a_refusal_of_n(row: Row) -> None:
    assert not refuses_n(row.status, row.body)


@pytest.mark.gate
def test_the_table_has_enough_rows_of_each_kind() -> None:
    assert len(ROWS) == len(CONTEXT) + len(POLICY) + len(BILLING) + len(OTHER_ERRORS) >= 80
