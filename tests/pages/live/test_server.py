"""The server of `nip-run view` over a real socket: no access without its token, and only its pages with it."""

from __future__ import annotations

import gzip
import json
import re
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from runner.pages.live.server import MAX_BODY, MAX_CONNECTIONS
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run_here, start_nip_run, wait_for_exit, wait_until
from tests.support.specs import spec_file
from tests.support.view_process import ViewProcess, run_view


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewed")
    spec_file(folder, size=4)
    assert nip_run_here("spec.yaml", "--run-id", "tiny", cwd=folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def view(project: Path) -> Iterator[ViewProcess]:
    with run_view(cwd=project) as view_process:
        view_process.wait_for_state("tiny", lambda state: state["games"]["count"] == 4)
        yield view_process


def test_page_has_security_headers_and_its_data(view: ViewProcess) -> None:
    page = view.request()
    assert page.status == 200
    assert b'data-route="run/tiny"' in page.body
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["cross-origin-resource-policy"] == "same-origin"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert "access-control-allow-origin" not in page.headers
    assert "server" not in page.headers
    games = json.loads(gzip.decompress(view.request("data/r0-list-0.json.gz").body))
    assert games["count"] == 4
    assert view.run_state("tiny")["standing"] == "done"


def test_head_request_gets_the_headers_of_get_without_a_body(view: ViewProcess) -> None:
    head, page = view.request(method="HEAD"), view.request()
    assert (head.status, head.body) == (200, b"")
    assert head.headers == page.headers


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_token_is_only_in_a_file_that_only_the_user_can_read(
    project: Path, tmp_path: Path, stop_signal: signal.Signals
) -> None:
    """The terminal and process arguments do not contain it, and the file is removed when the view ends."""
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$0.arguments"\n')
    browser.chmod(0o755)
    process = start_nip_run("view", cwd=project, DISPLAY=":0", BROWSER=str(browser))
    arguments = tmp_path / "browser.arguments"
    try:
        assert process.stdout is not None
        page = process.stdout.readline().strip()
        wait_until(lambda: arguments.is_file() and arguments.read_text().endswith("\n"))
        assert arguments.read_text().splitlines() == [page]
        path = Path(unquote(urlsplit(page).path))
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        token_match = re.search(r"http://127\.0\.0\.1:[0-9]+/([\w-]{32})/", path.read_text("utf-8"))
        assert token_match
        command = Path(f"/proc/{process.pid}/cmdline")
        assert not command.is_file() or token_match[1] not in command.read_text()
    finally:
        process.send_signal(stop_signal)
        stdout, stderr = process.communicate(timeout=HANG_SECONDS)
    assert token_match[1] not in page + stdout + stderr
    assert not path.parent.exists()


@pytest.mark.full
def test_token_is_long_and_differs_at_each_start(view: ViewProcess, project: Path) -> None:
    with run_view("tiny", cwd=project) as other_view:
        assert other_view.request().status == view.request().status == 200
        assert other_view.path != view.path
        assert view.request_path(other_view.path).status == 404
    assert len(view.path.strip("/")) * 6 >= 128


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    "path",
    ["/", "//", "/x/", "/state.json", "/favicon.ico", "TOKEN", "TOKEN/", "/TOKE/", "/TOKENx/", "/%2e/TOKEN/",
     "http://127.0.0.1/TOKEN/", "/TOKEN", "/\xff/", "*"],
)  # fmt: skip
def test_request_without_the_token_gets_an_empty_404(view: ViewProcess, path: str) -> None:
    token = view.path.strip("/")
    response = view.request_path(path.replace("TOKEN", token).replace("TOKE/", f"{token[:-1]}/"))
    assert (response.status, response.body) == (404, b"")


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "name",
    ["../../../etc/passwd", "data/../../tiny/manifest.json", "data/r0-list-0", "data/%2e%2e/x.json.gz", "data//x.gz",
     "data/r0-list-9.json.gz", "data/\x00.json.gz", "manifest.json", "notes", "notes.jsonl", "data/..json.gz"],
)  # fmt: skip
def test_unknown_and_traversing_paths_get_an_empty_error(view: ViewProcess, name: str) -> None:
    response = view.request(name)
    assert (response.status, response.body) in ((404, b""), (400, b""))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "", None])
def test_foreign_host_header_is_refused(view: ViewProcess, host: str | None) -> None:
    """A foreign name that resolves to 127.0.0.1 would make its page same-origin with ours."""
    response = view.request(Host=host if host is None else host.replace("PORT", str(view.port)))
    assert (response.status, response.body) == (421, b"")
    assert view.request(Host=f"localhost:{view.port}").status == 200


def test_server_listens_only_on_its_loopback_address(view: ViewProcess) -> None:
    """A server that listened on all addresses would also answer on 127.0.0.2."""
    with socket.socket() as client, pytest.raises(OSError, match=r"refused|assign|reachable|timed out"):
        client.settimeout(5)
        client.connect(("127.0.0.2", view.port))


def test_request_with_two_host_headers_is_refused(view: ViewProcess) -> None:
    host_header = f"Host: 127.0.0.1:{view.port}\r\n"
    assert view.send_raw(f"GET {view.path} HTTP/1.1\r\n{host_header}Host: evil.example\r\n\r\n".encode()).status == 421


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
def test_other_http_methods_are_refused(view: ViewProcess, method: str) -> None:
    response = view.request(method=method)
    assert (response.status, response.body) == (501, b"")
    assert "access-control-allow-methods" not in response.headers


def test_note_is_stored_next_to_the_run_and_can_be_removed(view: ViewProcess, project: Path) -> None:
    posted = view.post_note({"run": "tiny", "rollout_id": "r", "text": "<b>é", "tags": ["odd"]})
    assert posted.status == 201
    notes = json.loads(nip_run_here("notes", "tiny", "--json", cwd=project).stdout)
    assert notes == [posted.json]
    (served_note,) = json.loads(gzip.decompress(view.request("data/r0-notes.json.gz").body))
    assert served_note == posted.json
    assert view.post_note({"run": "tiny", "removes": posted.json["id"]}).status == 201
    assert json.loads(nip_run_here("notes", "tiny", "--json", cwd=project).stdout) == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": None}, 415),
        ({"Content_Length": None}, 411),
        ({"Content_Length": "-1"}, 411),
        ({"Transfer_Encoding": "chunked"}, 411),
        ({"Content_Length": str(MAX_BODY + 1)}, 413),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_cross_site_or_malformed_note_request_is_refused(
    view: ViewProcess, project: Path, headers: dict[str, str | None], status: int
) -> None:
    response = view.post_note({"run": "tiny", "text": "planted"}, **headers)
    assert response.status == status
    assert response.body == b""
    assert "planted" not in nip_run_here("notes", "tiny", "--json", cwd=project).stdout


@pytest.mark.parametrize(
    "note",
    [{}, [], {"run": "other", "text": "x"}, {"run": "tiny"}, {"run": "tiny", "text": 1},
     {"run": "tiny", "text": "\ud800"},
     {"run": "tiny", "text": "x" * 20_001}, {"run": "tiny", "text": "x", "tags": "y"},
     {"run": "tiny", "text": "x", "rollout_id": 1}, {"run": "tiny", "removes": "none"}],
)  # fmt: skip
def test_invalid_note_gets_an_error_message(view: ViewProcess, note: object) -> None:
    response = view.post_note(note)
    assert response.status == 400
    assert response.json["error"]


def test_page_of_the_same_origin_can_add_notes(view: ViewProcess) -> None:
    origin = f"http://127.0.0.1:{view.port}"
    posted = view.post_note({"run": "tiny", "text": "mine"}, Origin=origin, Sec_Fetch_Site="same-origin")
    assert posted.status == 201
    view.post_note({"run": "tiny", "removes": posted.json["id"]})


@pytest.mark.parametrize(
    "data", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 70_000]
)
def test_malformed_request_gets_an_error_status_without_a_body(view: ViewProcess, data: bytes) -> None:
    response = view.send_raw(data + (b"\r\n\r\n" if data.endswith(b"a") else b""))
    assert response.status in (400, 414, 505)
    assert response.body == b""


def test_slow_connections_block_nobody_and_excess_connections_are_closed(view: ViewProcess) -> None:
    connections = [
        socket.create_connection(("127.0.0.1", view.port), timeout=HANG_SECONDS) for _ in range(MAX_CONNECTIONS - 4)
    ]
    try:
        for connection in connections:
            connection.sendall(b"GET /")
        assert view.request("state.json").status == 200
        extra_connections = [socket.create_connection(("127.0.0.1", view.port), timeout=HANG_SECONDS) for _ in range(8)]
        connections += extra_connections
        closed, _, _ = select.select([connections[0], extra_connections[-1]], [], [], HANG_SECONDS)
        assert closed == extra_connections[-1:]  # at once, and not after the time limit, which ends the first one first
        assert extra_connections[-1].recv(1) == b""
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.full
def test_ctrl_c_ends_the_view_with_exit_code_130(project: Path) -> None:
    process = start_nip_run("view", "tiny", "--no-open", cwd=project)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("file://")
    process.send_signal(signal.SIGINT)
    code, _, stderr = wait_for_exit(process)
    assert code == 130
    assert "Traceback" not in stderr


def test_used_or_invalid_port_and_unknown_run_are_reported(view: ViewProcess, project: Path) -> None:
    process = nip_run_here("view", "tiny", "--no-open", "--port", str(view.port), cwd=project)
    assert (process.returncode, process.stdout) == (2, "")
    assert f"port {view.port} is in use" in process.stderr
    assert nip_run_here("view", "tiny", "--port", "65536", cwd=project).returncode == 2
    assert "no run 'none'" in nip_run_here("view", "none", cwd=project).stderr


@pytest.mark.full
def test_leaderboard_view_serves_the_board_without_runs_or_notes(project: Path) -> None:
    with run_view("--board", cwd=project) as view:
        page = view.request()
        assert page.status == 200
        assert b"tiny/v1" in page.body
        assert view.request("state.json").json == {"format": 1, "runs": []}
        assert view.post_note({"run": "tiny", "text": "x"}).status == 400
    assert nip_run_here("view", "--from", "x", cwd=project).returncode == 2
    assert nip_run_here("view", "tiny", "--board", cwd=project).returncode == 2
