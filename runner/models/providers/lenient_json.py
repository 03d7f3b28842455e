"""Reads JSON from servers that violate the format, because a paid answer should be used if it can be read."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

import orjson

from runner.base.redaction import Redactor

BYTES_ALTERED: Final = "bytes"
SECRET_ALTERED: Final = "secret"  # noqa: S105 - a word, not a secret
"""Values of `altered` in an answer's record, with `BYTES_ALTERED`."""


def read_json(content: bytes, redactor: Redactor) -> tuple[Any, bytes, tuple[str, ...]]:
    """Return the data of an answer (None if unreadable), the JSON they were read from, and what was changed in it."""
    data, problem = parse_json(content)
    if not problem:
        return data, content, ()
    strict_json, altered = repair_and_redact(content, redactor)
    return (None, b"", ()) if strict_json is None else (orjson.loads(strict_json), strict_json, altered)


def repair_and_redact(content: bytes, redactor: Redactor) -> tuple[bytes | None, tuple[str, ...]]:
    """Convert an answer to strict JSON, or None; also return what was changed in it."""
    repaired_json = repair_json(content)
    if repaired_json is None:
        return None, ()
    redacted_json = redactor.redact_escaped(redactor.redact(repaired_json))  # a repair may reassemble a secret
    return redacted_json, (BYTES_ALTERED,) if redacted_json == repaired_json else (BYTES_ALTERED, SECRET_ALTERED)


def dump_json(data: Any) -> bytes:
    """Convert data of any depth to JSON."""
    try:
        return orjson.dumps(data)
    except TypeError:
        parts: list[bytes] = []
        pending: list[Any] = [data]
        while pending:
            item = pending.pop()
            if isinstance(item, bytes):  # punctuation added below; parsed JSON contains no bytes
                parts.append(item)
            elif isinstance(item, dict):
                pairs = [part for key, value in item.items() for part in (b",", orjson.dumps(key) + b":", value)]
                pending.extend((b"}", *reversed(pairs[1:]), b"{"))
            elif isinstance(item, list):
                values = [part for value in item for part in (b",", value)]
                pending.extend((b"]", *reversed(values[1:]), b"["))
            else:
                parts.append(orjson.dumps(item))
        return b"".join(parts)


def parse_json(content: bytes) -> tuple[Any, str]:
    """Parse JSON. Return the data and an empty text, or None and what is wrong.

    The exception is not passed on, because the library's exception holds the full text.
    """
    try:
        return orjson.loads(content), ""
    except orjson.JSONDecodeError as error:
        return None, str(error)


def repair_json(content: bytes) -> bytes | None:
    """Convert lenient JSON to strict JSON; None if that is impossible.

    Bytes that are not UTF-8 and halves of surrogate pairs become U+FFFD. A byte order mark, and everything after the
    first document, is removed. An invalid number, or one too large to be read, becomes null. A control character in a
    string becomes its escape. Everything else stays unchanged.
    """
    # The errors here hold the full text, so they are not passed on.
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").lstrip()
        decoder = json.JSONDecoder(strict=False, parse_float=_ignore, parse_int=_ignore, parse_constant=_ignore)
        _, end = decoder.raw_decode(text)
        strict_json = _ESCAPE.sub(_replace_half_pair, text[:end]).encode()
        if parse_json(strict_json)[1]:
            strict_json = _TOKEN.sub(_to_strict, strict_json)
    except (ValueError, RecursionError):
        return None
    return None if parse_json(strict_json)[1] else strict_json


_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F])..|.)", re.DOTALL)
"""Matches a backslash, which occurs only in strings, and what it escapes. Its group matches half a surrogate pair."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[-+.\w]++', re.DOTALL)
"""Matches a string, or a word outside of strings: a number or a name."""
_CONTROL: Final = re.compile(rb"[\0-\x1f]")


def _replace_half_pair(escape: re.Match[str]) -> str:
    """Replace an escaped half of a surrogate pair."""
    return escape[0] if escape[1] is None else "\\ufffd"


def _to_strict(token_match: re.Match[bytes]) -> bytes:
    """Convert a string or word of lenient JSON to strict JSON."""
    token = token_match[0]
    if token.startswith(b'"'):
        return _CONTROL.sub(lambda control: b"\\u%04x" % ord(control[0]), token)
    return b"null" if parse_json(token)[1] else token


def _ignore(_: str) -> None:
    """Return None for any number, because the values are not needed."""
