"""MLflow's own limits, of 3.x (`mlflow/utils/validation.py`): names, lengths, and what one request may hold."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import orjson

from runner.base.redaction import Redactor, current_redactor

MAX_KEY, MAX_PARAM, MAX_TAG = 250, 6_000, 8_000
MAX_RUN_NAME = 250
MAX_DATASET_NAME, MAX_DIGEST, MAX_SOURCE, MAX_SCHEMA = 500, 36, 65_535, 1_048_575
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1_000, 100, 100
"""In a batch."""
MAX_BYTES = 900_000
"""Of a batch; MLflow takes 1,000,000, with what stands around our values."""

_NOT_IN_KEYS = re.compile(r"[^\w.\- :]")
_NOT_IN_MODEL_NAMES = re.compile(r"[/:.%\"']")

Item = TypeVar("Item")


class Fitted:
    """Texts as MLflow takes them, without any secret that this process knows; `notes` say what is not as it was."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or current_redactor()
        self.notes: list[str] = []

    def key(self, name: str) -> str:
        """The name of a parameter, metric or tag. One that had to be changed ends in a hash of what it was.

        A slash would make a section of MLflow's page, and those stand before the metrics that have none.
        """
        clean = self._redactor.text(name)
        kept = _NOT_IN_KEYS.sub("_", clean)
        if not kept or kept.startswith("."):
            kept = f"_{kept}"
        if kept == clean and len(kept) <= MAX_KEY:
            return kept
        ending = f"-{hashlib.sha256(clean.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        kept = kept[: MAX_KEY - len(ending)] + ending
        self._note(f"the name {clean[:60]!r}: MLflow has it as {kept[:80]!r}")
        return kept

    def param(self, name: str, value: Any) -> str:
        """A value of a spec: texts as they are, all else as JSON."""
        return self._value(f"the parameter {name}", value, MAX_PARAM)

    def tag(self, name: str, value: Any) -> str:
        """The value of a tag: texts as they are, all else as JSON."""
        return self._value(f"the tag {name}", value, MAX_TAG)

    def run_name(self, name: str) -> str:
        """The name that a run is shown by."""
        return self._value("the run's name", name, MAX_RUN_NAME)

    def model_name(self, name: str) -> str:
        """The name that a model is shown by."""
        return _NOT_IN_MODEL_NAMES.sub("_", self._redactor.text(name))[:MAX_KEY]

    def text(self, text: str) -> str:
        """A text without any secret."""
        return self._redactor.text(text)

    def json(self, value: Any) -> str:
        """A value as JSON without any secret."""
        return self.text(orjson.dumps(value).decode())

    def holds_secret(self, data: bytes) -> bool:
        """Whether a secret stands in a file."""
        return self._redactor.first(data) is not None

    def left_out(self, what: str) -> None:
        """Say that something is not sent."""
        self._note(what)

    def _value(self, what: str, value: Any, longest: int) -> str:
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        clean = self._redactor.text(text)
        if clean != text:
            self._note(f"{what}: a secret was removed")
        if len(clean) <= longest:
            return clean
        ending = f" [{len(clean):,} characters, sha256 {hashlib.sha256(clean.encode()).hexdigest()[:16]}]"
        self._note(f"{what} has {len(clean):,} characters, of which MLflow takes {longest:,}: shortened")
        return clean[: longest - len(ending)] + ending

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def shown_columns(columns: Iterable[str]) -> str:
    """A schema as MLflow's page shows one. Columns beyond its limit are left out."""
    found: list[Mapping[str, Any]] = []
    size = 100
    for column in columns:
        row = {"name": column, "type": "string", "required": False}
        size += len(orjson.dumps(row)) + 1
        if size > MAX_SCHEMA:
            break
        found.append(row)
    return orjson.dumps({"mlflow_colspec": found}).decode()


def batches(items: Iterable[Item], most: int, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in as few requests as one may hold, in their order."""
    batch: list[Item] = []
    size = 0
    for item in items:
        more = size_of(item)
        if batch and (len(batch) == most or size + more > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += more
    if batch:
        yield batch


def sent_bytes(*texts: str) -> int:
    """The most that texts take in a request: its JSON has each character that is not ASCII as an escape."""
    return sum(6 * len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in texts) + 100
