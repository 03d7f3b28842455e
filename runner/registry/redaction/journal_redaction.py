"""A journal or a stage log with values taken out by rule: lines that hold none stay as they are, byte for byte.

A line that changes gets a checksum of its own; where the first one does, which all checksums start from, all do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import ReleaseError
from runner.base.storage.log_lines import ANSWER, RUN, encode, scan, seed_of
from runner.base.storage.safe_files import create, open_to_read
from runner.models.answers import CHOICES, with_values
from runner.models.interface import SampleKey
from runner.models.journal_records import ANSWER_TEXT
from runner.registry.redaction.rules import Rules

_KINDS = ("call", "ended", "failure")

AskedAgain = Callable[[SampleKey, str], str]
"""A sample and the hash of its model's parameters, as it was recorded, into the one that it has by its new name."""


def clean_log(source: Path, target: Path, rules: Rules, asked: AskedAgain) -> bool:
    """Write a log without what is not for others; whether anything was changed. It is read line by line.

    Raises:
        JournalError: the log is damaged.
        ReleaseError: an answer cannot be cleaned.
        OSError: the target cannot be written.
    """
    changed, reseeded, seed = False, False, 0
    with open_to_read(source) as file, create(target) as out:
        for sequence, (_, line, record) in enumerate(scan(file, source)):
            if record is None:
                out.write(line)  # a torn end, which the checks tell of
                continue
            cleaned = _record(record, rules, asked)
            if sequence == 0:
                written = line if cleaned == record else encode(0, cleaned)
                reseeded, seed = written != line, seed_of(written, cleaned)
            else:
                written = line if cleaned == record and not reseeded else encode(sequence, cleaned, seed)
            changed = changed or written != line
            out.write(written)
    return changed


def _record(record: Mapping[str, Any], rules: Rules, asked: AskedAgain) -> dict[str, Any]:
    if "stage" in record:
        return _stage(record, rules)
    cleaned = dict(record)
    if RUN in cleaned and cleaned.get("kind") == "begun":
        cleaned[RUN] = rules.hashes.get(cleaned[RUN], cleaned[RUN])
    if cleaned.get("kind") not in _KINDS:
        return cleaned
    if "asked" in cleaned:
        parameters, messages = cleaned["asked"]
        cleaned["asked"] = [asked(SampleKey(*cleaned["sample"]), parameters), messages]
    for name in ("error", "message"):
        if isinstance(cleaned.get(name), str) and (name == "message" or cleaned["kind"] == "failure"):
            cleaned[name] = rules.error(cleaned[name])
    if "model" in cleaned:
        cleaned["model"] = rules.value(cleaned["model"], "model")
    if isinstance(cleaned.get("other"), dict):
        cleaned["other"] = rules.answer(cleaned["other"])
    if ANSWER in cleaned:
        cleaned[ANSWER] = _answer(cleaned[ANSWER], rules)
    if ANSWER_TEXT in cleaned:
        cleaned[ANSWER_TEXT] = _answer(cleaned[ANSWER_TEXT].encode(), rules).decode()
    return cleaned


def _answer(content: bytes, rules: Rules) -> bytes:
    """A server's answer: what it says besides the wire format's fields is no model's text."""
    said = orjson.loads(content)
    try:
        cleaned = rules.answer(said)
        if cleaned == said:
            return content
        alone = {name: value for name, value in cleaned.items() if value != said[name]}
        if cleaned.keys() == said.keys() and CHOICES not in alone:
            return with_values(content, alone)  # all else byte for byte
        return orjson.dumps(cleaned)
    except (RecursionError, TypeError) as error:
        raise ReleaseError("an answer in the journal is nested too deep to take an address or a path out of") from error


_WORDS = frozenset(("message", "error", "why", "reason", "log"))
"""Keys of a stage under which a backend says something."""


def _stage(record: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    return {name: _of_stage(value, name, rules) for name, value in record.items()}


def _of_stage(value: Any, key: str, rules: Rules) -> Any:
    if isinstance(value, Mapping):
        return {name: _of_stage(item, str(name), rules) for name, item in value.items()}
    if isinstance(value, list):
        return [_of_stage(item, key, rules) for item in value]
    if not isinstance(value, str):
        return value
    return rules.error(value) if key in _WORDS else rules.scalar(value, key)
