"""A server that is none, or means harm, is not believed: what it says is bounded, and stands where it may."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.errors import ReleaseError
from runner.transports.http import HttpTransport
from runner.transports.http_ahead import Ahead
from runner.transports.http_session import HttpSession
from runner.transports.patience import Patience
from tests.transports.test_http_tokens import config, listening

__all__ = ("config",)
BRIEF = Patience(tries=2, wait=0.01, read=5, answer_bytes=1 << 16)


def read(answer: bytes, how: str, *, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    with listening((status, headers or {}, answer)) as (where, _):
        transport = HttpTransport(where, patience=BRIEF)
        try:
            if how == "open":
                with transport.open("run/acme/x/1/release.json") as file:
                    return file.read()
            return list(getattr(transport, how)("run/acme/"))
        finally:
            transport.close()


def page(key: str, *rows: Any, following: Any = None) -> bytes:
    return json.dumps({key: rows, "next": following}).encode()


@pytest.mark.parametrize(
    ("how", "answer", "words"),
    [
        ("stored", page("files", {"path": "../../x", "size": 1}), "where it cannot stand"),
        ("stored", page("files", {"path": "run/eve/x", "size": 1}), "where it cannot stand"),
        ("stored", page("files", {"path": "run/acme/x", "size": "1"}), "has what is no file"),
        ("stored", page("files", {"path": "run/acme/x", "size": 1}, {"path": "run/acme/a", "size": 1}), "cannot stand"),
        ("stored", page("files", {"path": "run/acme/x", "size": 1}, following="run/acme/x"), "where it cannot stand"),
        ("stored", page("files", following="x"), "without an end"),
        ("stored", b"<html>a page</html>", "does not answer as a registry"),
        ("stored", b"[]", "has no files"),
        ("stored", b'{"files": 5}', "has no files"),
        ("stored", b" " * (1 << 17), "its answer is longer than"),
        ("index", page("releases", {"folder": "run/eve/x/1", "sha256": "a" * 64, "yanked": None}), "cannot stand"),
        ("index", page("releases", {"folder": "run/acme/x/1", "sha256": "a" * 63, "yanked": None}), "without a hash"),
        ("index", page("releases", {"folder": "run/acme/x/1", "sha256": "a" * 64, "yanked": 5}), "no release"),
        ("index", page("releases", "x"), "has what is no release"),
    ],
)
def test_what_a_list_may_not_say_is_refused(how: str, answer: bytes, words: str) -> None:
    with pytest.raises(ReleaseError, match=words) as raised:
        read(answer, how)
    assert len(str(raised.value)) < 500


def test_a_fault_is_told_in_one_short_line_and_drives_no_terminal() -> None:
    said = {"message": "\x1b[2J" + "x" * 10_000 + "\n", "problems": ["\x1b]0;x"] * 1_000}
    with pytest.raises(ReleaseError) as raised:
        read(json.dumps(said).encode(), "stored", status=400)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 700


def test_a_file_that_is_shorter_than_was_told_is_no_file() -> None:
    with pytest.raises(ReleaseError, match="the connection broke"):
        read(b"x", "open", headers={"content-length": "100", "connection": "close"})


@pytest.mark.parametrize(
    "answer",
    [
        b'{"path":"run/eve/x","size":1}\nx', b'{"path":"run/acme/a","size":100}\nx',
        b'{"path":"run/acme/a","size":-1}\n', b"no json\nx", b'{"size":1}\nx', b"x" * 5_000,
    ],
)  # fmt: skip
def test_files_that_come_otherwise_than_they_were_asked_for_are_refused(answer: bytes) -> None:
    with listening((200, {}, answer)) as (where, _):
        session = HttpSession(where, BRIEF)
        ahead = Ahead(session)
        ahead.expect(["run/acme/a", "run/acme/b"])
        with pytest.raises(ReleaseError, match="files come otherwise"):
            ahead.take("run/acme/a")
        session.close()
