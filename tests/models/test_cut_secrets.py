"""What is quoted of a server in a message is searched for keys before it is cut: no half of one gets out."""

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
K = KEY.encode()
OK = b"HTTP/1.1 200 OK\r\n"
CLOSED = OK + b"connection: close\r\n\r\n"


def tells(text: str) -> bool:
    """Whether a text has a piece of the key."""
    return any(KEY[i : i + PIECE] in text for i in range(len(KEY) - PIECE + 1))


def failure(sent: bytes) -> str:
    """All there is to see of a call that was answered with these bytes."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(1 << 16)).startswith(b"POST "):  # and not the handshake that asks whether this is TLS
            writer.write(sent)
            await writer.drain()
        writer.close()

    async def once() -> str:
        async with run_in_event_loop(reply) as address:
            model = OpenAiModel(model_settings(base_url=f"{address}/v1", api_key_env="ROW_VARIABLE"), "small", 1)
            try:
                with pytest.raises(TransientError) as raised:
                    await model.complete(Request("small", CHAT, SAMPLE))
                return "".join(traceback.format_exception(raised.value, chain=True)) + str(raised.value)
            finally:
                await model.close()

    return asyncio.run(once())


@pytest.mark.parametrize(
    "sent",
    [
        OK + b"content-encoding: " + K + b"\r\ncontent-length: 2\r\n\r\n{}",
        OK + b"x: " + b"p" * 60 + K + b"a" * 20_000 + b"\r\n\r\n",
        OK + b"x: " + b"p" * 60 + K + b"\0\r\n\r\n",
        b"HTTP/1.1 " + K[1:] + b" OK\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n" + b"0" * 80 + K + b"\r\n\r\n",
        OK + b"x: y\r\n" + K[:40],
        CLOSED + b"{" * 10 + K[:-1] + b"\\u005a",
        CLOSED + b"{" * 10 + K[:20] + b"\n" + K[20:],
    ],
    ids=["encoding", "long line", "bad header", "status", "chunk", "cut head", "no JSON, escaped", "no JSON, in lines"],
)
def test_no_piece_of_the_key_is_quoted(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    monkeypatch.setattr("runner.models.providers.wrong_server.PROBE_SECONDS", 0.05)  # nothing greets the probe
    assert not tells(failure(sent))


@pytest.mark.parametrize("spelled", [KEY, "".join(f"\\u{ord(c):04x}" for c in KEY), "Bearer " + "b" * 1200 + " " + KEY])
def test_a_start_has_no_piece_of_a_value_at_its_cut(spelled: str) -> None:
    redactor = Redactor([KEY])
    for before in range(0, 2400, 7):
        start = redactor.redact_start(b"x" * before + spelled.encode() + b"y" * 2400, 100)
        assert not tells(start)
        assert "\\u" not in start


def test_a_start_and_an_end_of_honest_text_are_whole() -> None:
    redactor = Redactor([KEY])
    data = b"".join(b"%06d" % i for i in range(2000))
    assert redactor.redact_start(data, 60) == data[:60].decode()
    assert redactor.redact_end(data, 60) == data[-60:].decode()
    assert redactor.redact_start(b"short", 60) == redactor.redact_end(b"short", 60) == "short"


def test_an_end_has_no_piece_of_a_value_at_its_cut() -> None:
    redactor = Redactor([KEY])
    for after in range(1000, 1400):
        assert not tells(redactor.redact_end(b"x" * 2000 + K + b" Bearer " + b"b" * after, 100))


def test_an_error_of_a_library_is_told_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    error = ValueError("no number:")
    error.__cause__ = OSError(f"x {KEY}")
    assert not tells(str(map_client_error(error, model_settings(), "small")))
    assert without_secret_cause(error) is None
    assert without_secret_cause(ValueError("honest")) is not None
