"""Misbehaving servers: calls stay within time and memory limits, raise the right error, and hide the key."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from runner.base.errors import NipRunError, ProviderRefusal, TransientError
from runner.models.answers import choices_of
from runner.models.interface import Completion, Request
from runner.models.providers.http_model import MAX_WRONG_ANSWERS
from runner.models.providers.openai import OpenAiModel
from runner.models.settings import ModelSettings
from tests.support.hang_guard import HANG_SECONDS
from tests.support.openai_calls import CHAT, SAMPLE, complete_chat
from tests.support.processes import nip_run_here, wait_until
from tests.support.runs import journal_records, only_run, table
from tests.support.servers.client import LoopbackServer, run_loopback_server
from tests.support.servers.misbehaving import ANSWER, ROWS
from tests.support.specs import spec_file

KEY = "sk-Loop/back+0123456789abcdef"
REMOVED = "[secret removed]"
ATTEMPTS = 3


class ExpectedResult(NamedTuple):
    """Expected exit code, number of calls and journal contents for a row."""

    code: int
    calls: int = 1
    text: str | None = None
    altered: tuple[str, ...] = ()
    outcome: str | None = None


def expect_answer(
    text: str | None = ANSWER, *altered: str, calls: int = 1, outcome: str | None = "decided"
) -> ExpectedResult:
    """Expect that the paid answer is saved."""
    return ExpectedResult(0, calls, text, altered, outcome)


FAILED = ExpectedResult(1, ATTEMPTS, outcome="transport_failed")
"""A transport failure, retried as often as the policy allows."""
TOO_LARGE = FAILED._replace(calls=2)
NOT_RETRIED = FAILED._replace(calls=1)
REFUSED = ExpectedResult(4)
NOT_AN_API = ExpectedResult(4, MAX_WRONG_ANSWERS)
"""Transport failures, until there are too many for a server that has never answered."""
NOT_A_TEXT = expect_answer(None, outcome=None)

EXPECTED_RESULTS: dict[str, ExpectedResult] = {
    **dict.fromkeys(
        (
            "endless body", "endless chunks", "endless chunk", "endless blanks before JSON", "40 MiB", "gzip bomb",
        ),
        TOO_LARGE,
    ),
    **dict.fromkeys(("endless refusal", *(name for name in ROWS if name.startswith("redirect"))), REFUSED),
    **dict.fromkeys(("gzip", "gzip in two members", "no length", "one continue"), expect_answer()),
    **dict.fromkeys(
        (
            "HTML", "nothing", "no content", "null", "list", "number", "text", "deep nesting", "stream of events",
            "30 MiB that are no JSON", "switching protocols", "length too short", "no HTTP", "HTTP 0.9",
            "HTTP 2 preface", "TLS alert", "zeros", "status 0", "status in words", "key in the status line",
        ),
        NOT_AN_API,
    ),
    "the next answer in the same packet": expect_answer(calls=3),
    "the next answer a moment later": expect_answer(),
    **dict.fromkeys(
        (
            "key in an answer", "key in an answer, escaped", "key in an answer, slashes escaped",
            "key in an answer, escaped and deep",
        ),
        expect_answer(f"{REMOVED} {ANSWER}", "secret"),
    ),
    "key in an answer, in Base64": expect_answer(f"QmVhcmVyIHNr{REMOVED} {ANSWER}", "secret"),
    "key in an answer, in hexadecimal": expect_answer(f"{REMOVED} {ANSWER}", "secret"),
    "key in an answer that is no UTF-8": expect_answer(f"{REMOVED} \ufffd {ANSWER}", "bytes", "secret"),
    **dict.fromkeys(
        (
            "key in another field", "key in the name of a field", "key in the model",
        ),
        expect_answer(ANSWER, "secret"),
    ),
    "key in the finish reason": expect_answer(ANSWER, "secret", outcome=None),
    "key in a refusal": expect_answer(None, "secret", outcome="refused"),
    **dict.fromkeys(
        ("key in an error that refuses", "key in the code of an error", "key in the parameter of an error",
         "error of a wrong type"), REFUSED,
    ),
    "content in parts": expect_answer(),
    "refusal in a proxy's fields": expect_answer(None, "secret", outcome="refused"),
    **dict.fromkeys(("blank at the limit", "cut at the limit"), expect_answer(None, outcome="invalid_response")),
    **dict.fromkeys(("quota in words alone", "hard limit"), REFUSED),
    **dict.fromkeys(("content null", "content a number", "content nested"), NOT_A_TEXT),
    **dict.fromkeys(
        (
            "usage negative", "usage huge", "usage a text", "usage missing", "model a number", "model a list",
            "keys twice",
        ),
        expect_answer(),
    ),
    **dict.fromkeys(
        ("finish reason a number", "finish reason missing", "finish reason nested"), expect_answer(outcome=None)
    ),
    "bad UTF-8": expect_answer(f"\ufffd\ufffd\ufffd\ufffd {ANSWER}", "bytes"),
    "half of a pair": expect_answer(f"\ufffd {ANSWER}", "bytes"),
    "half of a pair, deep": expect_answer(f"\ufffd {ANSWER}", "bytes"),
    "two halves the wrong way round": expect_answer(f"\ufffd\ufffd {ANSWER}", "bytes"),
    "byte-order mark": expect_answer(ANSWER, "bytes"),
    "NUL in a text": expect_answer(f"\0 {ANSWER}"),
    "raw control characters": expect_answer(f"\0\x01\x1b\x7f {ANSWER}", "bytes"),
    **dict.fromkeys(
        ("not a number", "several documents", "exponent of 5,000", "integer of 5,000 digits"),
        expect_answer(ANSWER, "bytes"),
    ),
    **{name: expect_answer(calls=2) for name in ROWS if name.startswith("retry after") and "year" not in name},
    **dict.fromkeys(("retry after a billion seconds", "retry after the year 9999"), NOT_RETRIED),
}  # fmt: skip
"""Rows whose result is not `FAILED`."""

SLOW_ROWS = {
    "slow body", "slow head", "silence", "endless continues", "endless size of a chunk", "endless extension of a chunk",
    "endless trailers",
}  # fmt: skip
"""Rows that only the timeout of a call ends."""


def test_expected_results_name_only_existing_rows() -> None:
    assert EXPECTED_RESULTS.keys() <= ROWS.keys()
    assert ROWS.keys() >= SLOW_ROWS
    assert len(ROWS) >= 100


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_loopback_server(LoopbackServer, "misbehaving") as started:
        yield started


@pytest.fixture(autouse=True)
def _short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the probe for another scheme: these servers never answer it, so it always runs into its time limit."""
    monkeypatch.setattr("runner.models.providers.http_model.PROBE_SECONDS", 0.05)


def make_settings(server: LoopbackServer, row: str) -> ModelSettings:
    timeout = 0.3 if row in SLOW_ROWS else 2 * HANG_SECONDS
    base_url = f"{server.root}/{quote(row)}/v1"
    return ModelSettings(model="tiny", base_url=base_url, api_key_env="ROW_VARIABLE", timeout=timeout)


def write_spec(folder: Path, server: LoopbackServer, row: str, **changes: Any) -> Path:
    return spec_file(
        folder,
        f"{server.root}/{quote(row)}/run/v1",  # a separate address, because some rows misbehave only once
        size=3 if row.startswith("the next") else 1,
        protocol={"use": "solo_verifier", "max_message_rounds": None},
        prompts="prompts/code_validation/solo_verifier",
        models={"m": {"api_key_env": "ROW_VARIABLE", "timeout": 2.0 if row in SLOW_ROWS else 2 * HANG_SECONDS}},
        agents={"prover": None},
        retry={
            "transient": {"first_wait": 0.0, "max_wait": 0.0, "attempts": ATTEMPTS},
            "invalid_response": {"attempts": 1},
        },
        rollouts={"concurrency": 1},
        **changes,
    )


def read_answer_text(record: dict[str, Any]) -> str | None:
    """Return the text of a recorded answer."""
    if "choices" in record:  # an answer that came as an error
        return None
    body = record["answer"] if "answer" in record else json.loads(record["answer_text"])
    return choices_of(body)[0].text


def assert_key_is_absent(data: bytes, name: str) -> None:
    forms = (KEY.encode(), KEY.encode().hex().encode(), base64.b64encode(KEY.encode()), KEY[3:].encode())
    escaped = ("".join(f"\\u{ord(c):04x}" for c in KEY).encode(), quote(KEY, safe="").encode())
    percents = "".join(f"%{ord(c):02X}" for c in KEY).encode()
    for form in (*forms, *escaped, percents, KEY.replace("/", "\\/").encode()):
        assert form not in data, name


# Single calls


def try_call(model: ModelSettings) -> tuple[Completion | None, NipRunError | None]:
    """Return the answer, or the error of the call."""
    try:
        return complete_chat(model), None
    except NipRunError as error:
        return None, error


ERROR_CLASSES: dict[int, type[NipRunError]] = {1: TransientError, 4: ProviderRefusal}


@pytest.mark.gate
@pytest.mark.parametrize("row", ROWS)
def test_a_call_to_a_misbehaving_server_has_the_expected_result(
    row: str, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    expected = EXPECTED_RESULTS.get(row, FAILED)
    started = time.monotonic()
    completion, error = try_call(make_settings(server, row))
    assert time.monotonic() - started < HANG_SECONDS  # the timeout did not end it
    if completion is not None:
        assert expected.code == 0
        assert (completion.choices[0].text, completion.altered) == (expected.text, expected.altered)
        assert_key_is_absent(str(completion).encode(), "completion")
    else:
        is_first = expected == NOT_AN_API or row.startswith("retry after")
        assert type(error) is (TransientError if is_first else ERROR_CLASSES[expected.code])
        assert getattr(error, "attempts", None) == (2 if expected == TOO_LARGE else None)
        assert_key_is_absent("".join(traceback.format_exception(error)).encode(), "traceback")


def test_unrequested_bytes_are_not_taken_as_an_answer(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes arrive after an answer and before the next request on the connection."""
    monkeypatch.setenv("ROW_VARIABLE", KEY)

    row = quote("the next answer a moment later")
    address = f"/{row}/of/its/own"

    async def calls() -> list[str | None]:
        model = OpenAiModel(replace(make_settings(server, row), base_url=server.root + address), "small", 1)
        try:
            texts: list[str | None] = []
            for _ in range(3):
                completion = await model.complete(Request("small", CHAT, SAMPLE))
                texts.append(completion.choices[0].text)
                await asyncio.to_thread(
                    wait_until, lambda: server.stats().get(f"{address}/chat/completions") == len(texts)
                )
            return texts
        finally:
            await model.close()

    assert asyncio.run(calls()) == [ANSWER] * 3


# Whole runs


ALWAYS_TESTED_ROWS = (
    "endless body", "redirect that tells the key", "TLS alert", "usage huge", "content null",
    "key in an answer, escaped and deep", "key in an error that refuses", "another key after Bearer",
)  # fmt: skip
"""Some rows of each kind; `.ci/full` tests the other rows, too."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "row",
    [
        name if name in ALWAYS_TESTED_ROWS else pytest.param(name, marks=pytest.mark.full)
        for name in ROWS
        if name != "the next answer a moment later"
    ],
)
def test_a_run_on_a_misbehaving_server_has_the_expected_result(
    row: str, server: LoopbackServer, tmp_path: Path
) -> None:
    calls_before = server.stats().get(row, 0)
    started = time.monotonic()
    done = nip_run_here(write_spec(tmp_path, server, row), "--results", tmp_path / "r", "-v", "-v", cwd=tmp_path,
                        ROW_VARIABLE=KEY)  # fmt: skip
    expected = EXPECTED_RESULTS.get(row, FAILED)
    assert (done.returncode, server.stats()[row] - calls_before) == (expected.code, expected.calls), done.stderr
    assert time.monotonic() - started < HANG_SECONDS

    run = only_run(tmp_path / "r")
    records = journal_records(run)
    answers = [record for record in records if record["kind"] == "call"]
    assert {(read_answer_text(record), tuple(record.get("altered", ()))) for record in answers} == (
        {(expected.text, expected.altered)} if expected.code == 0 else set()
    )
    if expected.outcome is not None and expected.code in (0, 1):
        assert {rollout["outcome"] for rollout in table(run, "rollouts")} == {expected.outcome}
    if "secret" in expected.altered:
        assert done.stderr.count("removed a secret") == 1
    assert server.stats().get("elsewhere", 0) == 0

    assert_key_is_absent(done.stdout.encode() + done.stderr.encode(), "output")
    for path in (tmp_path / "r").rglob("*"):
        if path.is_file():
            assert_key_is_absent(path.read_bytes(), path.name)
    for name in ("rollouts", "messages", "completions"):
        if (run / f"{name}.parquet").exists():
            assert_key_is_absent(json.dumps(table(run, name), default=str).encode(), name)
    assert "abc-def" not in done.stderr
