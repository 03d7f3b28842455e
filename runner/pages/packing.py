"""Packs games into pieces: compressed parts of a page's data. A piece contains each text once, even if chats repeat it.

A text is a number (its index in the piece's `texts`), a string, or a list of numbers and strings to concatenate. A chat
that quotes ten messages takes only the space of the text between the quotes. gzip alone would not suffice, because it
finds only repetitions within 32 KiB, and an answer may be longer.
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

MIN_SHARED_LENGTH = 48
"""Texts with fewer characters are stored inline, which is cheaper than a reference."""

MIN_QUOTE_LENGTH = 12
"""Minimum number of characters of a text that is searched in other texts."""

PIECE_BYTES = 1 << 20
"""Size of a piece in bytes of JSON before compression. A page loads a piece of this size quickly."""

THREADS = min(4, os.cpu_count() or 1)
"""Number of threads that compress pieces in parallel; compression releases Python's global interpreter lock."""

MAX_WAITING = 2 * THREADS
"""Maximum number of pieces that wait for compression."""

LEVEL = 5
"""gzip level. Level 6 takes 20 % longer and saves only 1 %; level 9 takes even longer and saves little more."""


class Texts:
    """The texts of one piece."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self.size = 0
        """Approximate size of all texts and references in bytes."""

    @property
    def all(self) -> list[str]:
        return list(self._places)

    def add(self, text: str) -> int | str:
        """Store a text and return the reference to it."""
        if len(text) < MIN_SHARED_LENGTH:
            self.size += len(text) + 3
            return text
        index = self._places.get(text)
        if index is None:
            index = self._places[text] = len(self._places)
            self.size += len(text.encode("utf-8", "surrogatepass"))
        self.size += 6
        return index

    def add_quoting(self, text: str, quoted: Sequence[str]) -> Text:
        """Store a text that may contain the `quoted` texts, and return the reference to it."""
        if len(text) < MIN_SHARED_LENGTH or text in self._places:
            return self.add(text)
        references: list[int | str] = []
        self._add_parts(text, quoted, 0, references)
        return references if len(references) > 1 else references[0]

    def _add_parts(self, text: str, quoted: Sequence[str], first: int, references: list[int | str]) -> None:
        """Store the parts of a text between the starts and ends of the texts in `quoted` from the place `first` on.

        A part that is stored already is not split. The references to the parts are appended to `references`.
        """
        places = range(first, len(quoted)) if text not in self._places else ()
        place = next((place for place in places if quoted[place] in text), None)
        if place is None:
            references.append(self.add(text))
            return
        before, _, after = text.partition(quoted[place])
        if before:
            self._add_parts(before, quoted, place + 1, references)
        references.append(self.add(quoted[place]))
        if after:
            self._add_parts(after, quoted, place, references)


def resolve_text(texts: Sequence[str], text: Text) -> str:
    """Return the text of a reference, as the page's script does."""
    if isinstance(text, int):
        return texts[text]
    return text if isinstance(text, str) else "".join(resolve_text(texts, part) for part in text)


def quotable_texts(texts: Iterable[str]) -> list[str]:
    """Return the distinct texts that are long enough to search for them in other texts, longest first."""
    return sorted({text for text in texts if len(text) >= MIN_QUOTE_LENGTH}, key=lambda text: (-len(text), text))


class PieceCompressor:
    """Compresses pieces in threads while the next pieces are built, and stores them in order."""

    def __init__(self, store_piece: Callable[[str, bytes], None]) -> None:
        self._store_piece = store_piece
        self._threads = ThreadPoolExecutor(THREADS, "nip-run-pages")
        self._waiting: deque[tuple[str, Future[bytes]]] = deque()

    def add(self, name: str, data: Any) -> None:
        """Compress data that no longer changes. If too many pieces are pending, wait for one, to limit the memory."""
        self._waiting.append((name, self._threads.submit(compress_json, data)))
        while len(self._waiting) > MAX_WAITING:
            self._store_next()

    def end(self) -> None:
        """Wait until all pieces are stored. More pieces can be added later."""
        while self._waiting:
            self._store_next()

    def _store_next(self) -> None:
        name, piece = self._waiting.popleft()
        self._store_piece(name, piece.result())


def compress_json(data: Any) -> bytes:
    """Return data as compressed JSON. Equal data always gives equal bytes."""
    return gzip.compress(orjson.dumps(data), LEVEL, mtime=0)
