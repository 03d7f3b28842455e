"""Games into pieces for a page's script: each text once, however many messages and chats have it in them.

A text is a number (its place in the piece's `texts`), a string, or a list of both that are read one after another: so
a chat that quotes ten messages costs the words between them. gzip alone finds what repeats within 32 KiB, and an answer
may be longer than that.
"""

from __future__ import annotations

import gzip
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import orjson

Text = int | str | list[int | str]

LONG = 48
"""A text of fewer characters is cheaper where it stands."""

QUOTED = 12
"""A shorter one is not looked for in others. What is cut out of a template leaves parts that all games share."""

PIECE_BYTES = 1 << 20
"""Of JSON, before it is compressed: a page has the games of one piece at hand in a moment."""

THREADS = min(4, os.cpu_count() or 1)
"""Of compression, which lets others run beside it."""

MOST_WAITING = 2 * THREADS
"""Pieces that may wait to be packed."""

LEVEL = 5
"""Of compression: 6 takes a fifth longer for a hundredth less, and 9 still longer for as much."""


class Texts:
    """The texts of one piece."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self.size = 0
        """Bytes of all of them, about."""

    @property
    def all(self) -> list[str]:
        return list(self._places)

    def add(self, text: str) -> Text:
        """A text as it is referred to."""
        if len(text) < LONG:
            self.size += len(text) + 3
            return text
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = len(self._places)
            self.size += len(text.encode("utf-8", "surrogatepass"))
        self.size += 6
        return place

    def quoting(self, text: str, quoted: Sequence[str]) -> Text:
        """A text that may have others in it, as it is referred to; of `quoted` the longest is looked for first."""
        if len(text) < LONG or text in self._places:
            return self.add(text)
        parts = _parted(text, [one for one in quoted if len(one) < len(text)])
        if len(parts) == 1:
            return self.add(text)
        found: list[int | str] = []
        for part in parts:
            added = self.add(part)
            assert not isinstance(added, list)
            found.append(added)
        return found


def _parted(text: str, quoted: Sequence[str]) -> list[str]:
    """A text cut where others begin and end in it."""
    parts = [(text, False)]
    for one in quoted:
        cut: list[tuple[str, bool]] = []
        for part, is_quoted in parts:
            if is_quoted or one not in part:
                cut.append((part, is_quoted))
                continue
            for place, between in enumerate(part.split(one)):
                cut.extend([(one, True)] * (place > 0))
                cut.extend([(between, False)] * bool(between))
        parts = cut
    return [part for part, _ in parts]


def read(texts: Sequence[str], text: Text) -> str:
    """A text that is referred to, as the page's script reads it."""
    if isinstance(text, int):
        return texts[text]
    return text if isinstance(text, str) else "".join(read(texts, part) for part in text)


def by_length(texts: Iterable[str]) -> list[str]:
    """Those that are worth to be looked for in others, the longest first."""
    return sorted({text for text in texts if len(text) >= QUOTED}, key=lambda text: (-len(text), text))


class Packing:
    """Compresses pieces beside the making of the next ones, and hands them on in their order."""

    def __init__(self, keep: Callable[[str, bytes], None]) -> None:
        self._keep = keep
        self._threads = ThreadPoolExecutor(THREADS, "nip-run-pages")
        self._waiting: deque[tuple[str, Future[bytes]]] = deque()

    def add(self, name: str, data: Any) -> None:
        """Pack what is changed no more; waits where the pieces before are not packed yet, so that few are in memory."""
        self._waiting.append((name, self._threads.submit(packed, data)))
        while len(self._waiting) > MOST_WAITING:
            self._hand_on()

    def end(self) -> None:
        """All are handed on when this returns; more may be added."""
        while self._waiting:
            self._hand_on()

    def _hand_on(self) -> None:
        name, piece = self._waiting.popleft()
        self._keep(name, piece.result())


def packed(data: Any) -> bytes:
    """Data as compressed JSON: the same bytes wherever and whenever it is made."""
    return gzip.compress(orjson.dumps(data), LEVEL, mtime=0)
