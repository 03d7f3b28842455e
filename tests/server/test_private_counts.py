"""Responses to strangers do not depend on the number of private releases: two servers are compared byte by byte."""

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
from tests.server.test_privacy import PRIVATE, PUBLIC, UNKNOWN, crawl_links, list_requests
from tests.support.processes import wait_until
from tests.support.server_process import HttpResponse, ServerProcess, create_accounts, run_server
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

pytestmark = pytest.mark.full  # test_pages.py checks page counts with a private run in every test run

PUBLISHED_AT = 1_700_000_000.0
"""The publishing time of all releases, so that both servers show the same times."""

NOT_COMPARED = ("/metrics", "/board.duckdb", "/tokens")
"""Paths for administrators, a file whose bytes differ each time, and the requester's own random tokens."""


@contextmanager
def run_server_with(folder: Path, bundles: list[list[Bundle]]) -> Iterator[ServerProcess]:
    folder.mkdir()
    server = Service.open(Settings(folder=folder))
    with closing(server.database):
        tokens = create_accounts(server.database)
        for batch in bundles:
            insert_releases(server, batch, at=PUBLISHED_AT)
    with run_server(folder, "--rate", "0", people=False) as process:
        served = replace(process, tokens=tokens)
        wait_until(lambda: served.request("/").status == 200)
        yield served


@pytest.fixture(scope="module")
def server_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A server with two public releases, and one that also has private releases before and between them."""
    root = tmp_path_factory.mktemp("counted")
    bundle = run_bundle(root)
    first, last = copy_bundle(bundle, name=PUBLIC), copy_bundle(bundle, name="wellknown01")
    private_runs = [copy_bundle(bundle, name=f"{PRIVATE}-{number}", visibility="private") for number in range(7)]
    with ExitStack() as servers:
        public_only = servers.enter_context(run_server_with(root / "plain", [[first], [last]]))
        with_private = servers.enter_context(
            run_server_with(
                root / "more", [private_runs[:3], [first], *([private_run] for private_run in private_runs[3:]), [last]]
            )
        )
        yield public_only, with_private


def normalize_response(served: ServerProcess, answer: HttpResponse) -> tuple[int, dict[str, str], str]:
    """Return the response without what differs between servers: addresses, times and random values."""

    def normalize(text: str) -> str:
        text = text.replace(f":{served.port}", ":PORT")
        text = re.sub(r"/boards/[0-9a-f]{16}/", "/boards/NAME/", text)
        text = re.sub(r'name=\\?"word\\?" value=\\?"[^"]+"', "WORD", text)
        return re.sub(r"nip-run-[a-z]+=[^;]+", "COOKIE", text)

    headers = {
        name: normalize(value)
        for name, value in answer.headers.items()
        if name not in ("date", "etag", "content-length", "last-modified")
    }
    return answer.status, headers, normalize(answer.body.decode("utf-8", "replace"))


@pytest.mark.parametrize("account", [None, "mallory"])
def test_no_api_route_counts_private_releases(
    server_pair: tuple[ServerProcess, ServerProcess], account: str | None
) -> None:
    paths = [
        path for method, path, _ in list_requests(server_pair[0]) if method == "GET" and not path.endswith(NOT_COMPARED)
    ]
    paths += [f"/api/v1/{name}?limit=1{after}" for name in ("releases", "tree") for after in ("", "&prefix=run/")]
    paths += [path.replace(PRIVATE, PUBLIC) for path in paths]
    for path in paths:
        responses = [
            normalize_response(served, served.request(path, token=None if account is None else served.tokens[account]))
            for served in server_pair
        ]
        assert responses[0] == responses[1], path


def test_no_page_counts_private_releases(server_pair: tuple[ServerProcess, ServerProcess]) -> None:
    pages = [path for path in crawl_links(server_pair[0], "/") if not re.match("/(static|board.duckdb|boards)", path)]
    assert any(PUBLIC in path for path in pages)
    for path in pages:
        responses = [normalize_response(served, served.request(path)) for served in server_pair]
        assert responses[0] == responses[1], path
    for served in server_pair:  # a board's name must not count changes, which include private ones
        board_names = re.findall(r"/boards/([^/]+)/", crawl_links(served, "/")[find_board_path(served)].body.decode())
        assert board_names
        assert all(re.fullmatch("[0-9a-f]{16}", name) for name in board_names)


def find_board_path(served: ServerProcess) -> str:
    return next(path for path in crawl_links(served, "/") if re.fullmatch("/board/[0-9a-f]{12}", path))


def test_release_list_pages_continue_after_a_release_and_reject_other_cursors(
    server_pair: tuple[ServerProcess, ServerProcess],
) -> None:
    for served in server_pair:
        first = served.request("/api/v1/releases?limit=1").json
        assert first["next"] == f"run/acme/{PUBLIC}/1" == first["releases"][0]["folder"]
        second = served.request(f"/api/v1/releases?limit=1&after={first['next']}").json
        assert [response["folder"] for response in second["releases"]] == ["run/acme/wellknown01/1"]
        assert (
            served.request("/api/v1/releases?after=0").json["releases"][0] == first["releases"][0]
        )  # an old form of the cursor
        refused = [served.request(f"/api/v1/releases?after={after}") for after in (4, f"run/acme/{PRIVATE}-0/1", "x")]
        assert {response.status for response in refused} == {400}
        assert len({response.body for response in refused}) == 1
        with served.registry() as registry:
            assert [entry.reference.name for entry in registry.entries()] == [PUBLIC, "wellknown01"]
        assert UNKNOWN not in str(first)
