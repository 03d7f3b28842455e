"""The results of a batch, on disk: up to 50,000 answers, of which one at a time is in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

from runner.base.errors import NipRunError, TransientError
from runner.base.redaction import current_redactor
from runner.models.answers import part_of
from runner.models.interface import Completion, Request
from runner.models.providers.answer_reader import read_completion
from runner.models.providers.lenient_json import SECRET_ALTERED, read_json, written
from runner.models.providers.openai_errors import classified, cut_at_limit
from runner.models.providers.openai_http import MAX_ANSWER_BYTES, without_secrets
from runner.models.settings import ModelSettings


@dataclass(frozen=True)
class BatchRow:
    """One line of a batch's results; whatever a server sends in the place of a field is taken for nothing there."""

    body: Any
    json: bytes
    """The body as it came, where it can be told from the rest of the line; else written again."""
    status: int
    error: Any
    altered: tuple[str, ...] = ()


class BatchResults:
    """The lines of result files, found by their names."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []
        self._found: dict[str, tuple[int, int]] = {}
        self._redactor = current_redactor()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, file: IO[bytes]) -> None:
        """Take over a file. A line without a name, or longer than any answer, is a line that is missing."""
        self._files.append(file)
        file.seek(0)
        at = 0
        while line := file.readline(MAX_ANSWER_BYTES):
            start, at = at, at + len(line)
            while line and not line.endswith(b"\n") and len(line) == MAX_ANSWER_BYTES:
                line = file.readline(MAX_ANSWER_BYTES)
                at += len(line)
            name = self._name(line)
            if name is not None:
                self._found[name] = (len(self._files) - 1, start)

    def _name(self, line: bytes) -> str | None:
        data, _, _ = self._read(line)
        name = data.get("custom_id") if isinstance(data, dict) else None
        return name if isinstance(name, str) else None

    def _read(self, line: bytes) -> tuple[Any, bytes, tuple[str, ...]]:
        cleaned = without_secrets(line, self._redactor)
        data, json, altered = read_json(cleaned, self._redactor)
        return data, json, altered if cleaned is line else tuple(dict.fromkeys((*altered, SECRET_ALTERED)))

    def get(self, name: str) -> BatchRow | None:
        """A line by its name."""
        if name not in self._found:
            return None
        number, start = self._found[name]
        file = self._files[number]
        file.seek(start)
        data, json, altered = self._read(file.readline(MAX_ANSWER_BYTES))
        response = data.get("response")
        response = response if isinstance(response, dict) else {}
        status, body = response.get("status_code"), response.get("body")
        whole = part_of(json, "response", "body") if "body" in response else None
        status = status if isinstance(status, int) and status else 500
        return BatchRow(body, written(body) if whole is None else whole, status, data.get("error"), altered)

    def end_of(
        self, name: str, request: Request, settings: ModelSettings, group: str
    ) -> Completion | NipRunError | None:
        """What became of a call, by its line; None where there is none."""
        try:
            row = self.get(name)
            return None if row is None else _completion(row, request, settings, group)
        except NipRunError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an odd line is its own call's failure, and no other's
            here = settings.server_label(group)
            return TransientError(f"{here} sent a line that cannot be read ({type(error).__name__})")

    def close(self) -> None:
        for file in self._files:
            file.close()


def _completion(row: BatchRow, request: Request, settings: ModelSettings, group: str) -> Completion:
    if row.error or row.status != 200:
        cut = cut_at_limit(row.status, row.error or row.body, request, settings, 0.0)
        if cut is not None:
            return cut
        raise classified(row.status, row.error or row.body, {}, settings, group)
    return read_completion(row.json, {}, request, settings, latency_ms=0.0, altered=row.altered)
