"""Small files of a server's registry, read many at a time before they are opened one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import orjson

from runner.base.errors import ReleaseError
from runner.registry.transports.http.session import HttpSession

MOST_AT_ONCE = 500
"""Files in one answer,"""
BYTES_AT_ONCE = 16 << 20
"""bytes of them,"""
LARGEST_AT_ONCE = 1 << 20
"""and bytes of one; what is larger is opened alone."""
_LONGEST_LINE = 4_000


class FilePrefetch:
    """What is expected to be opened, in that order, and what has come of it. At most one answer is held."""

    def __init__(self, http: HttpSession) -> None:
        self._http = http
        self._expected: deque[str] = deque()
        self._known: set[str] = set()
        self._here: dict[str, bytes] = {}

    def expect(self, paths: Sequence[str]) -> None:
        """These, and nothing that was expected before."""
        self._here.clear()
        self._expected, self._known = deque(paths), set(paths)

    def take(self, path: str) -> bytes | None:
        """A file that was expected; None where it is to be asked for alone."""
        if path in self._here:
            return self._here.pop(path)
        if path not in self._known:
            return None
        while self._expected and self._expected[0] != path:  # those were not opened after all
            self._known.discard(self._expected.popleft())
        wanted = [self._expected.popleft() for _ in range(min(MOST_AT_ONCE, len(self._expected)))]
        self._here = dict(self._asked(wanted))
        self._known.difference_update(wanted)
        # Of what did not come nothing is said here: it is asked for again when it is opened.
        return self._here.pop(path, None)

    def _asked(self, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        data = self._http.data("POST", "/files", json={"paths": wanted})
        at, asked = 0, set(wanted)
        while at < len(data):
            end = data.find(b"\n", at, at + _LONGEST_LINE)
            if end < 0:
                raise ReleaseError("files come otherwise than a registry of nip-run sends them")
            try:
                said = orjson.loads(data[at:end])
                path, size = said["path"], said["size"]
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise ReleaseError("files come otherwise than a registry of nip-run sends them") from error
            at = end + 1
            if path not in asked or not (size is None or (type(size) is int and 0 <= size <= len(data) - at)):
                raise ReleaseError("files come otherwise than they were asked for")
            asked.discard(path)
            if size is not None:
                yield path, data[at : at + size]
                at += size
