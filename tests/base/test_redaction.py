"""Secrets are removed in any encoding, and other text is unchanged."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from runner.base.redaction import MIN_LENGTH, REMOVED, Redactor, secrets_in
from runner.models.providers.openai_http import without_secrets

KEY = "sk-Loop/back+0123456789abcdef"
REDACTOR = Redactor([KEY])


@pytest.mark.parametrize("before", ["", "B", "Be", "Bearer ", "user:", "authorization: Bearer "])
@pytest.mark.parametrize("after", ["", "!", "\r\n"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_secret_inside_base64_is_removed(before: str, after: str, encode: object) -> None:
    assert callable(encode)
    data = b"x " + encode((before + KEY + after).encode()) + b" y"
    assert REDACTOR.contains(data)
    pieces = REDACTOR.redact(data).replace(REMOVED.encode(), b"").split()[1:-1]
    assert all(len(piece) <= len(encode((before + after).encode())) + 8 for piece in pieces)


@pytest.mark.parametrize(
    "form",
    [
        KEY, KEY.replace("/", "\\/"), quote(KEY), quote(KEY, safe=""), KEY.encode().hex(), KEY.encode().hex().upper(),
        "".join(f"\\u{ord(c):04x}" for c in KEY), "".join(f"\\u{ord(c):04X}" for c in KEY),
        "".join(f"%{ord(c):02x}" for c in KEY), "".join(f"&#{ord(c)};" for c in KEY),
        "".join(f"&#x{ord(c):X};" for c in KEY), "".join(f"\\x{ord(c):02x}" for c in KEY),
        "".join(c if i % 2 else f"\\u{ord(c):04x}" for i, c in enumerate(KEY)),
    ],
)  # fmt: skip
def test_secret_is_removed_in_any_encoding(form: str) -> None:
    assert REDACTOR.redact_text(f"you sent {form}, twice: {form}") == f"you sent {REMOVED}, twice: {REMOVED}"


@pytest.mark.parametrize(
    "message",
    [
        "authorization: Bearer abc", "BEARER abc", "bearer%20abc", "Bearer\\u0020abc", "Bearer: abc",
        "{'a': 'Bearer abc'}",
    ],
)  # fmt: skip
def test_any_bearer_token_is_removed(message: str) -> None:
    cleaned = REDACTOR.redact_text(message)
    assert "abc" not in cleaned
    assert REMOVED in cleaned
    assert REDACTOR.redact_text(cleaned) == cleaned


ENCODED = base64.encodebytes(b"authorization: Bearer " + KEY.encode() * 3).decode()


@pytest.mark.parametrize(
    "form",
    [
        KEY.encode().hex(" "), KEY.encode().hex(" ").upper(), KEY.encode().hex("\n", 16), f"{KEY[:9]}\r\n {KEY[9:]}",
        f"{KEY[:9]}\\r\\n\\t{KEY[9:]}", " ".join(KEY), quote(KEY, safe="").replace("%", "\n%"),
    ],
)  # fmt: skip
def test_secret_with_white_space_inside_is_removed(form: str) -> None:
    assert REDACTOR.redact_text(f"you sent {form}, twice: {form}") == f"you sent {REMOVED}, twice: {REMOVED}"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n", "\\r\\n"])
def test_secret_in_multiline_base64_is_removed(end: str) -> None:
    for width in (20, 64, 76):
        encoded = ENCODED.replace("\n", "")
        lines = end.join(encoded[start : start + width] for start in range(0, len(encoded), width))
        assert (
            len("".join(REDACTOR.redact_text(lines).replace(REMOVED, "").replace("\\n", "").split()))
            < len(encoded) // 2
        )


@pytest.mark.parametrize("text", ["a b " * 20_000, "s " * 30_000, "s" + " " * 65_000, "s\\n" * 20_000, "\n" * 65_000])
def test_white_space_is_redacted_in_bounded_time(text: str) -> None:
    started = time.process_time()
    REDACTOR.redact_text(text + " ".join(KEY) + text)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("text", ["", "a bear", "the bearer", "100 % \\ &# sure", "sk-Loop", "\ud800 \0 ü"])
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert REDACTOR.redact_text(text) == text


def test_longer_of_two_overlapping_secrets_is_removed_completely() -> None:
    assert Redactor([KEY, KEY + "-and-more"]).redact_text(f"{KEY}-and-more {KEY}") == f"{REMOVED} {REMOVED}"


def test_short_values_are_not_redacted() -> None:
    short = "x" * (MIN_LENGTH - 1)
    assert Redactor([short]).redact_text(short) == short


def test_secrets_are_found_by_the_names_of_environment_variables(tmp_path: Path) -> None:
    value = "a value of some length"
    secret_names = (
        "OPENAI_API_KEY",
        "hf_token",
        "MY_SECRET_1",
        "DB_PASSWORD",
        "PASSWD",
        "AWS_CREDENTIAL",
        "GPG_PASSPHRASE",
    )
    environ = {
        **{name: f"{value} {name}" for name in secret_names},
        "PATH": value, "SHORT_KEY": "short", "GOOGLE_CREDENTIALS": str(tmp_path),
        "OPENAI_CUSTOM_HEADERS": "X-One: first header value\nX-Two: short",
    }  # fmt: skip
    assert set(secrets_in(environ)) == {*(f"{value} {name}" for name in secret_names), "first header value"}


@pytest.mark.parametrize("text", ["\\" * 65536, "%" * 65536, "&#0" * 20000, "bearer " * 9000, "bearer" + " " * 65000])
def test_any_text_is_redacted_in_bounded_time(text: str) -> None:
    started = time.process_time()
    REDACTOR.redact_text(text)
    assert time.process_time() - started < 2


def test_response_without_a_secret_is_returned_unchanged() -> None:
    for body in (b"", b"{}", b'{"a": "\\u00e9 \\/ x"}', b"\\u00 no JSON", b"[" * 2000 + b"\\u00"):
        assert without_secrets(body, REDACTOR) is body


def test_escaped_secret_is_removed_from_a_json_response() -> None:
    body = json.dumps({"a": KEY + "é", "b": [1.5, None]}).replace(KEY, "".join(f"\\u{ord(c):04x}" for c in KEY))
    assert json.loads(without_secrets(body.encode(), REDACTOR)) == {"a": f"{REMOVED}é", "b": [1.5, None]}


def test_rest_of_a_response_with_an_escaped_secret_is_unchanged() -> None:
    body = '{"a": 1, "a" :1.00, "b": [123456789012345678901234567890, 1e-400], "c": "KEY\\n\\\\"}'
    for key in (KEY, "Größe-und-Gewicht", "geheim-秘密-😀-geheim"):
        escaped = "".join(
            f"\\u{int.from_bytes(c.encode('utf-16-be')):04x}" if c < "\uffff" else json.dumps(c)[1:-1] for c in key
        )
        cleaned = without_secrets(body.replace("KEY", escaped).encode(), Redactor([key]))
        assert cleaned.decode() == body.replace("KEY", REMOVED)
