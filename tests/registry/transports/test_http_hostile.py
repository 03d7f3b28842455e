"""A server that is none, or means harm, is not believed: what it says is bounded, and stands where it may."""

from __future__ import annotations

import hashlib
import http.server
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.base.errors import ReleaseError
from runner.registry.transports.http.api import RegistryApi, parse_account
from runner.registry.transports.http.prefetch import FilePrefetch
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.timeouts import Timeouts
from tests.registry.transports.test_http_tokens import config, listening

__all__ = ("config",)
BRIEF = Timeouts(tries=2, wait=0.01, read=5, answer_bytes=1 << 16)


def read(answer: bytes, how: str, *, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    with listening((status, headers or {}, answer)) as (where, _):
        transport = HttpTransport(where, timeouts=BRIEF)
        try:
            if how == "open":
                with transport.open("run/acme/x/1/release.json") as file:
                    return file.read()
            return list(getattr(transport, how)("run/acme/"))
        finally:
            transport.close()


INDEXED = {"folder": "run/acme/x/1", "sha256": "a" * 64, "yanked": None, "signed": False}


def page(key: str, *rows: Any, following: Any = None) -> bytes:
    return json.dumps({key: rows, "next": following}).encode()


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (page("releases", following="x"), "that does not end"),
        (b"<html>a page</html>", "no nip-run registry answers at this address"),
        (b"[]", "has no list 'releases'"),
        (b'{"releases": 5}', "has no list 'releases'"),
        (b" " * (1 << 17), "answer is longer than"),
        (
            page("releases", {"folder": "run/eve/x/1", "sha256": "a" * 64, "yanked": None}),
            "out of order|twice",
        ),
        (
            page("releases", {"folder": "run/acme/x/1", "sha256": "a" * 63, "yanked": None}),
            "releases has an invalid entry",
        ),
        (
            page("releases", {"folder": "run/acme/x/1", "sha256": "a" * 64, "yanked": 5}),
            "releases has an invalid entry",
        ),
        (page("releases", "x"), "releases has an invalid entry"),
        (page("releases", INDEXED, INDEXED), "out of order|twice"),
        (page("releases", INDEXED, following=5), "out of order|twice"),
        (page("releases", {**INDEXED, "yanked": "\ud800"}), "no nip-run registry answers"),
    ],
)
def test_what_a_list_may_not_say_is_refused(answer: bytes, words: str) -> None:
    with pytest.raises(ReleaseError, match=words) as raised:
        read(answer, "list_releases")
    assert len(str(raised.value)) < 500


def test_a_fault_is_told_in_one_short_line_and_drives_no_terminal() -> None:
    said = {"message": "\x1b[2J" + "x" * 10_000 + "\n", "problems": ["\x1b]0;x"] * 1_000}
    with pytest.raises(ReleaseError) as raised:
        read(json.dumps(said).encode(), "list_releases", status=400)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 700


def test_a_file_that_is_shorter_than_was_told_is_no_file() -> None:
    with pytest.raises(ReleaseError, match=r"the connection to .* broke"):
        read(b"x", "open", headers={"content-length": "100", "connection": "close"})


@pytest.mark.full
@pytest.mark.parametrize(
    "answer",
    [
        b'{"path":"run/eve/x","size":1}\nx', b'{"path":"run/acme/a","size":100}\nx',
        b'{"path":"run/acme/a","size":-1}\n', b"no json\nx", b'{"size":1}\nx', b"x" * 5_000,
        b'{"path":"run/acme/a","size":null}X',
        b'{"path":"run/acme/a","size":null}\n' * 2,
    ],
)  # fmt: skip
def test_files_that_come_otherwise_than_they_were_asked_for_are_refused(answer: bytes) -> None:
    with listening((200, {}, answer)) as (where, _):
        session = RegistryApi(where, BRIEF)
        ahead = FilePrefetch(session)
        ahead.plan_prefetch(["run/acme/a", "run/acme/b"])
        with pytest.raises(ReleaseError, match=r"unexpected answer to the request for files|not requested, or"):
            ahead.pop_file("run/acme/a")
        session.close()


BLOB = b"x" * 300_000
NAME = hashlib.sha256(BLOB).hexdigest()
GOOD_ID = "0" * 32
UNEXPECTED = "unexpected answer to the upload request"
MISSING = {"sha256": NAME, "size": len(BLOB), "have": 0}


def upload_status(upload: Any = GOOD_ID, state: Any = "open", missing: Any = ()) -> dict[str, Any]:
    return {"id": upload, "state": state, "problems": [], "missing": missing}


def published(answers: Callable[[str, str], tuple[int, Any]]) -> tuple[str, list[str]]:
    """What a client says that publishes at a server with these answers, by method and path; and what it asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            asked.append(f"{self.command} {self.path}")
            status, body = answers(self.command, self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PATCH = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        brief = replace(BRIEF, stall=0.3, check_seconds=0.3, first_check_wait=0.01, longest_wait=0.02)
        transport = HttpTransport(f"http://127.0.0.1:{server.server_port}", timeouts=brief)
        with pytest.raises(ReleaseError) as raised:
            transport.add({"run/acme/x/1": [("a", BLOB)]}, "")
        transport.close()
        server.shutdown()
    return str(raised.value), asked


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"state": "open", "missing": []}, UNEXPECTED), ({}, UNEXPECTED),
        ([1], UNEXPECTED), (upload_status("../../../evil"), UNEXPECTED),
        (upload_status(state=7), UNEXPECTED), (upload_status(missing=[1]), "asks for a file that is not"),
        (upload_status(missing=[{**MISSING, "have": "q"}]), "claims to have"),
        (upload_status(missing=[{**MISSING, "have": -5}]), "claims to have"),
        (upload_status(missing=[{**MISSING, "have": 1 << 60}]), "claims to have"),
        (upload_status(missing=[MISSING] * 2), "asks for a file"),
        (upload_status(missing=[{**MISSING, "sha256": "b" * 64}]), "asks for a file"),
        (upload_status(missing=5), "has no list 'missing'"),
        (upload_status(state="checking"), "is still checking them"),
        ({**upload_status(state="published"), "notes": 5}, "has no list 'notes'"),
    ],
)  # fmt: skip
def test_what_a_server_says_of_an_upload_is_seen_to_be_that(answer: Any, words: str) -> None:
    told, asked = published(lambda *_: (200, answer))
    assert words in told
    assert all(one.split()[1].startswith("/api/v1/uploads") for one in asked)


def test_a_blob_of_which_a_server_says_that_it_creeps_is_given_up() -> None:
    have = itertools.count(1)

    def answers(method: str, _: str) -> tuple[int, Any]:
        if method == "PATCH":
            return 409, {"code": "offset", "message": "x"}
        return 200, upload_status(missing=[{**MISSING, "have": next(have)}])

    told, asked = published(answers)
    assert "does not accept the rest of the file" in told
    assert len(asked) < 200


def test_a_blob_of_which_a_server_has_now_more_now_less_is_given_up() -> None:
    have = itertools.cycle([200_000, 0])

    def answers(method: str, _: str) -> tuple[int, Any]:
        return 200, {"have": next(have)} if method == "PATCH" else upload_status(missing=[MISSING])

    told, _ = published(answers)
    assert "does not accept the rest of the file" in told


@pytest.mark.parametrize("answer", [{"account": 5, "owners": []}, {"account": "a", "owners": 5}, {"account": "a"}])
def test_what_a_server_says_of_a_token_is_seen_to_be_that(answer: dict[str, Any]) -> None:
    with pytest.raises(ReleaseError, match=r"unexpected answer about the token|has no list .owners."):
        parse_account(answer, "https://registry.example")
