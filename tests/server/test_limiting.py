"""Who asks is told from others, and how much one caller may ask, list, or declare at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.base.errors import ReleaseError, RunError
from runner.server.settings import RELEASE_LIMITS
from runner.server.uploads.declaration import Declaration
from runner.server.web.allowed_hosts import HostCheck
from runner.server.web.callers import DISCONNECTED, caller_of
from runner.server.web.health import Readiness
from runner.server.web.rate_limits import CallerBuckets, OpenRequestLimit, RateLimit
from tests.support.hang_guard import HANG_SECONDS
from tests.support.raw_uploads import RawUploadClient, describe_file

PROXIES = ("127.0.0.1", "10.0.0.0/8")


def scope(peer: str, *said: str) -> dict[str, Any]:
    return {"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-for", one.encode()) for one in said]}


@pytest.mark.parametrize(
    ("peer", "said", "found"),
    [
        ("10.1.2.3", ("1.2.3.4, 198.51.100.7",), "198.51.100.7"),  # whom the proxy says, and not whom its caller does
        ("10.1.2.3", ("1.2.3.4", "198.51.100.7"), "198.51.100.7"),
        ("192.0.2.1", ("198.51.100.7",), "192.0.2.1"),  # no proxy of ours: it may say what it likes
        ("10.1.2.3", (), "10.1.2.3"), ("10.1.2.3", ("x" * 10_000,), "10.1.2.3"),
        ("10.1.2.3", ("2001:db8::1",), "2001:db8::/64"),  # one caller has a network of them
        ("10.1.2.3", ("2001:db8::ffff:2",), "2001:db8::/64"),
        ("2001:db8::1", (), "2001:db8::/64"),  # without a proxy, too
        ("::ffff:192.0.2.1", (), "192.0.2.1"),  # as a socket of both kinds says it
        ("::ffff:10.1.2.3", ("198.51.100.7",), "198.51.100.7"),
        ("10.1.2.3", ("::ffff:198.51.100.7",), "198.51.100.7"),
        ("fe80::1%eth0", (), "fe80::/64"),
    ],
)  # fmt: skip
def test_who_asks_is_the_connections_other_end_or_whom_a_trusted_proxy_says(
    peer: str, said: tuple[str, ...], found: str
) -> None:
    assert caller_of(scope(peer, *said), PROXIES) == found


def test_a_bucket_fills_at_its_rate_and_no_more_callers_are_remembered_than_fit() -> None:
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


def test_no_more_is_declared_at_once_than_is_taken() -> None:
    def folder(name: str, count: int) -> dict[str, Any]:
        return {"folder": f"dataset/acme/{name}/1", "files": [describe_file(f"f{n}", b"") for n in range(count)]}

    for said, words in (
        ([], "the upload has 0 releases; publish 1 to 2"), ([folder(name, 0) for name in "abc"], "has 3 releases"),
        ([folder(name, 6) for name in "ab"], "12 files; publish fewer"),
        ([folder("a", 2), folder("a", 2)], "declared twice"),
    ):  # fmt: skip
        with pytest.raises(ReleaseError) as error:
            Declaration.parse(said, RELEASE_LIMITS, 2, 10)
        assert any(words in note for note in error.value.__notes__), words


@pytest.mark.parametrize(
    ("path", "size", "words"),
    [
        ("data.txt", (1 << 30) + 1, "has 1,073,741,825 bytes; at most 1,073,741,824 are allowed"),
        ("release.json", (1 << 20) + 1, "has 1,048,577 bytes; at most 1,048,576 are allowed"),
        ("data.txt", -1, "has -1 bytes"),
    ],
)
def test_no_file_is_declared_that_is_larger_than_is_taken(path: str, size: int, words: str) -> None:
    files = [
        {**describe_file(name, b""), "sha256": f"{number:064x}"} for number, name in enumerate(("data.txt", "a.txt"))
    ]
    files = [one | {"path": path, "size": size} if one["path"] == "data.txt" else one for one in files]
    with pytest.raises(ReleaseError) as error:
        Declaration.parse([{"folder": "dataset/acme/a/1", "files": files}], RELEASE_LIMITS, 2, 10)
    assert any(words in note for note in error.value.__notes__)


class ConcurrentRequests:
    """A layer before an application that answers once it is told to, asked by many at once."""

    def __init__(self, layer: Callable[[ASGIApp], ASGIApp]) -> None:
        self.go, self.asked = asyncio.Event(), 0
        self._app = layer(self._answer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.go.wait()
        await PlainTextResponse("ok")(scope, receive, send)

    async def __call__(self, path: str, peer: str, **headers: str) -> int:
        status: list[int] = []

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        said = [(name.encode(), value.encode()) for name, value in headers.items()]
        asked = {"type": "http", "method": "GET", "path": path, "headers": said, "client": (peer, 1)}
        async with asyncio.timeout(HANG_SECONDS):  # one that is held, and should not be, fails
            await self._app(asked, _nothing, told)
        return status[0]


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def test_one_address_has_some_requests_open_and_all_have_so_many_and_the_server_says_that_it_lives() -> None:
    async def work() -> None:
        asked = ConcurrentRequests(lambda app: OpenRequestLimit(app, 3, 2, ()))
        held = [asyncio.create_task(asked("/a", "2001:db8::1")) for _ in range(2)]
        await asyncio.sleep(0)
        assert await asked("/a", "2001:db8::2") == 503  # it is of the same network
        held.append(asyncio.create_task(asked("/a", "192.0.2.1")))
        await asyncio.sleep(0)
        assert await asked("/a", "192.0.2.2") == 503
        held.append(asyncio.create_task(asked("/healthz", "2001:db8::1")))
        await asyncio.sleep(0)
        assert asked.asked == 4
        asked.go.set()
        assert await asyncio.gather(*held) == [200] * 4
        assert await asked("/a", "2001:db8::2") == 200

    asyncio.run(work())


def test_a_long_answer_is_made_no_further_for_who_has_gone() -> None:
    asked: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
    sent: list[Message] = []

    async def endless(scope: Scope, _: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while len(sent) < 100:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            scope[DISCONNECTED] = len(sent) > 5

    async def keep(message: Message) -> None:
        sent.append(message)

    asyncio.run(OpenRequestLimit(endless, 2, 1, ())(asked, _nothing, keep))
    assert len(sent) == 6


def test_a_token_has_a_bucket_of_its_own_once_it_is_known_to_be_good() -> None:
    good, looks = f"nip_{'a' * 12}_{'x' * 43}", []

    def is_good(token: str) -> bool:
        looks.append(token)
        return token == good

    async def work() -> None:
        asked = ConcurrentRequests(lambda app: RateLimit(app, 0.1, (), is_good))
        asked.go.set()
        for path in ("/search", "/api/v1"):  # there is one address
            tried = [await asked(path, path, authorization=f"Bearer nip_{n:012d}_{'x' * 43}") for n in range(5)]
            assert tried == [200, 200, 429, 429, 429], path
        assert await asked("/search", "/search") == 429
        assert [await asked("/search", "/search", authorization=f"Bearer {good}") for _ in range(3)] == [200, 200, 429]
        assert looks.count(good) == 1

    asyncio.run(work())


def test_wrong_tokens_are_counted_wherever_they_are_tried() -> None:
    async def work() -> None:
        asked = ConcurrentRequests(lambda app: RateLimit(app, 0, (), lambda _: False))
        asked.go.set()
        said = {"authorization": f"Bearer nip_{'a' * 12}_{'x' * 43}"}
        tried = [await asked("/", "192.0.2.1", **said) for _ in range(80)]  # 60, and one a second
        assert set(tried[:60]) == {200}
        assert tried[-1] == 429
        assert await asked("/", "192.0.2.1") == 200

    asyncio.run(work())


def test_whether_a_server_can_work_is_looked_at_once_for_all_who_ask() -> None:
    looks = []

    class Database:
        def is_reachable(self) -> bool:
            looks.append("database")
            return False

    class Blobs:
        def has(self, _: str) -> bool:
            looks.append("blobs")
            raise RunError("no")

    async def work() -> None:
        now = 0.0
        server: Any = SimpleNamespace(database=Database(), blobs=Blobs())
        readiness = Readiness(server, lambda: now)
        found = await asyncio.gather(*(readiness.problems() for _ in range(20)))
        problems = ["the database does not answer; check --database", "the blob store does not answer; check --blobs"]
        assert found == [problems] * 20
        await readiness.problems()
        assert looks == ["database", "blobs"]
        now = 2.0
        await readiness.problems()
        assert looks == ["database", "blobs"] * 2

    asyncio.run(work())


@pytest.mark.parametrize(
    ("said", "status"),
    [("registry.example.org", 200), ("Registry.Example.ORG:443", 200), ("localhost:8080", 200), ("127.0.0.1:1", 200),
     ("[::1]:80", 200), ("10.0.0.5", 200), ("evil.example", 421), ("registry.example.org.evil.example", 421),
     ("evil.example:8080", 421), ("registry.example.org@evil.example", 421), ("", 421), ("[evil]", 421)],
)  # fmt: skip
def test_a_server_is_asked_by_its_own_name(said: str, status: int) -> None:
    async def work() -> None:
        asked = ConcurrentRequests(lambda app: HostCheck(app, "https://registry.example.org/base"))
        asked.go.set()
        assert await asked("/", "192.0.2.1", host=said) == status
        assert await asked("/healthz", "192.0.2.1", host=said) == 200

    asyncio.run(work())


@pytest.mark.full
def test_no_more_is_listed_or_sent_at_once_than_fits(acme: RawUploadClient) -> None:
    for path in ("/releases", "/competitions"):
        assert acme.client.get(path, params={"limit": 10_000}).status_code == 422
        assert acme.client.get(path, params={"limit": 0}).status_code == 422
    assert acme.client.post("/files", json={"paths": ["a"] * 100_000}).status_code == 422
