"""No answer to a stranger depends on how many private releases a server has: two servers are compared, byte by byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from runner.documents.releases.bundle import Bundle
from runner.server.service import Service
from runner.server.settings import Settings
from tests.server.test_privacy import OTHER, PRIVATE, PUBLIC, links, routes
from tests.support.processes import wait_until
from tests.support.server_process import HttpResponse, ServerProcess, create_accounts, run_server
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

pytestmark = pytest.mark.full  # test_pages.py has a private run that no page counts in every run of the tests

AT = 1_700_000_000.0
"""When everything was published, so that no time differs between the two servers."""

NOT_COMPARED = ("/metrics", "/board.duckdb", "/tokens")
"""For administrators; a file whose bytes differ each time; the requester's own tokens, which are random."""


@contextmanager
def server_with(folder: Path, bundles: list[list[Bundle]]) -> Iterator[ServerProcess]:
    folder.mkdir()
    server = Service.open(Settings(folder=folder))
    with closing(server.database):
        tokens = create_accounts(server.database)
        for together in bundles:
            insert_releases(server, together, at=AT)
    with run_server(folder, "--rate", "0", people=False) as running:
        served = replace(running, tokens=tokens)
        wait_until(lambda: served.request("/").status == 200)
        yield served


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A server with two public releases, and one that has private releases before and between them, too."""
    root = tmp_path_factory.mktemp("counted")
    run = run_bundle(root)
    first, last = copy_bundle(run, name=PUBLIC), copy_bundle(run, name="wellknown01")
    hidden = [copy_bundle(run, name=f"{PRIVATE}-{number}", visibility="private") for number in range(7)]
    with ExitStack() as servers:
        plain = servers.enter_context(server_with(root / "plain", [[first], [last]]))
        more = servers.enter_context(
            server_with(root / "more", [hidden[:3], [first], *([one] for one in hidden[3:]), [last]])
        )
        yield plain, more


def comparable(served: ServerProcess, answer: HttpResponse) -> tuple[int, dict[str, str], str]:
    """An answer without what differs between any two servers: addresses, times, random names and words."""

    def plain(text: str) -> str:
        text = text.replace(f":{served.port}", ":PORT")
        text = re.sub(r"/boards/[0-9a-f]{16}/", "/boards/NAME/", text)
        text = re.sub(r'name=\\?"word\\?" value=\\?"[^"]+"', "WORD", text)
        return re.sub(r"nip-run-[a-z]+=[^;]+", "COOKIE", text)

    kept = {
        name: plain(value)
        for name, value in answer.headers.items()
        if name not in ("date", "etag", "content-length", "last-modified")
    }
    return answer.status, kept, plain(answer.body.decode("utf-8", "replace"))


@pytest.mark.parametrize("who", [None, "mallory"])
def test_no_route_of_the_api_counts_private_releases(
    both: tuple[ServerProcess, ServerProcess], who: str | None
) -> None:
    known = [path for method, path, _ in routes(both[0]) if method == "GET" and not path.endswith(NOT_COMPARED)]
    known += [f"/api/v1/{name}?limit=1{after}" for name in ("releases", "tree") for after in ("", "&prefix=run/")]
    known += [path.replace(PRIVATE, PUBLIC) for path in known]
    for path in known:
        told = [
            comparable(served, served.request(path, token=None if who is None else served.tokens[who]))
            for served in both
        ]
        assert told[0] == told[1], path


def test_no_page_counts_private_releases(both: tuple[ServerProcess, ServerProcess]) -> None:
    pages = [path for path in links(both[0], "/") if not re.match("/(static|board.duckdb|boards)", path)]
    assert any(PUBLIC in path for path in pages)
    for path in pages:
        told = [comparable(served, served.request(path)) for served in both]
        assert told[0] == told[1], path
    for served in both:  # the number of changes, private ones too, is in no name of a board
        found = re.findall(r"/boards/([^/]+)/", links(served, "/")[board_of(served)].body.decode())
        assert found
        assert all(re.fullmatch("[0-9a-f]{16}", name) for name in found)


def board_of(served: ServerProcess) -> str:
    return next(path for path in links(served, "/") if re.fullmatch("/board/[0-9a-f]{12}", path))


def test_a_list_of_releases_goes_on_after_each_of_them_and_no_number_names_a_place_in_it(
    both: tuple[ServerProcess, ServerProcess],
) -> None:
    for served in both:
        first = served.request("/api/v1/releases?limit=1").json
        assert first["next"] == f"run/acme/{PUBLIC}/1" == first["releases"][0]["folder"]
        second = served.request(f"/api/v1/releases?limit=1&after={first['next']}").json
        assert [one["folder"] for one in second["releases"]] == ["run/acme/wellknown01/1"]
        assert served.request("/api/v1/releases?after=0").json["releases"][0] == first["releases"][0]  # as it was once
        refused = [served.request(f"/api/v1/releases?after={after}") for after in (4, f"run/acme/{PRIVATE}-0/1", "x")]
        assert {one.status for one in refused} == {400}
        assert len({one.body for one in refused}) == 1
        with served.registry() as registry:
            assert [entry.reference.name for entry in registry.entries()] == [PUBLIC, "wellknown01"]
        assert OTHER not in str(first)
