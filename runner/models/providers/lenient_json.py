"""JSON of servers that do not keep to it: whatever can be read of an answer that is paid for is read."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

import orjson

from runner.base.redaction import Redactor

BYTES_ALTERED: Final = "bytes"
SECRET_ALTERED: Final = "secret"  # noqa: S105 - no secret, but the word for one
"""What an answer's record may have in `altered`."""


def read_json(content: bytes, redactor: Redactor) -> tuple[Any, bytes, tuple[str, ...]]:
    """Data of an answer, None where there are none; the JSON that they are; and what was changed in it."""
    data, problem = parsed(content)
    if not problem:
        return data, content, ()
    found, altered = mended(content, redactor)
    return (None, b"", ()) if found is None else (orjson.loads(found), found, altered)


def mended(content: bytes, redactor: Redactor) -> tuple[bytes | None, tuple[str, ...]]:
    """Strict JSON out of an answer that is not, or None; and what was changed in it."""
    whole = repaired(content)
    if whole is None:
        return None, ()
    cleaned = redactor.redact_escaped(redactor.redact(whole))  # mending may put a value together
    return cleaned, (BYTES_ALTERED,) if cleaned == whole else (BYTES_ALTERED, SECRET_ALTERED)


def written(data: Any) -> bytes:
    """JSON of data of any depth that can be read."""
    try:
        return orjson.dumps(data)
    except TypeError:
        parts: list[bytes] = []
        todo: list[Any] = [data]
        while todo:
            item = todo.pop()
            if isinstance(item, bytes):  # of ours: there are none in JSON
                parts.append(item)
            elif isinstance(item, dict):
                pairs = [part for key, value in item.items() for part in (b",", orjson.dumps(key) + b":", value)]
                todo.extend((b"}", *reversed(pairs[1:]), b"{"))
            elif isinstance(item, list):
                values = [part for value in item for part in (b",", value)]
                todo.extend((b"]", *reversed(values[1:]), b"["))
            else:
                parts.append(orjson.dumps(item))
        return b"".join(parts)


def parsed(content: bytes) -> tuple[Any, str]:
    """JSON as data, and what is wrong with it: nothing, or why there are no data.

    Not as an exception: the library's holds the whole text.
    """
    try:
        return orjson.loads(content), ""
    except orjson.JSONDecodeError as error:
        return None, str(error)


def repaired(content: bytes) -> bytes | None:
    """Strict JSON out of JSON that is not; None where there is none.

    What is no text becomes U+FFFD: bytes that are no UTF-8, halves of surrogate pairs. A mark of byte order, and
    anything after the first document, are left out; a number that is none, or too large to be read, becomes null; a
    control character in a text becomes its escape. All else stays as it came.
    """
    # Whatever fails here fails with an error that holds the text, so none is handed on.
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").lstrip()
        decoder = json.JSONDecoder(strict=False, parse_float=_nothing, parse_int=_nothing, parse_constant=_nothing)
        _, end = decoder.raw_decode(text)
        whole = _ESCAPE.sub(_paired, text[:end]).encode()
        if parsed(whole)[1]:
            whole = _TOKEN.sub(_readable, whole)
    except (ValueError, RecursionError):
        return None
    return None if parsed(whole)[1] else whole


_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F])..|.)", re.DOTALL)
"""A backslash, which stands in texts alone, and what it escapes; its group: half a pair."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[-+.\w]++', re.DOTALL)
"""A text, or a word outside of texts: a number or a name."""
_CONTROL: Final = re.compile(rb"[\0-\x1f]")


def _paired(found: re.Match[str]) -> str:
    """An escape without halves of surrogate pairs."""
    return found[0] if found[1] is None else "\\ufffd"


def _readable(found: re.Match[bytes]) -> bytes:
    """A text or a word of lenient JSON as JSON has it."""
    token = found[0]
    if token.startswith(b'"'):
        return _CONTROL.sub(lambda control: b"\\u%04x" % ord(control[0]), token)
    return b"null" if parsed(token)[1] else token


def _nothing(_: str) -> None:
    """For the values of numbers, which are not needed."""
