"""A registry behind `nip-run serve`: files read one by one or many at a time, and uploads that go on after a cut."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256 as hashing
from typing import IO, Any

from runner.base.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.documents.releases.bundle import PIECE, Content, opened
from runner.registry.transports.http.answers import (
    CHECKING,
    MOST_FILES,
    MOST_RELEASES,
    OPEN,
    PUBLISHED,
    TAKEN,
    UploadSaid,
    indexed_of,
    list_of,
    stored_of,
)
from runner.registry.transports.http.prefetch import FilePrefetch
from runner.registry.transports.http.session import HttpAnswer, HttpSession
from runner.registry.transports.http.tokens import place_of
from runner.registry.transports.interface import Added, Indexed, Stored
from runner.registry.transports.timeouts import BUSY, Timeouts

SENT_AT_ONCE = 8 << 20
"""Bytes of a blob in one request."""
FEW_PAGES, LEAST_ON_PAGE = 20, 100
"""A list has at most this many pages that have fewer entries than that; a server sends 1,000 on a page."""
_ARRIVED = 64 << 10
"""Bytes of a blob, or all that is left of it, that must have arrived for it to be waited for anew."""
_CHANGED = "a file changed while it was published, or on its way; publish again"


class HttpTransport:
    """See `Transport`, `Swift`. What is added is declared first, then sent, then checked by the server, then seen."""

    def __init__(self, place: str, *, patience: Timeouts | None = None) -> None:
        """Raises: UsageError: no server is at such an address."""
        self._base = place_of(place)
        self._http = HttpSession(self._base, patience or Timeouts())
        self._ahead = FilePrefetch(self._http)

    @property
    def where(self) -> str:
        return self._base

    # Reading

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        after = ""
        for one in self._pages("/tree", "files", prefix, MOST_FILES):
            stored = stored_of(one)
            if stored.path <= after or not stored.path.startswith(prefix):
                raise ReleaseError(f"{self.where} lists {stored.path[:200]!r} where it cannot stand")
            after = stored.path
            yield stored

    def index(self, prefix: str = "") -> Iterator[Indexed]:
        known: set[str] = set()
        for one in self._pages("/releases", "releases", prefix, MOST_RELEASES):
            indexed = indexed_of(one)
            if indexed.folder in known or not f"{indexed.folder}/".startswith(prefix):
                raise ReleaseError(f"{self.where} lists {indexed.folder[:200]!r} where it cannot stand")
            known.add(indexed.folder)
            yield indexed

    def _pages(self, path: str, key: str, prefix: str, most: int) -> Iterator[Any]:
        """What a list has on all its pages."""
        asked: dict[str, Any] = {"prefix": prefix}
        count = pages = 0
        while True:
            pages += 1
            try:
                said = self._http.json("GET", path, params=asked)
            except NotPublished as error:
                raise ReleaseError(
                    f"no registry of nip-run answers at {self.where}; its address has no path"
                ) from error
            page = list_of(said, key)
            yield from page
            count += len(page)
            following = said.get("next")
            if following is None:
                return
            too_many = count > most or pages > FEW_PAGES + count // LEAST_ON_PAGE
            if not page or too_many or not isinstance(following, str | int):
                raise ReleaseError(f"{self.where} lists {key} without an end")
            asked["after"] = following

    def expect(self, paths: Sequence[str]) -> None:
        self._ahead.expect(paths)

    def open(self, path: str) -> IO[bytes]:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise NotPublished(f"{self.where} has no file {path}")
        if (small := self._ahead.take(path)) is not None:
            return io.BytesIO(small)
        return self._http.file(f"/tree/{path}", path)

    # Publishing

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:  # noqa: ARG002
        blobs: dict[str, Content] = {}
        files_of = {folder: [_declared(*file, blobs) for file in files] for folder, files in folders.items()}
        declared = [{"folder": folder, "files": files} for folder, files in files_of.items()]
        asked = _Asked(self, {file["sha256"]: file["size"] for files in files_of.values() for file in files})
        upload = asked("POST", "/uploads", json={"folders": declared})
        if upload.state == OPEN:
            for name, have in upload.missing.items():
                self._send_blob(asked, upload.id, name, blobs[name], have)
            upload = asked("POST", f"/uploads/{upload.id}/commit")
        upload = self._waited_for(asked, upload)
        if upload.state == PUBLISHED:
            return Added(note="; ".join(upload.notes) or None)
        if upload.state == TAKEN:
            raise TakenError(f"{self.where} has one of these releases already")
        if upload.state == OPEN:
            raise _with_notes(
                ReleaseError(f"{self.where} has not come to check it; run the same command again"), asked.problems
            )
        raise _with_notes(ReleaseError(f"{self.where} refuses it"), asked.problems)

    def _waited_for(self, asked: _Asked, upload: UploadSaid) -> UploadSaid:
        """An upload once it is checked."""
        patience, identity = self._http.patience, upload.id
        wait, deadline = patience.check_again, time.monotonic() + patience.check_seconds
        while upload.state == CHECKING:
            if time.monotonic() > deadline:
                raise ReleaseError(
                    f"{self.where} has all of it, and has not checked it yet; the same command says what became of it"
                )
            time.sleep(wait)
            wait = min(wait * 1.5, 20 * patience.check_again)
            upload = asked("GET", f"/uploads/{identity}")
        return upload

    def _send_blob(self, asked: _Asked, upload: str, name: str, content: Content, have: int) -> None:
        """Send what follows the first bytes of a blob, and go on wherever it is cut off."""
        patience, size = self._http.patience, asked.sizes[name]
        arriving = _Progress(patience, size, have)
        with opened(content) as source:
            while True:
                source.seek(have)
                data = source.read(SENT_AT_ONCE)
                answer, seconds = self._http.send(f"/uploads/{upload}/blobs/{name}", data, have)
                if answer is not None and answer.status == 200:
                    known: int | None = answer.number("have")
                    if len(data) < SENT_AT_ONCE and known == have + len(data):
                        return
                else:
                    known = self._have(asked, answer, upload, name)
                    if known is None:
                        return  # it is whole
                if known is None or known > size or not arriving.goes_on(known):
                    raise ReleaseError(f"{self.where} takes no more of a file; run the same command again")
                if answer is None or answer.status != 200:
                    # The server may not have noticed yet that the connection broke, or another sends the same.
                    arriving.sleep(seconds)
                have = known

    def _have(self, asked: _Asked, answer: HttpAnswer | None, upload: str, name: str) -> int | None:
        """How much of a blob is there, after a piece of it was refused or lost; None: all of it."""
        if answer is not None and answer.status == 422:
            raise _with_notes(ReleaseError(f"{self.where}: {answer.message}; {_CHANGED}"), answer.problems)
        if answer is not None and answer.status not in (404, 409, *BUSY):
            self.answered(answer)
        return asked("GET", f"/uploads/{upload}").missing.get(name)

    def ask(self, method: str, path: str, **options: Any) -> HttpAnswer:
        """A question about an upload, which is answered."""
        answer = self._http.ask(method, path, **options)
        self.answered(answer)
        return answer

    def answered(self, answer: HttpAnswer) -> None:
        """See that the server did as it was asked.

        Raises:
            TakenError, UsageError, ReleaseError: what it says is wrong.
        """
        if answer.status in (200, 201, 202):
            return
        if answer.status == 409:
            raise TakenError(f"{self.where}: {answer.message}")
        if answer.status in (401, 403):
            raise UsageError(f"{self.where}: {answer.message}{self._http.token_hint}")
        raise _with_notes(ReleaseError(f"{self.where}: {answer.message}"), answer.problems)

    def close(self) -> None:
        self._http.close()


class _Asked:
    """Questions about one upload, whose answers are seen to be about it."""

    def __init__(self, transport: HttpTransport, sizes: Mapping[str, int]) -> None:
        self._transport, self.sizes = transport, sizes
        self.problems: Sequence[str] = ()
        """Those of the last answer."""

    def __call__(self, method: str, path: str, **options: Any) -> UploadSaid:
        answer = self._transport.ask(method, path, **options)
        self.problems = answer.problems
        return UploadSaid.of(answer.body, self.sizes)


class _Progress:
    """Whether a blob still arrives: more of it than before, each while, and all of it in a time that its size gives."""

    def __init__(self, patience: Timeouts, size: int, have: int) -> None:
        self._patience, self._size, self._best = patience, size, have
        self._wait = patience.wait
        self._end = time.monotonic() + patience.seconds_for(size)
        self._deadline = time.monotonic() + patience.stall

    def goes_on(self, have: int) -> bool:
        now = time.monotonic()
        if have >= min(self._best + _ARRIVED, self._size) > self._best:
            self._best, self._wait, self._deadline = have, self._patience.wait, now + self._patience.stall
        return now <= min(self._deadline, self._end)

    def sleep(self, asked: float) -> None:
        """Wait before the next try; longer each time that nothing arrives."""
        time.sleep(max(self._wait, asked))
        self._wait = min(self._wait * 2, self._patience.longest_wait)


def _declared(path: str, content: Content, blobs: dict[str, Content]) -> dict[str, Any]:
    hashed, size = hashing(), 0
    try:
        with opened(content) as source:
            while piece := source.read(PIECE):
                hashed.update(piece)
                size += len(piece)
    except OSError as error:
        raise ReleaseError(f"cannot read {content!s}: {error.strerror}") from error
    blobs[hashed.hexdigest()] = content
    return {"path": path, "sha256": hashed.hexdigest(), "size": size}


def _with_notes(error: ReleaseError, notes: Sequence[str]) -> ReleaseError:
    for note in notes:
        error.add_note(note)
    return error
