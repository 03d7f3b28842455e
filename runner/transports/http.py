"""A registry behind `nip-run serve`: files read one by one or many at a time, and uploads that go on after a cut."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256 as hashing
from typing import IO, Any

from runner.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.releases.bundle import PIECE, Content, opened
from runner.text import shortened
from runner.transports.base import Added, Indexed, Stored
from runner.transports.http_ahead import Ahead
from runner.transports.http_session import Answer, HttpSession
from runner.transports.http_tokens import place_of
from runner.transports.patience import BUSY, Patience

SENT_AT_ONCE = 8 << 20
"""Bytes of a blob in one request."""
_NOTES, _NOTE = 20, 500
"""The most notes that a server has told, and of how many characters each."""
_MOST_FILES = 10_000_000
_TIER = re.compile("self-reported|recomputed|reproduced by [0-9]{1,9}")
_CHANGED = "a file changed while it was published, or on its way; publish again"


class HttpTransport:
    """See `Transport`, `Swift`. What is added is declared first, then sent, then checked by the server, then seen."""

    def __init__(self, place: str, *, patience: Patience | None = None) -> None:
        """Raises: UsageError: no server is at such an address."""
        self._base = place_of(place)
        self._http = HttpSession(self._base, patience or Patience())
        self._ahead = Ahead(self._http)

    @property
    def where(self) -> str:
        return self._base

    # Reading

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        after = ""
        for one in self._pages("/tree", "files", prefix):
            stored = _stored(one)
            if stored.path <= after or not stored.path.startswith(prefix):
                raise ReleaseError(f"{self.where} lists {stored.path[:200]!r} where it cannot stand")
            after = stored.path
            yield stored

    def index(self, prefix: str = "") -> Iterator[Indexed]:
        for one in self._pages("/releases", "releases", prefix):
            indexed = _indexed(one)
            if not f"{indexed.folder}/".startswith(prefix):
                raise ReleaseError(f"{self.where} lists {indexed.folder[:200]!r} where it cannot stand")
            yield indexed

    def _pages(self, path: str, key: str, prefix: str) -> Iterator[Any]:
        """What a list has on all its pages."""
        asked: dict[str, Any] = {"prefix": prefix}
        count = 0
        while True:
            try:
                said = self._http.json("GET", path, params=asked)
            except NotPublished as error:
                raise ReleaseError(
                    f"no registry of nip-run answers at {self.where}; its address has no path"
                ) from error
            page = _list(said, key)
            yield from page
            count += len(page)
            following = said.get("next")
            if following is None:
                return
            if not page or count > _MOST_FILES or not isinstance(following, str | int):
                raise ReleaseError(f"{self.where} lists {key} without an end")
            asked["after"] = following

    def vouched(self, prefix: str = "") -> Mapping[str, str]:
        found = {}
        for one in self._pages("/vouched", "runs", prefix):
            said = one if isinstance(one, dict) else {}
            if isinstance(said.get("words"), str) and _TIER.fullmatch(said["words"]):
                found[str(said.get("sha256"))] = str(said["words"])
        return found

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
        declared = [
            {"folder": folder, "files": [_declared(*file, blobs) for file in files]}
            for folder, files in folders.items()
        ]
        upload = self._answered(self._http.ask("POST", "/uploads", json={"folders": declared}))
        if upload.get("state") == "open":
            self._send(upload, blobs)
            upload = self._answered(self._http.ask("POST", f"/uploads/{upload['id']}/commit"))
        upload = self._waited_for(upload)
        if upload.get("state") == "published":
            notes = [shortened(str(one), _NOTE) for one in _list(upload, "notes")[:_NOTES]] if "notes" in upload else []
            return Added(note="; ".join(notes) or None)
        if upload.get("state") == "taken":
            raise TakenError(f"{self.where} has one of these releases already")
        problems = Answer(200, upload).problems
        if upload.get("state") == "open":
            raise _with_notes(
                ReleaseError(f"{self.where} has not come to check it; run the same command again"), problems
            )
        raise _with_notes(ReleaseError(f"{self.where} refuses it"), problems)

    def _waited_for(self, upload: dict[str, Any]) -> dict[str, Any]:
        """An upload once it is checked."""
        patience, identity = self._http.patience, upload.get("id")
        wait, deadline = patience.check_again, time.monotonic() + patience.check_seconds
        while upload.get("state") == "checking":
            if time.monotonic() > deadline:
                raise ReleaseError(
                    f"{self.where} has all of it, and has not checked it yet; the same command says what became of it"
                )
            time.sleep(wait)
            wait = min(wait * 1.5, 20 * patience.check_again)
            upload = self._answered(self._http.ask("GET", f"/uploads/{identity}"))
        return upload

    def _send(self, upload: dict[str, Any], blobs: Mapping[str, Content]) -> None:
        for one in _list(upload, "missing"):
            name = str(one["sha256"])
            if name not in blobs:
                raise ReleaseError(f"{self.where} asks for a file that is none of these")
            self._send_blob(str(upload["id"]), name, blobs[name], int(one["have"]))

    def _send_blob(self, upload: str, name: str, content: Content, have: int) -> None:
        """Send what follows the first bytes of a blob, and go on wherever it is cut off."""
        patience = self._http.patience
        wait, deadline = patience.wait, time.monotonic() + patience.stall
        with opened(content) as source:
            while True:
                source.seek(have)
                data = source.read(SENT_AT_ONCE)
                answer, asked = self._http.send(f"/uploads/{upload}/blobs/{name}", data, have)
                if answer is not None and answer.status == 200:
                    known: int | None = answer.number("have")
                    if len(data) < SENT_AT_ONCE and known == have + len(data):
                        return
                else:
                    known = self._have(answer, upload, name)
                    if known is None:
                        return  # it is whole
                if known is not None and known > have:
                    wait, deadline = patience.wait, time.monotonic() + patience.stall
                elif time.monotonic() > deadline:
                    raise ReleaseError(f"{self.where} takes no more of a file; run the same command again")
                if answer is None or answer.status != 200:
                    # The server may not have noticed yet that the connection broke, or another sends the same.
                    time.sleep(max(wait, asked))
                    wait = min(wait * 2, patience.longest_wait)
                have = known or 0

    def _have(self, answer: Answer | None, upload: str, name: str) -> int | None:
        """How much of a blob is there, after a piece of it was refused or lost; None: all of it."""
        if answer is not None and answer.status == 422:
            raise _with_notes(ReleaseError(f"{self.where}: {answer.message}; {_CHANGED}"), answer.problems)
        if answer is not None and answer.status not in (404, 409, *BUSY):
            self._answered(answer)
        said = self._answered(self._http.ask("GET", f"/uploads/{upload}"))
        missing = {str(one["sha256"]): int(one["have"]) for one in _list(said, "missing")}
        return missing.get(name)

    def _answered(self, answer: Answer) -> dict[str, Any]:
        """What the server says, where it did as it was asked, or what it says is wrong.

        Raises:
            TakenError, UsageError, ReleaseError: as it says.
        """
        if answer.status in (200, 201, 202):
            return answer.body
        if answer.status == 409:
            raise TakenError(f"{self.where}: {answer.message}")
        if answer.status in (401, 403):
            raise UsageError(f"{self.where}: {answer.message}{self._http.token_hint}")
        raise _with_notes(ReleaseError(f"{self.where}: {answer.message}"), answer.problems)

    def close(self) -> None:
        self._http.close()


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


def _stored(one: Any) -> Stored:
    if not isinstance(one, dict) or not isinstance(one.get("path"), str) or type(one.get("size")) is not int:
        raise ReleaseError("a list of files has what is no file")
    return Stored(one["path"], one["size"])


def _indexed(one: Any) -> Indexed:
    said = one if isinstance(one, dict) else {}
    folder, sha256, yanked = said.get("folder"), said.get("sha256"), said.get("yanked")
    if not isinstance(folder, str) or not isinstance(sha256, str) or not isinstance(yanked, str | None):
        raise ReleaseError("a list of releases has what is no release")
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise ReleaseError("a list of releases has one without a hash")
    return Indexed(folder, sha256, None if yanked is None else yanked.encode(), said.get("signed") is True)


def _list(said: Mapping[str, Any], key: str) -> list[Any]:
    found = said.get(key)
    if not isinstance(found, list):
        raise ReleaseError(f"its answer has no {key}; is this a registry of nip-run?")
    return found


def _with_notes(error: ReleaseError, notes: Sequence[str]) -> ReleaseError:
    for note in notes:
        error.add_note(note)
    return error
