"""Fetch many small files of a registry server at once, before they are opened one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import orjson

from runner.base.errors import ReleaseError
from runner.registry.transports.http.api import RegistryApi

MAX_FILES_AT_ONCE = 500
"""Maximum number of files in one answer."""
MAX_BYTES_AT_ONCE = 16 << 20
"""Maximum number of bytes in one answer."""
MAX_FILE_BYTES_AT_ONCE = 1 << 20
"""Maximum size of one file in an answer, in bytes. Larger files are requested one by one."""
_LONGEST_LINE = 4_000


class FilePrefetch:
    """Small files that are fetched before they are opened. Only the latest answer of the server is in memory."""

    def __init__(self, api: RegistryApi) -> None:
        self._api = api
        self._expected: deque[str] = deque()
        self._waiting: set[str] = set()
        self._fetched: dict[str, bytes] = {}

    def expect(self, paths: Sequence[str]) -> None:
        """Set the paths of the files that will be opened soon, in this order."""
        self._fetched.clear()
        self._expected, self._waiting = deque(paths), set(paths)

    def take(self, path: str) -> bytes | None:
        """Return the content of an expected file; None if the file has to be requested on its own."""
        if path in self._waiting and path not in self._fetched:
            while self._expected and self._expected[0] != path:  # files that were expected, but not opened
                self._waiting.discard(self._expected.popleft())
            requested = [self._expected.popleft() for _ in range(min(MAX_FILES_AT_ONCE, len(self._expected)))]
            self._fetched = dict(self._fetch(requested))
            self._waiting.difference_update(requested)
        return self._fetched.pop(path, None)

    def _fetch(self, requested: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the path and content of each file in the server's answer, which omits large and missing files."""
        data = self._api.post("/files", json={"paths": requested})
        position, missing = 0, set(requested)
        while position < len(data):
            end = data.find(b"\n", position, position + _LONGEST_LINE)
            try:
                header = orjson.loads(data[position : max(end, 0)])
                path, size = header["path"], header["size"]
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise ReleaseError(
                    f"unexpected answer to the request for files. Is {self._api.base} a nip-run registry?"
                ) from error
            position = end + 1
            if path not in missing or not (size is None or (type(size) is int and 0 <= size <= len(data) - position)):
                raise ReleaseError(
                    f"{self._api.base} sends a file that was not requested, or of the wrong size; tell its operator"
                )
            missing.discard(path)
            if size is not None:
                yield path, data[position : position + size]
                position += size
