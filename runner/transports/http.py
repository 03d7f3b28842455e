"""A registry behind `nip-run serve`: files read one by one, and uploads that go on where they were cut off."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256 as hashing
from typing import IO, Any

from runner.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.releases.bundle import PIECE, Content, opened
from runner.transports.base import Added, Stored
from runner.transports.http_session import Answer, HttpSession, Patience, place_of

SENT_AT_ONCE = 8 << 20
"""Bytes of a blob in one request."""
TURNS = 8
"""How often a blob is sent on after it was cut off without anything new having arrived."""
_MOST_FILES = 10_000_000


class HttpTransport:
    """See `Transport`. What is added is declared first, then sent, then checked by the server, and then seen."""

    def __init__(self, place: str, *, patience: Patience | None = None) -> None:
        """Raises: UsageError: no server is at such an address."""
        self._base = place_of(place)
        self._http = HttpSession(self._base, patience or Patience())

    @property
    def where(self) -> str:
        return self._base

    # Reading

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        after, count = "", 0
        while True:
            said = self._http.json("GET", "/tree", params={"prefix": prefix, "after": after})
            page = [_stored(one) for one in _list(said, "files")]
            for stored in page:
                if stored.path <= after or not stored.path.startswith(prefix):
                    raise ReleaseError(f"{self.where} lists {stored.path[:200]!r} where it cannot stand")
                after = stored.path
                yield stored
            count += len(page)
            if said.get("next") is None:
                return
            if not page or count > _MOST_FILES:
                raise ReleaseError(f"{self.where} lists files without an end")

    def open(self, path: str) -> IO[bytes]:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise NotPublished(f"{self.where} has no file {path}")
        return self._http.file(f"/tree/{path}", path)

    # Publishing

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:  # noqa: ARG002
        blobs: dict[str, Content] = {}
        declared = [
            {"folder": folder, "files": [_declared(*file, blobs) for file in files]}
            for folder, files in folders.items()
        ]
        upload = self._answered(self._http.ask("POST", "/uploads", json={"folders": declared}))
        if upload["state"] == "open":
            self._send(upload, blobs)
            upload = self._answered(self._http.ask("POST", f"/uploads/{upload['id']}/commit"))
        while upload["state"] == "checking":
            time.sleep(self._http.patience.check_again)
            upload = self._answered(self._http.ask("GET", f"/uploads/{upload['id']}"))
        if upload["state"] == "published":
            return Added()
        problems = [str(one) for one in upload.get("problems", [])]
        if upload["state"] == "taken":
            raise TakenError(f"{self.where} has one of these releases already")
        raise _with_notes(ReleaseError(f"{self.where} refuses it"), problems)

    def _send(self, upload: dict[str, Any], blobs: Mapping[str, Content]) -> None:
        for one in _list(upload, "missing"):
            name = str(one["sha256"])
            if name not in blobs:
                raise ReleaseError(f"{self.where} asks for a file that is none of these")
            self._send_blob(str(upload["id"]), name, blobs[name], int(one["have"]))

    def _send_blob(self, upload: str, name: str, content: Content, have: int) -> None:
        turns = TURNS
        with opened(content) as source:
            while True:
                source.seek(have)
                data = source.read(SENT_AT_ONCE)
                answer = self._http.send(f"/uploads/{upload}/blobs/{name}", data, have)
                known = (
                    self._have(answer, upload, name)
                    if answer is None or answer.status != 200
                    else answer.number("have")
                )
                if known is None:
                    return  # it is whole
                turns = TURNS if known > have else turns - 1
                if not turns:
                    raise ReleaseError(f"{self.where} takes no more of a file; run the same command again")
                if (
                    answer is not None
                    and answer.status == 200
                    and len(data) < SENT_AT_ONCE
                    and known == have + len(data)
                ):
                    return
                have = known

    def _have(self, answer: Answer | None, upload: str, name: str) -> int | None:
        """How much of a blob is there, after a piece of it was refused or lost; None: all of it."""
        if answer is not None and answer.status not in (404, 409, 422):
            self._answered(answer)
        if answer is not None and answer.status == 422:
            raise _with_notes(ReleaseError(f"{self.where}: {answer.message}"), answer.problems)
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


def _list(said: Mapping[str, Any], key: str) -> list[Any]:
    found = said.get(key)
    if not isinstance(found, list):
        raise ReleaseError(f"its answer has no {key}; is this a registry of nip-run?")
    return found


def _with_notes(error: ReleaseError, notes: Sequence[str]) -> ReleaseError:
    for note in notes[:50]:
        error.add_note(note)
    return error
