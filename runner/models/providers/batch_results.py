"""Reads the results of a batch from disk. A batch may have 50,000 answers, so only one is in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

from runner.base.errors import NipRunError, TransientError
from runner.base.redaction import current_redactor
from runner.models.answers import extract_json
from runner.models.interface import Completion, Request
from runner.models.providers.answer_reader import read_completion
from runner.models.providers.lenient_json import SECRET_ALTERED, read_json
from runner.models.providers.openai_errors import classify_error, truncated_answer_in
from runner.models.providers.openai_http import MAX_ANSWER_BYTES, without_secrets
from runner.models.settings import ModelSettings


@dataclass(frozen=True)
class BatchLine:
    """One line of a batch's results: the answer to one call. A field of the wrong type counts as missing."""

    body: Any
    json: bytes
    """The bytes of the body in the line."""
    status: int
    error: Any
    altered: tuple[str, ...] = ()
    """The kinds of changes to the line on arrival; see `Completion.altered`."""


class BatchResults:
    """The lines of result files, by the ids of their calls (`custom_id`)."""

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
            data, _, _ = self._parse(line)
            call_id = data.get("custom_id") if isinstance(data, dict) else None
            if isinstance(call_id, str):
                self._positions[call_id] = (len(self._files) - 1, start)

    def _parse(self, line: bytes) -> tuple[Any, bytes, tuple[str, ...]]:
        """Return the data of a line, its JSON without secrets, and the kinds of changes to the line."""
        redacted_line = without_secrets(line, self._redactor)
        data, json, altered = read_json(redacted_line, self._redactor)
        return data, json, altered if redacted_line is line else tuple(dict.fromkeys((*altered, SECRET_ALTERED)))

    def find_line(self, call_id: str) -> BatchLine | None:
        """Return the line of a call; None if there is none.

        Raises:
            RecursionError: the line is nested too deeply to be searched.
        """
        if call_id not in self._positions:
            return None
        file_index, start = self._positions[call_id]
        file = self._files[file_index]
        file.seek(start)
        data, json, altered = self._parse(file.readline(MAX_ANSWER_BYTES))
        response = data.get("response")
        response = response if isinstance(response, dict) else {}
        status, body = response.get("status_code"), response.get("body")
        body_json = extract_json(json, "response", "body") if "body" in response else b"null"
        status = status if isinstance(status, int) and status else 500
        return BatchLine(body, body_json, status, data.get("error"), altered)

    def outcome_of(
        self, call_id: str, request: Request, settings: ModelSettings, group: str
    ) -> Completion | NipRunError | None:
        """Return the completion or the error of a call; None if the results have no line with its id."""
        try:
            line = self.find_line(call_id)
            return None if line is None else _completion(line, request, settings, group)
        except NipRunError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an invalid line is only a failure of its own call
            server = settings.server_label(group)
            return TransientError(f"{server} sent a line that cannot be read ({type(error).__name__})")

    def close(self) -> None:
        for file in self._files:
            file.close()


def _completion(line: BatchLine, request: Request, settings: ModelSettings, group: str) -> Completion:
    """Return the completion in a line, or raise its error."""
    if line.error or line.status != 200:
        truncated_answer = truncated_answer_in(line.status, line.error or line.body, request, settings, 0.0)
        if truncated_answer is not None:
            return truncated_answer
        raise classify_error(line.status, line.error or line.body, {}, settings, group)
    return read_completion(line.json, {}, request, settings, latency_ms=0.0, altered=line.altered)
