"""Samples from JSON lines of chats, from Hugging Face session traces, and from Scout's Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from runner.base.errors import RunError, errors_as
from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import open_to_read
from runner.spec.datasets.limits import Meter
from runner.spec.datasets.transcripts.json_parts import parse_json, text_or_none
from runner.spec.datasets.transcripts.messages import (
    InvalidTranscript,
    TranscriptMessage,
    TranscriptSample,
    name_tools,
    parse_message,
    parse_messages,
)

_MAX_LINE: Final = 64 << 20
_FORMATS: Final = (
    'nip-run reads chats, with a list "messages" in each line, and session traces, whose first line is '
    '{"type": "session", ...} and all others {"type": "message", "message": ...}; convert other files, such as the '
    "sessions of Claude Code and Pi, to one of these formats"
)
_SCOUT_COLUMNS: Final = (
    "transcript_id", "source_type", "source_id", "source_uri", "date", "task_set", "task_id", "task_repeat", "agent",
    "agent_args", "model", "model_options", "score", "success", "message_count", "total_time", "total_tokens", "error",
    "limit", "messages", "events", "filename",
)  # fmt: skip
"""Scout's own columns. All other columns are metadata."""


def read_chat_lines(path: Path, meter: Meter) -> Iterator[TranscriptSample]:
    """Yield the sample of each line with OpenAI's `messages`, or the one sample of a session trace.

    The other keys of a line are the metadata of its sample.

    Raises:
        InvalidTranscript: a line is neither; the error names it.
    """
    lines = _json_lines(path, meter)
    first = list(islice(lines, 1))
    header = first[0][1] if first else None
    if isinstance(header, dict) and header.get("type") == "session":
        yield _session_sample(header, lines)
        return
    ids = set[str]()
    for number, line in chain(first, lines):
        if not isinstance(line, dict) or "messages" not in line:
            raise InvalidTranscript(f"line {number}: it has no list of messages; {_FORMATS}")
        with errors_as(InvalidTranscript, f"line {number}", InvalidTranscript):
            messages = parse_messages(line["messages"])
        sample = text_or_none(line.get("id")) or f"line-{number}"
        if sample in ids:
            raise InvalidTranscript(f"line {number}: the id {sample[:80]!r} is not unique")
        ids.add(sample)
        metadata = {name: value for name, value in line.items() if name not in ("id", "messages", "model")}
        yield TranscriptSample(
            sample,
            sample,
            messages,
            model=text_or_none(line.get("model")),
            input=first_user_text(messages),
            metadata=metadata,
        )


def _json_lines(path: Path, meter: Meter) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is not blank."""
    meter.check_bytes(path.stat().st_size)
    with open_to_read(path) as file:
        number = 0
        while line := file.readline(_MAX_LINE + 1):
            number += 1
            if len(line) > _MAX_LINE:
                raise InvalidTranscript(f"line {number} has more than {_MAX_LINE:,} bytes; split the transcript")
            if line.strip():
                yield number, parse_json(line, f"line {number}")


def _session_sample(header: Mapping[str, object], lines: Iterator[tuple[int, Any]]) -> TranscriptSample:
    """Return the sample of a session trace: a line about the session, then a line for each message."""
    messages: list[TranscriptMessage] = []
    models = dict[str, None]()
    for number, line in lines:
        kind = line.get("type") if isinstance(line, dict) else None
        value = line.get("message") if kind == "message" else None
        if value is None:
            type_ = "" if kind in (None, "message") else f", but has the type {str(kind)[:40]!r}"
            raise InvalidTranscript(f"line {number} is not a message of a session trace{type_}; {_FORMATS}")
        with errors_as(InvalidTranscript, f"line {number}: the message cannot be read", InvalidTranscript):
            messages += parse_message(value)
        if isinstance(value.get("model"), str):
            models[value["model"]] = None
    metadata = {name: value for name, value in header.items() if name not in ("type", "id")}
    session = text_or_none(header.get("id")) or "session"
    return TranscriptSample(
        session, session, name_tools(messages), transcript_id=session, task=text_or_none(header.get("name")),
        model=", ".join(models) or None, input=first_user_text(messages), metadata=metadata,
    )  # fmt: skip


def first_user_text(messages: tuple[TranscriptMessage, ...] | list[TranscriptMessage]) -> str | None:
    """Return the text of the first message of a user; None if there is none."""
    return next((message.text for message in messages if message.role == "user"), None)


def read_scout_file(path: Path, meter: Meter) -> Iterator[TranscriptSample]:
    """Yield the sample of each row of a Parquet file of Scout's transcript database.

    Raises:
        InvalidTranscript: the file is not such a file; the error names the row.
    """
    try:
        names = [str(name) for (name,) in read_tables("SELECT column_name FROM (DESCRIBE t)", {"t": path}, {})]
        if missing := {"transcript_id", "messages"} - {*names}:
            raise InvalidTranscript(f"not a file of Scout, because the column {min(missing)!r} is missing")
        ((size,),) = read_tables("SELECT coalesce(sum(strlen(messages::VARCHAR)), 0) FROM t", {"t": path}, {})
        meter.check_bytes(int(size))
        selected = ", ".join(f'"{name}"' for name in (name.replace('"', '""') for name in names) if name != "events")
        columns = [name for name in names if name != "events"]
        for number, values in enumerate(read_tables(f"SELECT {selected} FROM t", {"t": path}, {}), 1):
            with errors_as(InvalidTranscript, f"row {number}", InvalidTranscript):
                yield _scout_sample(dict(zip(columns, values, strict=True)))
    except RunError as error:
        raise InvalidTranscript(str(error)) from error


def _scout_sample(row: Mapping[str, object]) -> TranscriptSample:
    score, success, repeat = _loose(row.get("score")), row.get("success"), row.get("task_repeat")
    scores = dict(score) if isinstance(score, dict) else {} if score is None else {"score": score}
    metadata = {
        name: value if isinstance(value, (str, int, float, bool)) else str(value)
        for name, value in row.items()
        if name not in _SCOUT_COLUMNS and value is not None
    }
    raw = row["messages"]
    messages = parse_messages(parse_json(raw, "column messages") if isinstance(raw, (str, bytes)) else raw)
    agent = text_or_none(row.get("agent"))
    return TranscriptSample(
        id=str(row["transcript_id"]),
        sample=text_or_none(row.get("task_id")) or str(row["transcript_id"]),
        messages=messages,
        epoch=repeat if isinstance(repeat, int) else None,
        transcript_id=str(row["transcript_id"]),
        task=text_or_none(row.get("task_set")),
        model=text_or_none(row.get("model")),
        input=first_user_text(messages),
        error=text_or_none(row.get("error")),
        scores=scores if success is None else {"success": bool(success), **scores},
        metadata=metadata if agent is None else {"agent": agent, **metadata},
    )


def _loose(value: Any) -> Any:
    """Return the value of a text with JSON; another value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, "score")
    except InvalidTranscript:
        return value
