"""Reads the results of a batch from disk. A batch may have 50,000 answers, so only one is in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

from runner.base.errors import NipRunError, TransientError
from runner.base.redaction import current_redactor
from runner.models.answers import part_of
from runner.models.interface import Completion, Request
from runner.models.providers.answer_reader import read_completion
from runner.models.providers.lenient_json import SECRET_ALTERED, dump_json, read_json
from runner.models.providers.openai_errors import classify_error, cut_at_limit
from runner.models.providers.openai_http import MAX_ANSWER_BYTES, without_secrets
from runner.models.settings import ModelSettings


@dataclass(frozen=True)
class BatchRow:
    """One line of a batch's results. A field of the wrong type counts as missing."""

    body: Any
    json: bytes
    """The bytes of the body as received or, if they cannot be located in the line, encoded again."""
    status: int
    error: Any
    altered: tuple[str, ...] = ()


class BatchResults:
    """The lines of result files, by the ids of their calls."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []
        self._positions: dict[str, tuple[int, int]] = {}
        self._redactor = current_redactor()

    def __bool__(self) -> bool:
        return bool(self._positions)

    def add(self, file: IO[bytes]) -> None:
        """Add a file of results, which `close` will close. Lines that are too long or have no id are ignored."""
        self._files.append(file)
        file.seek(0)
        position = 0
        while line := file.readline(MAX_ANSWER_BYTES):
            start, position = position, position + len(line)
            while line and not line.endswith(b"\n") and len(line) == MAX_ANSWER_BYTES:
                line = file.readline(MAX_ANSWER_BYTES)
                position += len(line)
            name = self._name(line)
            if name is not None:
                self._positions[name] = (len(self._files) - 1, start)

    def _name(self, line: bytes) -> str | None:
        data, _, _ = self._read(line)
        name = data.get("custom_id") if isinstance(data, dict) else None
        return name if isinstance(name, str) else None

    def _read(self, line: bytes) -> tuple[Any, bytes, tuple[str, ...]]:
        redacted_line = without_secrets(line, self._redactor)
        data, json, altered = read_json(redacted_line, self._redactor)
        return data, json, altered if redacted_line is line else tuple(dict.fromkeys((*altered, SECRET_ALTERED)))

    def get(self, name: str) -> BatchRow | None:
        """Return the line with an id; None if there is none."""
        if name not in self._positions:
            return None
        number, start = self._positions[name]
        file = self._files[number]
        file.seek(start)
        data, json, altered = self._read(file.readline(MAX_ANSWER_BYTES))
        response = data.get("response")
        response = response if isinstance(response, dict) else {}
        status, body = response.get("status_code"), response.get("body")
        original = part_of(json, "response", "body") if "body" in response else None
        status = status if isinstance(status, int) and status else 500
        return BatchRow(body, dump_json(body) if original is None else original, status, data.get("error"), altered)

    def outcome_of(
        self, name: str, request: Request, settings: ModelSettings, group: str
    ) -> Completion | NipRunError | None:
        """Return the completion or the error of a call; None if the results have no line with its id."""
        try:
            row = self.get(name)
            return None if row is None else _completion(row, request, settings, group)
        except NipRunError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an invalid line is only a failure of its own call
            server = settings.server_label(group)
            return TransientError(f"{server} sent a line that cannot be read ({type(error).__name__})")

    def close(self) -> None:
        for file in self._files:
            file.close()


def _completion(row: BatchRow, request: Request, settings: ModelSettings, group: str) -> Completion:
    if row.error or row.status != 200:
        cut_answer = cut_at_limit(row.status, row.error or row.body, request, settings, 0.0)
        if cut_answer is not None:
            return cut_answer
        raise classify_error(row.status, row.error or row.body, {}, settings, group)
    return read_completion(row.json, {}, request, settings, latency_ms=0.0, altered=row.altered)
