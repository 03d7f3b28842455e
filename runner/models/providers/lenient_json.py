"""JSON of servers that do not keep to it: whatever can be read of an answer that is paid for is read."""

from __future__ import annotations

import codecs
import json
import math
from typing import Any, Final

import orjson

from runner.redaction import Redactor

MAX_DIGITS: Final = 300
BYTES_ALTERED: Final = "bytes"
SECRET_ALTERED: Final = "secret"  # noqa: S105 - no secret, but the word for one
"""What an answer's record may have in `altered`."""


def read_json(content: bytes, redactor: Redactor) -> tuple[Any, str, tuple[str, ...]]:
    """Data of an answer, or why there are none; and what was changed in them."""
    data, problem = parsed(content)
    if not problem:
        return data, "", ()
    found, altered = mended(content, redactor)
    return (None, problem, ()) if found is None else (orjson.loads(found), "", altered)


def mended(content: bytes, redactor: Redactor) -> tuple[bytes | None, tuple[str, ...]]:
    """JSON to the letter out of an answer that is not, or None; and what was changed in it."""
    whole = repaired(content)
    if whole is None:
        return None, ()
    cleaned = redactor.redact(whole)  # what could not be read could not be searched
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
    """JSON to the letter out of JSON that is not; None where there is none.

    What is no text becomes U+FFFD: bytes that are no UTF-8, halves of surrogate pairs. A mark of byte order, control
    characters in texts, and anything after the first document are passed over; a number that is none becomes null.
    """
    # Whatever fails here fails with an error that holds the text, so none is handed on.
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").lstrip()
        decoder = json.JSONDecoder(strict=False, parse_float=_number, parse_int=_number, parse_constant=_nothing)
        data, _ = decoder.raw_decode(text)
        # UTF-16 joins the halves of pairs that were spelled one by one, and knows those that are alone.
        whole = json.dumps(data, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        orjson.loads(whole)
        return whole.encode()  # not written again: what may be read is nested deeper than what can be written
    except (ValueError, RecursionError):
        return None


def _number(digits: str) -> float | int | None:
    """A number that JSON can hold; None for any other."""
    if len(digits) > MAX_DIGITS:
        return None
    number = float(digits)
    if not math.isfinite(number):
        return None
    return number if any(c in digits for c in ".eE") else int(digits)


def _nothing(_: str) -> None:
    """What `NaN` and `Infinity` become."""
