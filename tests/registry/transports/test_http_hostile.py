"""Answers of hostile servers and of other programs are validated and limited in size."""

from __future__ import annotations

import hashlib
import http.server
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.base.errors import ReleaseError
from runner.registry.transports.http.api import RegistryApi, parse_account
from runner.registry.transports.http.prefetch import FilePrefetch
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.timeouts import Timeouts
from tests.registry.transports.test_http_tokens import answer_all_requests, config
from tests.support.threaded_server import serve_in_thread

__all__ = ("config",)
SHORT_TIMEOUTS = Timeouts(tries=2, wait=0.01, read=5, answer_bytes=1 << 16)


def read_from_server(answer: bytes, method: str, *, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    with answer_all_requests((status, headers or {}, answer)) as (address, _):
        transport = HttpTransport(address, timeouts=SHORT_TIMEOUTS)
        try:
            if method == "open":
                with transport.open("run/acme/x/1/release.json") as file:
                    return file.read()
            return list(getattr(transport, method)("run/acme/"))
        finally:
            transport.close()


INDEXED = {"folder": "run/acme/x/1", "sha256": "a" * 64, "yanked": None, "signed": False}


def encode_page(key: str, *rows: Any, following: Any = None) -> bytes:
    return json.dumps({key: rows, "next": following}).encode()


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (encode_page("releases", following="x"), "that does not end"),
        (b"<html>a page</html>", "no nip-run registry answers at this address"),
        (b"[]", "has no list 'releases'"),
        (b'{"releases": 5}', "has no list 'releases'"),
        (b" " * (1 << 17), "answer is longer than"),
        (
            encode_page("releases", {"folder": "run/eve/x/1", "sha256": "a" * 64, "yanked": None}),
            "out of order|twice",
        ),
        (
            encode_page("releases", {"folder": "run/acme/x/1", "sha256": "a" * 63, "yanked": None}),
            "releases has an invalid entry",
        ),
        (
            encode_page("releases", {"folder": "run/acme/x/1", "sha256": "a" * 64, "yanked": 5}),
            "releases has an invalid entry",
        ),
        (encode_page("releases", "x"), "releases has an invalid entry"),
        (encode_page("releases", INDEXED, INDEXED), "out of order|twice"),
        (encode_page("releases", INDEXED, following=5), "out of order|twice"),
        (encode_page("releases", {**INDEXED, "yanked": "\ud800"}), "no nip-run registry answers"),
    ],
)
def test_invalid_release_list_is_refused(answer: bytes, message: str) -> None:
    with pytest.raises(ReleaseError, match=message) as raised:
        read_from_server(answer, "list_releases")
    assert len(str(raised.value)) < 500


def test_server_error_is_shown_in_one_short_line_without_control_characters() -> None:
    answer = {"message": "\x1b[2J" + "x" * 10_000 + "\n", "problems": ["\x1b]0;x"] * 1_000}
    with pytest.raises(ReleaseError) as raised:
        read_from_server(json.dumps(answer).encode(), "list_releases", status=400)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 700


def test_file_shorter_than_its_declared_length_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"the connection to .* broke"):
        read_from_server(b"x", "open", headers={"content-length": "100", "connection": "close"})


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
def test_prefetched_files_that_differ_from_the_request_are_refused(answer: bytes) -> None:
    with answer_all_requests((200, {}, answer)) as (address, _):
        session = RegistryApi(address, SHORT_TIMEOUTS)
        prefetch = FilePrefetch(session)
        prefetch.plan_prefetch(["run/acme/a", "run/acme/b"])
        with pytest.raises(ReleaseError, match=r"unexpected answer to the request for files|not requested, or"):
            prefetch.pop_file("run/acme/a")
        session.close()


BLOB = b"x" * 300_000
BLOB_SHA256 = hashlib.sha256(BLOB).hexdigest()
UPLOAD_ID = "0" * 32
UNEXPECTED = "unexpected answer to the upload request"
MISSING = {"sha256": BLOB_SHA256, "size": len(BLOB), "have": 0}


def upload_status(upload: Any = UPLOAD_ID, state: Any = "open", missing: Any = ()) -> dict[str, Any]:
    return {"id": upload, "state": state, "problems": [], "missing": missing}


def publish_and_fail(answers: Callable[[str, str], tuple[int, Any]]) -> tuple[str, list[str]]:
    """Publish at a server with these answers, and return the client's error message and its requests."""
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            requests.append(f"{self.command} {self.path}")
            status, body = answers(self.command, self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PATCH = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serve_in_thread(server):
        timeouts = replace(SHORT_TIMEOUTS, stall=0.3, check_seconds=0.3, first_check_wait=0.01, longest_wait=0.02)
        transport = HttpTransport(f"http://127.0.0.1:{server.server_port}", timeouts=timeouts)
        with pytest.raises(ReleaseError) as raised:
            transport.add({"run/acme/x/1": [("a", BLOB)]}, "")
        transport.close()
    return str(raised.value), requests


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("answer", "expected"),
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
def test_invalid_upload_status_is_refused(answer: Any, expected: str) -> None:
    message, requests = publish_and_fail(lambda *_: (200, answer))
    assert expected in message
    assert all(request.split()[1].startswith("/api/v1/uploads") for request in requests)


def test_upload_that_grows_by_one_byte_per_request_is_given_up() -> None:
    sizes = itertools.count(1)

    def answer_request(method: str, _: str) -> tuple[int, Any]:
        if method == "PATCH":
            return 409, {"code": "offset", "message": "x"}
        return 200, upload_status(missing=[{**MISSING, "have": next(sizes)}])

    message, requests = publish_and_fail(answer_request)
    assert "does not accept the rest of the file" in message
    assert len(requests) < 200


def test_upload_whose_size_goes_up_and_down_is_given_up() -> None:
    sizes = itertools.cycle([200_000, 0])

    def answer_request(method: str, _: str) -> tuple[int, Any]:
        return 200, {"have": next(sizes)} if method == "PATCH" else upload_status(missing=[MISSING])

    message, _ = publish_and_fail(answer_request)
    assert "does not accept the rest of the file" in message


@pytest.mark.parametrize("answer", [{"account": 5, "owners": []}, {"account": "a", "owners": 5}, {"account": "a"}])
def test_invalid_account_answer_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(ReleaseError, match=r"unexpected answer about the token|has no list .owners."):
        parse_account(answer, "https://registry.example")
