"""Parse the JSON of transcripts, which other people wrote, with errors that name the place."""

from __future__ import annotations

import json
from typing import Any

import orjson

from runner.spec.datasets.transcripts.messages import InvalidTranscript


def parse_json(data: bytes | str, place: str) -> Any:
    """Parse JSON that may have NaN and infinity, as Python writes them.

    Raises:
        InvalidTranscript: the data is not JSON; the error starts with `place`.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise InvalidTranscript(f"{place}: not valid JSON: {problem}") from problem


def text_or_none(value: Any) -> str | None:
    """Return a value as text; None if it is missing or empty."""
    return None if value is None or value == "" else str(value)
