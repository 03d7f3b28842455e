"""Quoted server responses are searched for keys before truncation, so no part of a key is shown."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from runner.base.errors import TransientError
from runner.base.redaction import Redactor
from runner.models.interface import Request
from runner.models.providers.client_errors import map_client_error, without_secret_cause
from runner.models.providers.openai import OpenAiModel
from tests.support.openai_calls import CHAT, SAMPLE, model_settings
from tests.support.servers.in_loop import run_in_event_loop

KEY = "sk-Half/of+it-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PIECE = 8
KEY_BYTES = KEY.encode()
OK_LINE = b"HTTP/1.1 200 OK\r\n"
CLOSED_HEAD = OK_LINE + b"connection: close\r\n\r\n"


def has_key_piece(text: str) -> bool:
    """Return whether a text contains a piece of the key."""
    return any(KEY[i : i + PIECE] in text for i in range(len(KEY) - PIECE + 1))


def format_failure(response: bytes) -> str:
    """Return the traceback and message of a call that was answered with these bytes."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(1 << 16)).startswith(b"POST "):  # not the handshake that probes for TLS
            writer.write(response)
            await writer.drain()
        writer.close()

    async def complete_once() -> str:
        async with run_in_event_loop(reply) as address:
            model = OpenAiModel(model_settings(base_url=f"{address}/v1", api_key_env="ROW_VARIABLE"), "small", 1)
            try:
                with pytest.raises(TransientError) as raised:
                    await model.complete(Request("small", CHAT, SAMPLE))
                return "".join(traceback.format_exception(raised.value, chain=True)) + str(raised.value)
            finally:
                await model.close()

    return asyncio.run(complete_once())


@pytest.mark.parametrize(
    "response",
    [
        OK_LINE + b"content-encoding: " + KEY_BYTES + b"\r\ncontent-length: 2\r\n\r\n{}",
        OK_LINE + b"x: " + b"p" * 60 + KEY_BYTES + b"a" * 20_000 + b"\r\n\r\n",
        OK_LINE + b"x: " + b"p" * 60 + KEY_BYTES + b"\0\r\n\r\n",
        b"HTTP/1.1 " + KEY_BYTES[1:] + b" OK\r\n\r\n",
        OK_LINE + b"transfer-encoding: chunked\r\n\r\n" + b"0" * 80 + KEY_BYTES + b"\r\n\r\n",
        OK_LINE + b"x: y\r\n" + KEY_BYTES[:40],
        CLOSED_HEAD + b"{" * 10 + KEY_BYTES[:-1] + b"\\u005a",
        CLOSED_HEAD + b"{" * 10 + KEY_BYTES[:20] + b"\n" + KEY_BYTES[20:],
    ],
    ids=["encoding", "long line", "bad header", "status", "chunk", "cut head", "no JSON, escaped", "no JSON, in lines"],
)
def test_no_piece_of_the_key_is_quoted_in_an_error(response: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    # The server sends nothing to the probe.
    monkeypatch.setattr("runner.models.providers.http_model.PROBE_SECONDS", 0.05)
    assert not has_key_piece(format_failure(response))


@pytest.mark.parametrize("spelled", [KEY, "".join(f"\\u{ord(c):04x}" for c in KEY), "Bearer " + "b" * 1200 + " " + KEY])
def test_redacted_start_has_no_piece_of_a_secret_at_its_cut(spelled: str) -> None:
    redactor = Redactor([KEY])
    for padding in range(0, 2400, 7):
        start = redactor.redact_start(b"x" * padding + spelled.encode() + b"y" * 2400, 100)
        assert not has_key_piece(start)
        assert "\\u" not in start


def test_start_and_end_without_secrets_are_unchanged() -> None:
    redactor = Redactor([KEY])
    data = b"".join(b"%06d" % i for i in range(2000))
    assert redactor.redact_start(data, 60) == data[:60].decode()
    assert redactor.redact_end(data, 60) == data[-60:].decode()
    assert redactor.redact_start(b"short", 60) == redactor.redact_end(b"short", 60) == "short"


def test_redacted_end_has_no_piece_of_a_secret_at_its_cut() -> None:
    redactor = Redactor([KEY])
    for after in range(1000, 1400):
        assert not has_key_piece(redactor.redact_end(b"x" * 2000 + KEY_BYTES + b" Bearer " + b"b" * after, 100))


def test_library_error_is_reported_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    error = ValueError("no number:")
    error.__cause__ = OSError(f"x {KEY}")
    assert not has_key_piece(str(map_client_error(error, model_settings(), "small")))
    assert without_secret_cause(error) is None
    assert without_secret_cause(ValueError("honest")) is not None
