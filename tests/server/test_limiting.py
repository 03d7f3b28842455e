"""Who asks is told from others, and how much one caller may ask, list, or declare at once."""

from __future__ import annotations

from typing import Any

import pytest

from runner.errors import ReleaseError
from runner.server.intake.declared import Declaration
from runner.server.settings import TAKEN
from runner.server.web.limiting import Buckets, address_of
from tests.support.raw_uploads import Raw, declared

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
    ],
)  # fmt: skip
def test_who_asks_is_the_connections_other_end_or_whom_a_trusted_proxy_says(
    peer: str, said: tuple[str, ...], found: str
) -> None:
    assert address_of(scope(peer, *said), PROXIES) == found


def test_a_bucket_fills_at_its_rate_and_no_more_callers_are_remembered_than_fit() -> None:
    now = 0.0
    buckets = Buckets(2.0, 4.0, lambda: now)
    for _ in range(4):
        assert buckets.wait("a") == 0
        buckets.take("a")
    assert (buckets.wait("a"), buckets.wait("b")) == (0.5, 0)
    now = 0.5
    assert buckets.wait("a") == 0
    for number in range(100_000):
        buckets.take(f"c{number}")
    assert buckets.remembered == 100_000


def test_no_more_is_declared_at_once_than_is_taken() -> None:
    def folder(name: str, count: int) -> dict[str, Any]:
        return {"folder": f"dataset/acme/{name}/1", "files": [declared(f"f{n}", b"") for n in range(count)]}

    for said, words in (
        ([], "0 releases; 1 to 2 are taken"), ([folder(name, 0) for name in "abc"], "3 releases; 1 to 2"),
        ([folder(name, 6) for name in "ab"], "12 files; at most 10"), ([folder("a", 2), folder("a", 2)], "there twice"),
    ):  # fmt: skip
        with pytest.raises(ReleaseError) as error:
            Declaration.of(said, TAKEN, 2, 10)
        assert any(words in note for note in error.value.__notes__), words


@pytest.mark.parametrize(
    ("path", "size", "words"),
    [
        ("data.txt", (1 << 30) + 1, "has 1,073,741,825 bytes; at most 1,073,741,824 are taken"),
        ("release.json", (1 << 20) + 1, "has 1,048,577 bytes; at most 1,048,576 are taken"),
        ("data.txt", -1, "has -1 bytes"),
    ],
)
def test_no_file_is_declared_that_is_larger_than_is_taken(path: str, size: int, words: str) -> None:
    files = [{**declared(name, b""), "sha256": f"{number:064x}"} for number, name in enumerate(("data.txt", "a.txt"))]
    files = [one | {"path": path, "size": size} if one["path"] == "data.txt" else one for one in files]
    with pytest.raises(ReleaseError) as error:
        Declaration.of([{"folder": "dataset/acme/a/1", "files": files}], TAKEN, 2, 10)
    assert any(words in note for note in error.value.__notes__)


@pytest.mark.full
def test_no_more_is_listed_or_sent_at_once_than_fits(acme: Raw) -> None:
    for path in ("/tree", "/releases", "/competitions"):
        assert acme.client.get(path, params={"limit": 10_000}).status_code == 422
        assert acme.client.get(path, params={"limit": 0}).status_code == 422
    assert acme.client.post("/files", json={"paths": ["a"] * 100_000}).status_code == 422
