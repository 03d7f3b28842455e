"""Callers are identified, and their requests, lists and declarations are limited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.base.errors import ReleaseError, RunError
from runner.server.settings import RELEASE_LIMITS
from runner.server.uploads.declaration import Declaration
from runner.server.web.app import HostCheck
from runner.server.web.callers import DISCONNECTED, MAKE_ROOM, caller_of
from runner.server.web.health import Readiness
from runner.server.web.rate_limits import CallerBuckets, OpenRequestLimit, RateLimit
from tests.support.hang_guard import HANG_SECONDS
from tests.support.raw_uploads import RawUploadClient, describe_file

PROXIES = ("127.0.0.1", "10.0.0.0/8")


def make_scope(peer: str, *forwarded_for: str) -> dict[str, Any]:
    return {
        "type": "http",
        "client": (peer, 1),
        "headers": [(b"x-forwarded-for", value.encode()) for value in forwarded_for],
    }


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "expected"),
    [
        ("10.1.2.3", ("1.2.3.4, 198.51.100.7",), "198.51.100.7"),  # added by the proxy
        ("10.1.2.3", ("1.2.3.4", "198.51.100.7"), "198.51.100.7"),
        ("192.0.2.1", ("198.51.100.7",), "192.0.2.1"),  # not a trusted proxy
        ("10.1.2.3", (), "10.1.2.3"), ("10.1.2.3", ("x" * 10_000,), "10.1.2.3"),
        ("10.1.2.3", ("2001:db8::1",), "2001:db8::/64"),  # one caller owns the whole network
        ("10.1.2.3", ("2001:db8::ffff:2",), "2001:db8::/64"),
        ("2001:db8::1", (), "2001:db8::/64"),  # without a proxy, too
        ("::ffff:192.0.2.1", (), "192.0.2.1"),  # as a dual-stack socket reports an IPv4 peer
        ("::ffff:10.1.2.3", ("198.51.100.7",), "198.51.100.7"),
        ("10.1.2.3", ("::ffff:198.51.100.7",), "198.51.100.7"),
        ("fe80::1%eth0", (), "fe80::/64"),
    ],
)  # fmt: skip
def test_caller_is_the_peer_or_the_address_that_a_trusted_proxy_forwards(
    peer: str, forwarded_for: tuple[str, ...], expected: str
) -> None:
    assert caller_of(make_scope(peer, *forwarded_for), PROXIES) == expected


def test_bucket_refills_at_its_rate_and_the_number_of_callers_is_bounded() -> None:
    now = 0.0
    buckets = CallerBuckets(2.0, 4.0, lambda: now)
    for _ in range(4):
        assert buckets.wait_seconds("a") == 0
        buckets.take("a")
    assert (buckets.wait_seconds("a"), buckets.wait_seconds("b")) == (0.5, 0)
    now = 0.5
    assert buckets.wait_seconds("a") == 0
    for number in range(100_000):
        buckets.take(f"c{number}")
    assert len(buckets._levels) == 100_000


def test_declaration_with_too_many_releases_or_files_is_refused() -> None:
    def folder(name: str, count: int) -> dict[str, Any]:
        return {"folder": f"dataset/acme/{name}/1", "files": [describe_file(f"f{n}", b"") for n in range(count)]}

    for declared, message in (
        ([], "the upload has 0 releases; publish 1 to 2"), ([folder(name, 0) for name in "abc"], "has 3 releases"),
        ([folder(name, 6) for name in "ab"], "12 files; publish fewer"),
        ([folder("a", 2), folder("a", 2)], "declared twice"),
    ):  # fmt: skip
        with pytest.raises(ReleaseError) as error:
            Declaration.parse(declared, RELEASE_LIMITS, 2, 10)
        assert any(message in note for note in error.value.__notes__), message


@pytest.mark.parametrize(
    ("path", "size", "message"),
    [
        ("data.txt", (1 << 30) + 1, "has 1,073,741,825 bytes; at most 1,073,741,824 are allowed"),
        ("release.json", (1 << 20) + 1, "has 1,048,577 bytes; at most 1,048,576 are allowed"),
        ("data.txt", -1, "has -1 bytes"),
    ],
)
def test_declared_file_above_its_size_limit_is_refused(path: str, size: int, message: str) -> None:
    files = [
        {**describe_file(name, b""), "sha256": f"{number:064x}"} for number, name in enumerate(("data.txt", "a.txt"))
    ]
    files = [file | {"path": path, "size": size} if file["path"] == "data.txt" else file for file in files]
    with pytest.raises(ReleaseError) as error:
        Declaration.parse([{"folder": "dataset/acme/a/1", "files": files}], RELEASE_LIMITS, 2, 10)
    assert any(message in note for note in error.value.__notes__)


class ConcurrentRequests:
    """Concurrent requests through a middleware to an application that answers once `release_event` is set."""

    def __init__(self, layer: Callable[[ASGIApp], ASGIApp]) -> None:
        self.release_event, self.request_count = asyncio.Event(), 0
        self._app = layer(self._answer)

    async def _answer(self, request_scope: Scope, receive: Receive, send: Send) -> None:
        self.request_count += 1
        await self.release_event.wait()
        await PlainTextResponse("ok")(request_scope, receive, send)

    async def __call__(self, path: str, peer: str, **headers: str) -> int:
        status: list[int] = []

        async def record_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        header_pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        request_scope = {"type": "http", "method": "GET", "path": path, "headers": header_pairs, "client": (peer, 1)}
        async with asyncio.timeout(HANG_SECONDS):  # fail if a request hangs
            await self._app(request_scope, receive_empty_body, record_status)
        return status[0]


async def receive_empty_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def test_open_requests_are_limited_per_network_and_in_total_except_for_healthz() -> None:
    async def work() -> None:
        requests = ConcurrentRequests(lambda app: OpenRequestLimit(app, 3, 2, ()))
        tasks = [asyncio.create_task(requests("/a", "2001:db8::1")) for _ in range(2)]
        await asyncio.sleep(0)
        assert await requests("/a", "2001:db8::2") == 503  # the same network
        tasks.append(asyncio.create_task(requests("/a", "192.0.2.1")))
        await asyncio.sleep(0)
        assert await requests("/a", "192.0.2.2") == 503
        tasks.append(asyncio.create_task(requests("/healthz", "2001:db8::1")))
        await asyncio.sleep(0)
        assert requests.request_count == 4
        requests.release_event.set()
        assert await asyncio.gather(*tasks) == [200] * 4
        assert await requests("/a", "2001:db8::2") == 200

    asyncio.run(work())


@pytest.mark.parametrize(("can_end_other", "status"), [(True, 200), (False, 503)])
def test_request_above_the_limit_is_served_if_a_slow_one_can_be_ended(can_end_other: bool, status: int) -> None:
    rooms: list[bool] = []

    def make_room(*, same_address: bool) -> bool:
        rooms.append(same_address)
        return can_end_other

    async def work() -> None:
        def limit(app: ASGIApp) -> ASGIApp:
            limited = OpenRequestLimit(app, 1, 1, ())
            return lambda scope, *rest: limited({**scope, MAKE_ROOM: make_room}, *rest)

        requests = ConcurrentRequests(limit)
        first = asyncio.create_task(requests("/a", "192.0.2.1"))
        await asyncio.sleep(0)
        second = asyncio.create_task(requests("/a", "192.0.2.1"))
        await asyncio.sleep(0)
        requests.release_event.set()
        assert [await first, await second] == [200, status]

    asyncio.run(work())
    assert rooms == [True]


def test_long_response_stops_once_the_client_has_disconnected() -> None:
    request_scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "client": ("192.0.2.1", 1),
    }
    sent: list[Message] = []

    async def endless(http_scope: Scope, _: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while len(sent) < 100:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            http_scope[DISCONNECTED] = len(sent) > 5

    async def record(message: Message) -> None:
        sent.append(message)

    asyncio.run(OpenRequestLimit(endless, 2, 1, ())(request_scope, receive_empty_body, record))
    assert len(sent) == 6


def test_valid_tokens_of_one_account_share_a_rate_limit_bucket() -> None:
    valid_tokens = [f"nip_{letter * 12}_{'x' * 43}" for letter in "abc"]
    lookups = []

    def find_account(token: str) -> str | None:
        lookups.append(token)
        return "alice" if token in valid_tokens else None

    async def work() -> None:
        requests = ConcurrentRequests(lambda app: RateLimit(app, 0.1, (), find_account))
        requests.release_event.set()
        for path in ("/search", "/api/v1"):  # the path doubles as the caller's address
            statuses = [await requests(path, path, authorization=f"Bearer nip_{n:012d}_{'x' * 43}") for n in range(5)]
            assert statuses == [200, 200, 429, 429, 429], path
        assert await requests("/search", "/search") == 429
        tokens = [*valid_tokens, valid_tokens[0]]
        statuses = [await requests("/search", "/search", authorization=f"Bearer {token}") for token in tokens]
        assert statuses == [200, 200, 429, 429]
        assert [lookups.count(token) for token in valid_tokens] == [1, 1, 1]

    asyncio.run(work())


def test_revoked_token_does_not_use_up_the_bucket_of_its_account() -> None:
    revoked, valid = (f"Bearer nip_{letter * 12}_{'x' * 43}" for letter in "ab")
    accounts = {revoked: "alice", valid: "alice"}
    statuses: list[int] = []

    async def answer(request_scope: Scope, receive: Receive, send: Send) -> None:
        status = 200 if Headers(scope=request_scope)["authorization"] in accounts else 401
        await PlainTextResponse("", status)(request_scope, receive, send)

    async def record_status(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def work() -> None:
        limited = RateLimit(answer, 0.15, (), lambda token: accounts.get(f"Bearer {token}"))

        async def request(authorization: str) -> int:
            headers = [(b"authorization", authorization.encode())]
            request_scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": ("x", 1)}
            await limited(request_scope, receive_empty_body, record_status)
            return statuses[-1]

        assert await request(revoked) == 200
        del accounts[revoked]
        assert [await request(revoked) for _ in range(5)] == [401, 401, 401, 401, 429]
        assert await request(valid) == 200

    asyncio.run(work())


def test_invalid_tokens_are_rate_limited_per_address() -> None:
    async def work() -> None:
        requests = ConcurrentRequests(lambda app: RateLimit(app, 0, (), lambda _: None))
        requests.release_event.set()
        headers = {"authorization": f"Bearer nip_{'a' * 12}_{'x' * 43}"}
        statuses = [await requests("/", "192.0.2.1", **headers) for _ in range(80)]  # 60 at once, then one per second
        assert set(statuses[:60]) == {200}
        assert statuses[-1] == 429
        assert await requests("/", "192.0.2.1") == 200

    asyncio.run(work())


def test_readiness_check_runs_once_for_concurrent_requests() -> None:
    checks = []

    class Database:
        def is_reachable(self) -> bool:
            checks.append("database")
            return False

    class Blobs:
        def has(self, _: str) -> bool:
            checks.append("blobs")
            raise RunError("no")

    async def work() -> None:
        now = 0.0
        server: Any = SimpleNamespace(database=Database(), blobs=Blobs())
        readiness = Readiness(server, lambda: now)
        results = await asyncio.gather(*(readiness.problems() for _ in range(20)))
        expected = ["the database does not answer; check --database", "the blob store does not answer; check --blobs"]
        assert results == [expected] * 20
        await readiness.problems()
        assert checks == ["database", "blobs"]
        now = 2.0
        await readiness.problems()
        assert checks == ["database", "blobs"] * 2

    asyncio.run(work())


@pytest.mark.parametrize(
    ("host", "status"),
    [("registry.example.org", 200), ("Registry.Example.ORG:443", 200), ("localhost:8080", 200), ("127.0.0.1:1", 200),
     ("[::1]:80", 200), ("10.0.0.5", 200), ("evil.example", 421), ("registry.example.org.evil.example", 421),
     ("evil.example:8080", 421), ("registry.example.org@evil.example", 421), ("", 421), ("[evil]", 421)],
)  # fmt: skip
def test_request_with_a_foreign_host_header_gets_status_421(host: str, status: int) -> None:
    async def work() -> None:
        requests = ConcurrentRequests(lambda app: HostCheck(app, "https://registry.example.org/base"))
        requests.release_event.set()
        assert await requests("/", "192.0.2.1", host=host) == status
        assert await requests("/healthz", "192.0.2.1", host=host) == 200

    asyncio.run(work())


@pytest.mark.full
def test_list_limits_and_path_counts_are_bounded(acme: RawUploadClient) -> None:
    for path in ("/releases", "/competitions"):
        assert acme.client.get(path, params={"limit": 10_000}).status_code == 422
        assert acme.client.get(path, params={"limit": 0}).status_code == 422
    assert acme.client.post("/files", json={"paths": ["a"] * 100_000}).status_code == 422
