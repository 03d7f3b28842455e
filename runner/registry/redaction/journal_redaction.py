"""Redact a journal or a stage log line by line. Lines without private values keep their exact bytes.

`runner.registry.redaction.draft_redaction` uses this. A changed line gets a new checksum. The checksums of all lines
depend on the first line, so if the first line changes, every line gets a new checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import ReleaseError
from runner.base.storage.log_lines import ANSWER, RUN, encode, log_seed, scan
from runner.base.storage.safe_files import create, open_to_read
from runner.models.answers import CHOICES, with_values
from runner.models.interface import SampleKey
from runner.models.journal_records import ANSWER_TEXT
from runner.registry.redaction.rules import RedactionRules

_CALL_KINDS = ("call", "ended", "failure")

RehashParameters = Callable[[SampleKey, str], str]
"""A function that returns the new hash of a sample's model parameters, given the recorded hash."""


def redact_log(source: Path, target: Path, rules: RedactionRules, rehash: RehashParameters) -> bool:
    """Write the redacted log to `target`, and return whether any line changed.

    Raises:
        JournalError: the log is damaged.
        ReleaseError: an answer cannot be redacted.
        OSError: the target cannot be written.
    """
    changed, has_new_seed, seed = False, False, 0
    with open_to_read(source) as file, create(target) as out:
        for sequence, (_, line, record) in enumerate(scan(file, source)):
            if record is None:
                out.write(line)  # an incomplete last line, which the checks report
                continue
            redacted = rules.redact_value(record) if "stage" in record else _redact_record(record, rules, rehash)
            if sequence == 0:
                new_line = line if redacted == record else encode(0, redacted)
                has_new_seed, seed = new_line != line, log_seed(new_line, redacted)
            else:
                new_line = line if redacted == record and not has_new_seed else encode(sequence, redacted, seed)
            changed = changed or new_line != line
            out.write(new_line)
    return changed


def _redact_record(record: Mapping[str, Any], rules: RedactionRules, rehash: RehashParameters) -> dict[str, object]:
    redacted = dict(record)
    kind = redacted.get("kind")
    if RUN in redacted and kind == "begun":
        redacted[RUN] = rules.hashes.get(redacted[RUN], redacted[RUN])
    if kind not in _CALL_KINDS:
        return redacted
    if "asked" in redacted:
        parameters, messages = redacted["asked"]
        redacted["asked"] = [rehash(SampleKey(*redacted["sample"]), parameters), messages]
    for name in ("model", "message", *(("error",) if kind == "failure" else ())):
        if isinstance(redacted.get(name), str):
            redacted[name] = rules.redact_string(redacted[name], name)
    if isinstance(redacted.get("other"), dict):
        redacted["other"] = rules.redact_answer(redacted["other"])
    if ANSWER in redacted:
        redacted[ANSWER] = _redact_answer(redacted[ANSWER], rules)
    if ANSWER_TEXT in redacted:
        redacted[ANSWER_TEXT] = _redact_answer(redacted[ANSWER_TEXT].encode(), rules).decode()
    return redacted


def _redact_answer(content: bytes, rules: RedactionRules) -> bytes:
    answer = orjson.loads(content)
    try:
        redacted = rules.redact_answer(answer)
        if redacted == answer:
            return content
        changed = {name: value for name, value in redacted.items() if value != answer[name]}
        if redacted.keys() == answer.keys() and CHOICES not in changed:
            return with_values(content, changed)  # keeps the other bytes of the answer
        return orjson.dumps(redacted)
    except (RecursionError, TypeError) as error:
        raise ReleaseError(
            "an answer in journal.jsonl is nested too deeply to be redacted: the run cannot be published, only its spec"
        ) from error
