"""A server whose connections are all held by who says nothing, or little, or reads nothing, answers who asks."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from runner.server.accounts.accounts import Scope
from tests.server.test_uploads import folders, make_bundle
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until
from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.full

CONNECTIONS = 30
HELD = 2 * CONNECTIONS
SILENT = b""
HALF_A_HEAD = b"GET / HTTP/1.1\r\nX: "
HALF_A_BODY = b'POST /api/v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{"paths": ['
LARGE = bytes(range(256)) * (1 << 16)
NEVER_READ = b"GET /api/v1/tree/dataset/acme/large/1/data.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
ENDED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that takes few connections, and has a file of 16 MiB."""
    with run_server(tmp_path_factory.mktemp("small"), people=False, connections=CONNECTIONS, rate=0) as server:
        with RawUploadClient(server.address, server.create_token("acme", Scope.PUBLISH)) as acme:
            assert acme.publish(folders(make_bundle("large", data=LARGE)))["state"] == "published"
        yield server


@pytest.mark.parametrize("said", [SILENT, HALF_A_HEAD, HALF_A_BODY, NEVER_READ, ENDED])
def test_a_reader_is_answered_while_all_connections_are_held(small: ServerProcess, said: bytes) -> None:
    with ExitStack() as held:
        for _ in range(HELD):
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.connect(("127.0.0.1", small.port))
            one.sendall(said)
            time.sleep(0.01)  # so that it is among those that are taken
        with RawUploadClient(small.address, None) as reader:
            # As soon as all that was asked for is answered, or waits for who does not read it.
            wait_until(lambda: reader.client.get("/releases").status_code == 200)
            assert all(small.request("/healthz").status == 200 for _ in range(5))
            assert [reader.client.get("/releases").status_code for _ in range(5)] == [200] * 5
    assert "Traceback" not in small.log


@pytest.mark.parametrize("said", [SILENT, HALF_A_BODY])
def test_one_address_has_some_of_the_connections_and_leaves_the_others_theirs(
    small: ServerProcess, said: bytes
) -> None:
    with ExitStack() as held:
        other = held.enter_context(socket.socket())
        other.bind(("127.0.0.2", 0))
        other.connect(("127.0.0.1", small.port))
        other.sendall(ENDED)
        assert other.recv(1_000).startswith(b"HTTP/1.1 200")
        mine = []
        for _ in range(CONNECTIONS - 6):  # there is room for more of others
            mine.append(held.enter_context(socket.create_connection(("127.0.0.1", small.port), timeout=HANG_SECONDS)))
            mine[-1].sendall(said)
            time.sleep(0.01)
        wait_until(lambda: sum(_is_open(one) for one in mine) == CONNECTIONS // 2)
        assert _is_open(other)


def test_all_addresses_have_no_more_connections_than_the_server_takes(small: ServerProcess) -> None:
    with ExitStack() as held:
        mine = []
        for number in range(4 * 12):  # none of four has as many as one may have
            mine.append(held.enter_context(socket.socket()))
            mine[-1].bind((f"127.0.0.{2 + number % 4}", 0))
            mine[-1].connect(("127.0.0.1", small.port))
        wait_until(lambda: sum(_is_open(one) for one in mine) < CONNECTIONS)
        assert sum(_is_open(one) for one in mine) > CONNECTIONS // 2


def _is_open(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1_000) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_what_is_being_sent_gives_way_after_what_says_nothing(small: ServerProcess) -> None:
    with ExitStack() as held, RawUploadClient(small.address, small.create_token("acme")) as acme:
        data = LARGE[::-1]
        upload = acme.start_upload(folders(make_bundle("slow", data=data))).json()
        sha256 = next(one["sha256"] for one in upload["missing"] if one["size"] == len(data))
        sending = held.enter_context(socket.create_connection(("127.0.0.1", small.port), timeout=HANG_SECONDS))
        head = (
            f"PATCH /api/v1/uploads/{upload['id']}/blobs/{sha256} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\n"
        )
        token = acme.client.headers["authorization"]
        sending.sendall(f"{head}Authorization: {token}\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        sending.sendall(data[: len(data) // 2])
        for _ in range(HELD):
            held.enter_context(socket.create_connection(("127.0.0.1", small.port)))
        sending.sendall(data[len(data) // 2 :])
        assert sending.recv(100).startswith(b"HTTP/1.1 200")
