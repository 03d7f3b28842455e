"""Fetch many small files of a registry server in one request, before `HttpTransport` opens them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson

from runner.base.errors import ReleaseError
from runner.registry.transports.http.api import RegistryApi

MAX_FILES_AT_ONCE = 500
"""Maximum number of files in one answer."""
MAX_BYTES_AT_ONCE = 16 << 20
"""Maximum number of bytes in one answer."""
MAX_FILE_BYTES_AT_ONCE = 1 << 20
"""Maximum size of one file in an answer, in bytes. Larger files are requested one by one."""
_MAX_HEADER_BYTES = 4_000
"""Maximum length of the line of JSON before each file in an answer, which has the file's path and size."""


class FilePrefetch:
    """Fetches the files that will be opened soon in batches. Only the files of the last batch are in memory."""

    def __init__(self, api: RegistryApi) -> None:
        self._api = api
        self._planned_paths: Sequence[str] = ()
        self._positions: Mapping[str, int] = {}
        """The positions of files in `_planned_paths`."""
        self._next_position = 0
        """The position in `_planned_paths` after the last requested file."""
        self._contents: dict[str, bytes] = {}
        """The contents of the files in the last answer that `pop_file` has not returned yet, by path."""

    def plan_prefetch(self, paths: Sequence[str]) -> None:
        """Set the paths of the files that the caller will open soon. The first path is the file to open first."""
        self._contents.clear()
        self._planned_paths, self._next_position = paths, 0
        self._positions = {path: position for position, path in enumerate(paths)}

    def pop_file(self, path: str) -> bytes | None:
        """Return the content of a planned file, and forget it; None if the caller must request the file itself."""
        position = self._positions.get(path, -1)
        if position >= self._next_position:
            self._next_position = position + MAX_FILES_AT_ONCE
            self._contents = dict(self._fetch(self._planned_paths[position : self._next_position]))
        return self._contents.pop(path, None)

    def _fetch(self, requested: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the path and content of each requested file, except missing and too large files."""
        data = self._api.post("/files", json={"paths": requested})
        position, unanswered = 0, set(requested)
        while position < len(data):
            end = data.find(b"\n", position, position + _MAX_HEADER_BYTES)
            try:
                header = orjson.loads(data[position : max(end, 0)])
                path, size = header["path"], header["size"]
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise ReleaseError(
                    f"unexpected answer to the request for files. Is {self._api.base} a nip-run registry?"
                ) from error
            position = end + 1
            is_valid_size = size is None or (type(size) is int and 0 <= size <= len(data) - position)
            if path not in unanswered or not is_valid_size:
                raise ReleaseError(
                    f"{self._api.base} sends a file that was not requested, or of the wrong size; tell its operator"
                )
            unanswered.discard(path)
            if size is not None:  # None: the file is missing or too large
                yield path, data[position : position + size]
                position += size
