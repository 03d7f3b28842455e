"""What is private is told by nothing: every route of the API's own document, every link of every page, byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from html import unescape
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import pytest

from runner.server.service import Service
from runner.server.settings import Settings
from tests.support.processes import wait_until
from tests.support.server_process import HttpResponse, ServerProcess, create_accounts, run_server
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

pytestmark = pytest.mark.full  # test_pages.py has a private run on no page in every run of the tests

PRIVATE, OTHER, PUBLIC = "unspeakable", "notthatname", "wellknown00"
"""Names of one length: a private run's, one that nobody has, and a public run's."""
FOLDER = f"run/acme/{PRIVATE}/1"
WORDS = {
    "path": f"{FOLDER}/release.json", "release": FOLDER, "kind": "run", "owner": "acme", "name": PRIVATE,
    "version": "1", "upload": "0" * 32, "sha256": "0" * 64, "page": PRIVATE, "piece": "0", "prefix": FOLDER,
    "q": PRIVATE, "token": "0" * 12, "account": PRIVATE, "why": "seen", "run_owner": "acme", "run_name": PRIVATE,
    "run_version": "1",
}  # fmt: skip
"""What stands for each parameter of a route; a new one needs a row here."""
BODIES: dict[str, Any] = {
    "POST /api/v1/files": {"paths": [f"{FOLDER}/release.json"]},
    "POST /api/v1/competitions": {
        "dataset": f"acme/{PRIVATE}@1",
        "name": "c",
        "labels": {"a": 1},
        "closes": "2099-01-01T00:00:00Z",
    },
    "POST /api/v1/uploads": {
        "folders": [{"folder": FOLDER, "files": [{"path": "release.json", "sha256": "0" * 64, "size": 1}]}]
    },
    "PUT /api/v1/hidden/{release}": {"why": "seen"},
    "POST /api/v1/tokens": {"scope": "read", "days": 1},
    "PUT /api/v1/organisations/{name}/members/{account}": {"is_owner": False},
    "PATCH /api/v1/competitions/{owner}/{name}": {"title": "Other"},
    "PUT /api/v1/competitions/{owner}/{name}/labels": {"labels": {"a": 0}, "why": "seen"},
}


@dataclass(frozen=True)
class PrivateServer:
    """A server with a private run of acme's beside a public one."""

    served: ServerProcess
    marks: frozenset[bytes]
    """Hashes that nothing but the private run has."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    root = tmp_path_factory.mktemp("private")
    (root / "a").mkdir()
    (root / "b").mkdir()
    known = copy_bundle(run_bundle(root / "a", seed=1), name=PUBLIC)
    secret = copy_bundle(run_bundle(root / "b", seed=2), name=PRIVATE, visibility="private")
    server = Service.open(Settings(folder=root))
    with closing(server.database):
        tokens = create_accounts(server.database)
        insert_releases(server, [known, secret])
    hashes = {file.sha256 for file in secret.release.files} - {file.sha256 for file in known.release.files}
    with run_server(root, "--rate", "0", people=False) as running:
        served = replace(running, tokens=tokens)
        wait_until(lambda: served.request("/").status == 200)  # its first board is made
        yield PrivateServer(served, frozenset(one.encode() for one in (secret.sha256, *hashes)))


def routes(served: ServerProcess) -> Iterator[tuple[str, str, Any]]:
    """A method, an address and a body for each route of the document."""
    for path, methods in served.request("/api/v1/openapi.json").json["paths"].items():
        for method, said in methods.items():
            where, query = path, []
            for parameter in said.get("parameters", ()):
                name = parameter["name"]
                if parameter["in"] == "path":
                    where = where.replace(f"{{{name}}}", WORDS[name])
                elif parameter["in"] == "query" and name in WORDS:
                    query.append(f"{name}={quote(WORDS[name])}")
            plain = f"{method.upper()} {path}"
            assert "requestBody" not in said or plain in BODIES or method == "patch", f"{plain}: a row in BODIES"
            yield method.upper(), where, BODIES.get(plain)
            if query:
                yield method.upper(), f"{where}?{'&'.join(query)}", BODIES.get(plain)


def links(served: ServerProcess, first: str, **headers: Any) -> dict[str, HttpResponse]:
    """Every page that links lead to from a first one."""
    found: dict[str, HttpResponse] = {}
    waiting = [first]
    while waiting and len(found) < 400:
        path = waiting.pop()
        if path in found:
            continue
        answer = served.request(path, **headers)
        found[path] = answer
        if answer.headers.get("content-type", "").startswith("text/html"):
            for link in re.findall(r'(?:href|src|action)="([^"#]+)', answer.body.decode()):
                to = urlsplit(urljoin(f"{served.address}{path}", unescape(link)))
                if to.port == served.port and "/logout" not in to.path:
                    waiting.append(to.path + (f"?{to.query}" if to.query else ""))
    return found


def without_date(answer: HttpResponse) -> tuple[int, dict[str, str], bytes]:
    """And without the hash of the body, in which the requester's own words may stand."""
    return (
        answer.status,
        {name: value for name, value in answer.headers.items() if name not in ("date", "etag")},
        answer.body,
    )


def request_private(place: PrivateServer, method: str, path: str, body: Any, **options: Any) -> HttpResponse:
    """Ask as who may not see it: nothing of the private run is in any byte, and it is not told from one that is not."""
    served = place.served
    answer = served.request(path, method, body, **options)
    whole = repr(answer.headers).encode() + answer.body
    assert not [mark for mark in place.marks if mark in whole], path
    told = json.dumps([path, body])
    if PRIVATE not in told:
        assert PRIVATE.encode() not in whole, path
        return answer
    other = served.request(
        path.replace(PRIVATE, OTHER), method, json.loads(json.dumps(body).replace(PRIVATE, OTHER)), **options
    )
    as_other = HttpResponse(answer.status, answer.headers, answer.body.replace(PRIVATE.encode(), OTHER.encode()))
    assert without_date(as_other) == without_date(other), path
    return answer


WHO = (None, "mallory", "mallory-reads", "keeper")


@pytest.mark.sample(1)
@pytest.mark.parametrize("who", WHO)
def test_no_route_of_the_api_tells_a_stranger_what_is_private(place: PrivateServer, who: str | None) -> None:
    token = None if who is None else place.served.tokens[who]
    answers = [request_private(place, method, path, body, token=token) for method, path, body in routes(place.served)]
    assert len(answers) > 12


def test_its_owner_is_shown_it_by_the_same_routes(place: PrivateServer) -> None:
    token = place.served.tokens["alice"]
    found = b"".join(
        place.served.request(path, method, body, token=token).body
        for method, path, body in routes(place.served)
        if method == "GET"
    )
    assert all(mark in found for mark in place.marks)


def test_no_page_nor_what_it_leads_to_tells_a_stranger_what_is_private(place: PrivateServer) -> None:
    seen = links(place.served, "/")
    assert any(PUBLIC in path for path in seen)
    for path in [*seen, "/search?q=unspeakable", "/owner/acme", "/owner/unspeakable", "/board.duckdb", "/mine"]:
        request_private(place, "GET", path, None)
        if PUBLIC in path:
            request_private(place, "GET", path.replace(PUBLIC, PRIVATE), None)
    for path in ("/mine/run/acme/unspeakable/1", "/run/acme/unspeakable/1"):
        request_private(place, "GET", path, None)


def cookie_of(served: ServerProcess, who: str) -> str:
    """What a browser has once somebody has signed in with a token."""
    page = served.request("/login")
    before = page.headers["set-cookie"].partition(";")[0]
    word = re.search(r'name="word" value="([^"]+)"', page.body.decode())
    assert word
    form = f"word={quote(word[1])}&token={served.tokens[who]}".encode()
    done = served.request(
        "/login", "POST", form, Cookie=before, Origin=served.address, Content_Type="application/x-www-form-urlencoded"
    )
    assert done.status == 303, done.body
    cookie = re.search(r"nip-run-session=[^;]+", done.headers["set-cookie"])
    assert cookie
    return cookie[0]


def test_a_stranger_who_is_signed_in_sees_no_more_than_anybody(place: PrivateServer) -> None:
    cookie = cookie_of(place.served, "mallory")
    for path in [*links(place.served, "/mine", Cookie=cookie), f"/mine/run/acme/{PRIVATE}/1"]:
        request_private(place, "GET", path, None, Cookie=cookie)
    cookie = cookie_of(place.served, "alice")
    assert PRIVATE.encode() in b"".join(one.body for one in links(place.served, "/mine", Cookie=cookie).values())
    # A cookie is for pages: another site cannot have a browser ask the API with it.
    assert place.served.request("/api/v1", Cookie=cookie).json["account"] is None


ALWAYS = {
    "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


def test_every_answer_is_kept_from_frames_scripts_other_sites_and_where_private_from_caches(
    place: PrivateServer,
) -> None:
    served, token = place.served, place.served.tokens["alice"]
    answers = [served.request(path, method, body, token=token) for method, path, body in routes(served)]
    answers += [served.request(path) for path in ("/", "/nothing", "/login", "/mine", "/%ff", "/search?q=a")]
    for answer in answers:
        assert answer.headers.items() >= ALWAYS.items()
        assert answer.headers["referrer-policy"] in ("no-referrer", "same-origin")
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy
        assert "access-control-allow-origin" not in answer.headers
    private = served.request(f"/api/v1/tree/{FOLDER}/release.json", token=token)
    assert private.status == 200
    assert re.search("no-store|private", private.headers["cache-control"])


@pytest.mark.full
def test_a_token_that_is_wrong_and_one_that_is_unknown_are_refused_alike(place: PrivateServer) -> None:
    served, good = place.served, place.served.tokens["alice"]
    wrong = [good[:-1] + ("A" if good[-1] != "A" else "B"), f"nip_{'z' * 12}_{'z' * 43}", "x", "", good + "a"]
    answers = {without_date(served.request("/api/v1", token=one))[::2] for one in wrong}
    assert len(answers) == 1
    assert next(iter(answers))[0] == 401
