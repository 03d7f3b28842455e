"""A server whose connections are occupied by idle or slow clients still answers other clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from runner.server.accounts.accounts import Scope
from tests.server.test_uploads import contents_by_folder, make_bundle
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until
from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.full

CONNECTIONS = 30
OPENED = 2 * CONNECTIONS
NOTHING = b""
PARTIAL_HEAD = b"GET / HTTP/1.1\r\nX: "
PARTIAL_BODY = b'POST /api/v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{"paths": ['
LARGE = bytes(range(256)) * (1 << 16)
UNREAD_DOWNLOAD = b"GET /api/v1/tree/dataset/acme/large/1/data.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNREAD_RESPONSE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with few connections and a file of 16 MiB."""
    with run_server(tmp_path_factory.mktemp("small"), people=False, connections=CONNECTIONS, rate=0) as server:
        with RawUploadClient(server.address, server.create_token("acme", Scope.PUBLISH)) as acme:
            assert acme.publish(contents_by_folder(make_bundle("large", data=LARGE)))["state"] == "published"
        yield server


@pytest.mark.parametrize("payload", [NOTHING, PARTIAL_HEAD, PARTIAL_BODY, UNREAD_DOWNLOAD, UNREAD_RESPONSE])
def test_reader_is_answered_while_idle_clients_occupy_all_connections(
    small_server: ServerProcess, payload: bytes
) -> None:
    with ExitStack() as connections:
        for _ in range(OPENED):
            connection = connections.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect(("127.0.0.1", small_server.port))
            connection.sendall(payload)
            time.sleep(0.01)  # so that the server accepts it
        with RawUploadClient(small_server.address, None) as reader:
            # Wait until all pending requests are answered or blocked by clients that do not read.
            wait_until(lambda: reader.client.get("/releases").status_code == 200)
            assert all(small_server.request("/healthz").status == 200 for _ in range(5))
            assert [reader.client.get("/releases").status_code for _ in range(5)] == [200] * 5
    assert "Traceback" not in small_server.log


@pytest.mark.parametrize("payload", [NOTHING, PARTIAL_BODY])
def test_one_address_gets_at_most_half_of_the_connections(small_server: ServerProcess, payload: bytes) -> None:
    with ExitStack() as stack:
        other_connection = stack.enter_context(socket.socket())
        other_connection.bind(("127.0.0.2", 0))
        other_connection.connect(("127.0.0.1", small_server.port))
        other_connection.sendall(UNREAD_RESPONSE)
        assert other_connection.recv(1_000).startswith(b"HTTP/1.1 200")
        connections = []
        for _ in range(CONNECTIONS - 6):  # leaves free connections for others
            connections.append(
                stack.enter_context(socket.create_connection(("127.0.0.1", small_server.port), timeout=HANG_SECONDS))
            )
            connections[-1].sendall(payload)
            time.sleep(0.01)
        wait_until(lambda: sum(_is_open(connection) for connection in connections) == CONNECTIONS // 2)
        assert _is_open(other_connection)


def test_connections_of_all_addresses_stay_within_the_server_limit(small_server: ServerProcess) -> None:
    with ExitStack() as stack:
        connections = []
        for number in range(4 * 12):  # each of four addresses stays below its own limit
            connections.append(stack.enter_context(socket.socket()))
            connections[-1].bind((f"127.0.0.{2 + number % 4}", 0))
            connections[-1].connect(("127.0.0.1", small_server.port))
        wait_until(lambda: sum(_is_open(connection) for connection in connections) < CONNECTIONS)
        assert sum(_is_open(connection) for connection in connections) > CONNECTIONS // 2


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1_000) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_active_upload_survives_while_idle_connections_are_closed(small_server: ServerProcess) -> None:
    with ExitStack() as stack, RawUploadClient(small_server.address, small_server.create_token("acme")) as acme:
        data = LARGE[::-1]
        upload = acme.start_upload(contents_by_folder(make_bundle("slow", data=data))).json()
        sha256 = next(blob["sha256"] for blob in upload["missing"] if blob["size"] == len(data))
        sender = stack.enter_context(socket.create_connection(("127.0.0.1", small_server.port), timeout=HANG_SECONDS))
        head = (
            f"PATCH /api/v1/uploads/{upload['id']}/blobs/{sha256} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\n"
        )
        token = acme.client.headers["authorization"]
        sender.sendall(f"{head}Authorization: {token}\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        sender.sendall(data[: len(data) // 2])
        for _ in range(OPENED):
            stack.enter_context(socket.create_connection(("127.0.0.1", small_server.port)))
        sender.sendall(data[len(data) // 2 :])
        assert sender.recv(100).startswith(b"HTTP/1.1 200")
