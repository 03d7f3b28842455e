"""Limits of MLflow 3.x (`mlflow/utils/validation.py`) on names, lengths and requests, and conversions to fit them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from runner.base.redaction import Redactor, current_redactor

MAX_KEY, MAX_PARAM, MAX_TAG = 250, 6_000, 8_000
MAX_RUN_NAME = 250
MAX_DATASET_NAME, MAX_DIGEST, MAX_SOURCE, MAX_SCHEMA = 500, 36, 65_535, 1_048_575
"""Maximum number of characters of texts of each type."""
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1_000, 100, 100
"""Maximum number of items of each type in a batch."""
MAX_BYTES = 900_000
"""Maximum bytes of values in a batch; MLflow accepts 1,000,000 bytes including the surrounding JSON."""

_NOT_IN_KEYS = re.compile(r"[^\w.\- :]")
_NOT_IN_MODEL_NAMES = re.compile(r"[/:.%\"']")


class MlflowTexts:
    """Converts values to texts that MLflow accepts, without known secrets, and collects notes about the changes."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or current_redactor()
        self.notes: list[str] = []

    def key(self, name: str) -> str:
        """Return a valid name of a parameter, metric or tag. A changed name ends with a hash of the original name.

        Slashes are replaced, because MLflow's page would show metrics with slashes in separate sections.
        """
        redacted = self._redactor.redact_text(name)
        valid_name = _NOT_IN_KEYS.sub("_", redacted)
        if not valid_name or valid_name.startswith("."):
            valid_name = f"_{valid_name}"
        if valid_name == redacted and len(valid_name) <= MAX_KEY:
            return valid_name
        ending = f"-{hashlib.sha256(redacted.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        valid_name = valid_name[: MAX_KEY - len(ending)] + ending
        self.add_note(
            f"the name {redacted[:60]!r} became {valid_name[:80]!r}, because MLflow does not allow the original"
        )
        return valid_name

    def param(self, name: str, value: Any) -> str:
        """Return the value of a parameter of a spec: text unchanged, any other type as JSON."""
        return self._value(f"the parameter {name}", value, MAX_PARAM)

    def tag(self, name: str, value: Any) -> str:
        """Return the value of a tag: text unchanged, any other type as JSON."""
        return self._value(f"the tag {name}", value, MAX_TAG)

    def run_name(self, name: str) -> str:
        """Return the display name of a run."""
        return self._value("the run's name", name, MAX_RUN_NAME)

    def model_name(self, name: str) -> str:
        """Return the display name of a model."""
        return _NOT_IN_MODEL_NAMES.sub("_", self._redactor.redact_text(name))[:MAX_KEY]

    def text(self, text: str) -> str:
        """Return a text without known secrets."""
        return self._redactor.redact_text(text)

    def json(self, value: Any) -> str:
        """Return a value as JSON without known secrets."""
        return self.text(orjson.dumps(value).decode())

    def has_secret(self, data: bytes) -> bool:
        """Return whether data contains a known secret."""
        return self._redactor.find_first(data) is not None

    def _value(self, description: str, value: Any, max_length: int) -> str:
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        redacted = self._redactor.redact_text(text)
        if redacted != text:
            self.add_note(f"{description}: a secret was removed")
        if len(redacted) <= max_length:
            return redacted
        ending = f" [{len(redacted):,} characters, sha256 {hashlib.sha256(redacted.encode()).hexdigest()[:16]}]"
        self.add_note(f"{description} has {len(redacted):,} characters; shortened to MLflow's limit of {max_length:,}")
        return redacted[: max_length - len(ending)] + ending

    def add_note(self, note: str) -> None:
        """Add a note, once, about something that is changed or not sent."""
        if note not in self.notes:
            self.notes.append(note)


def schema_columns(columns: Iterable[str]) -> str:
    """Return column names as MLflow's schema JSON. Columns beyond MLflow's limit are left out."""
    schema_rows: list[Mapping[str, Any]] = []
    size = 100
    for column in columns:
        row = {"name": column, "type": "string", "required": False}
        size += len(orjson.dumps(row)) + 1
        if size > MAX_SCHEMA:
            break
        schema_rows.append(row)
    return orjson.dumps({"mlflow_colspec": schema_rows}).decode()


def sent_bytes(*texts: str) -> int:
    """Return an upper bound of the bytes that texts take in a request, where non-ASCII characters are escaped."""
    return sum(6 * len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in texts) + 100
