"""Reads JSON from servers that violate the format, so that paid answers can be used."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

import orjson

from runner.base.redaction import Redactor

BYTES_ALTERED: Final = "bytes"
SECRET_ALTERED: Final = "secret"  # noqa: S105 - a word, not a secret
"""The values of `altered` in an answer's record: bytes that were repaired, and secrets that were redacted."""


def read_json(content: bytes, redactor: Redactor) -> tuple[Any, bytes, tuple[str, ...]]:
    """Return the data of an answer, its JSON, and the kinds of changes to the JSON.

    If the answer is not valid JSON, it is repaired. The data is None and the JSON is empty if this is impossible.
    """
    data, problem = parse_json(content)
    if not problem:
        return data, content, ()
    repaired_json = repair_json(content)
    if repaired_json is None:
        return None, b"", ()
    redacted_json = redactor.redact_escaped(redactor.redact(repaired_json))  # a repair may reassemble a secret
    altered = (BYTES_ALTERED,) if redacted_json == repaired_json else (BYTES_ALTERED, SECRET_ALTERED)
    return orjson.loads(redacted_json), redacted_json, altered


def parse_json(content: bytes) -> tuple[Any, str]:
    """Parse JSON, and return the data and an empty text, or None and a description of the problem.

    The library's exception is not raised, because it contains the full text.
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
    # The library's errors are not raised, because they contain the full text.
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").lstrip()
        decoder = json.JSONDecoder(strict=False, parse_float=_ignore, parse_int=_ignore, parse_constant=_ignore)
        _, end = decoder.raw_decode(text)
        strict_json = _ESCAPE.sub(lambda escape: escape[0] if escape[1] is None else "\\ufffd", text[:end]).encode()
        if parse_json(strict_json)[1]:
            strict_json = _TOKEN.sub(_to_strict, strict_json)
    except (ValueError, RecursionError):
        return None
    return None if parse_json(strict_json)[1] else strict_json


_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F])..|.)", re.DOTALL)
"""Matches an escape sequence, which only occurs in strings. The group matches an unpaired half of a surrogate pair."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[-+.\w]++', re.DOTALL)
"""Matches a string, or a word outside of strings: a number or a name."""
_CONTROL: Final = re.compile(rb"[\0-\x1f]")


def _to_strict(token_match: re.Match[bytes]) -> bytes:
    """Convert a string or word of lenient JSON to strict JSON."""
    token = token_match[0]
    if token.startswith(b'"'):
        return _CONTROL.sub(lambda control: b"\\u%04x" % ord(control[0]), token)
    return b"null" if parse_json(token)[1] else token


def _ignore(_: str) -> None:
    """Return None for any number, because the values are not needed."""
