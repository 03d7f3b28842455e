"""No API route and no page reveals a private run; responses are compared byte by byte."""

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

pytestmark = pytest.mark.full  # test_pages.py checks pages for a private run in every test run

PRIVATE, UNKNOWN, PUBLIC = "unspeakable", "notthatname", "wellknown00"
"""Names of equal length: of a private run, of no run, and of a public run."""
FOLDER = f"run/acme/{PRIVATE}/1"
PARAMETER_VALUES = {
    "path": f"{FOLDER}/release.json", "release": FOLDER, "kind": "run", "owner": "acme", "name": PRIVATE,
    "version": "1", "upload": "0" * 32, "sha256": "0" * 64, "page": PRIVATE, "piece": "0", "prefix": FOLDER,
    "q": PRIVATE, "token": "0" * 12, "account": PRIVATE, "why": "seen", "run_owner": "acme", "run_name": PRIVATE,
    "run_version": "1",
}  # fmt: skip
"""Values for the parameters of routes; a new parameter needs an entry here."""
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
    """A server with a private and a public run of acme."""

    served: ServerProcess
    marks: frozenset[bytes]
    """Hashes that only the private run contains."""


@pytest.fixture(scope="module")
def private_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    root = tmp_path_factory.mktemp("private")
    (root / "a").mkdir()
    (root / "b").mkdir()
    public_run = copy_bundle(run_bundle(root / "a", seed=1), name=PUBLIC)
    private_run = copy_bundle(run_bundle(root / "b", seed=2), name=PRIVATE, visibility="private")
    server = Service.open(Settings(folder=root))
    with closing(server.database):
        tokens = create_accounts(server.database)
        insert_releases(server, [public_run, private_run])
    hashes = {file.sha256 for file in private_run.release.files} - {file.sha256 for file in public_run.release.files}
    with run_server(root, "--rate", "0", people=False) as process:
        served = replace(process, tokens=tokens)
        wait_until(lambda: served.request("/").status == 200)  # the first board is built
        yield PrivateServer(served, frozenset(sha256.encode() for sha256 in (private_run.sha256, *hashes)))


def list_requests(served: ServerProcess) -> Iterator[tuple[str, str, Any]]:
    """Yield a method, a URL and a body for each route of the OpenAPI document."""
    for path, methods in served.request("/api/v1/openapi.json").json["paths"].items():
        for method, operation in methods.items():
            url, query = path, []
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                if parameter["in"] == "path":
                    url = url.replace(f"{{{name}}}", PARAMETER_VALUES[name])
                elif parameter["in"] == "query" and name in PARAMETER_VALUES:
                    query.append(f"{name}={quote(PARAMETER_VALUES[name])}")
            route = f"{method.upper()} {path}"
            assert "requestBody" not in operation or route in BODIES or method == "patch", f"{route}: a row in BODIES"
            yield method.upper(), url, BODIES.get(route)
            if query:
                yield method.upper(), f"{url}?{'&'.join(query)}", BODIES.get(route)


def crawl_links(served: ServerProcess, start_path: str, **headers: Any) -> dict[str, HttpResponse]:
    """Follow links from a first page and return the responses by path."""
    responses: dict[str, HttpResponse] = {}
    queue = [start_path]
    while queue and len(responses) < 400:
        path = queue.pop()
        if path in responses:
            continue
        response = served.request(path, **headers)
        responses[path] = response
        if response.headers.get("content-type", "").startswith("text/html"):
            for link in re.findall(r'(?:href|src|action)="([^"#]+)', response.body.decode()):
                target = urlsplit(urljoin(f"{served.address}{path}", unescape(link)))
                if target.port == served.port and "/logout" not in target.path:
                    queue.append(target.path + (f"?{target.query}" if target.query else ""))
    return responses


def comparable_response(answer: HttpResponse) -> tuple[int, dict[str, str], bytes]:
    """Return the response without its date and ETag: the body may repeat the request's own text."""
    return (
        answer.status,
        {name: value for name, value in answer.headers.items() if name not in ("date", "etag")},
        answer.body,
    )


def request_private(private_server: PrivateServer, method: str, path: str, body: Any, **options: Any) -> HttpResponse:
    """Send a request without access and check that the private run looks like a run that does not exist."""
    served = private_server.served
    response = served.request(path, method, body, **options)
    response_bytes = repr(response.headers).encode() + response.body
    assert not [mark for mark in private_server.marks if mark in response_bytes], path
    request_text = json.dumps([path, body])
    if PRIVATE not in request_text:
        assert PRIVATE.encode() not in response_bytes, path
        return response
    other_response = served.request(
        path.replace(PRIVATE, UNKNOWN), method, json.loads(json.dumps(body).replace(PRIVATE, UNKNOWN)), **options
    )
    renamed_response = HttpResponse(
        response.status, response.headers, response.body.replace(PRIVATE.encode(), UNKNOWN.encode())
    )
    assert comparable_response(renamed_response) == comparable_response(other_response), path
    return response


STRANGERS = (None, "mallory", "mallory-reads", "keeper")


@pytest.mark.sample(1)
@pytest.mark.parametrize("account", STRANGERS)
def test_no_api_route_reveals_a_private_run_to_a_stranger(private_server: PrivateServer, account: str | None) -> None:
    token = None if account is None else private_server.served.tokens[account]
    responses = [
        request_private(private_server, method, path, body, token=token)
        for method, path, body in list_requests(private_server.served)
    ]
    assert len(responses) > 12


def test_owner_sees_the_private_run_through_the_same_routes(private_server: PrivateServer) -> None:
    token = private_server.served.tokens["alice"]
    bodies = b"".join(
        private_server.served.request(path, method, body, token=token).body
        for method, path, body in list_requests(private_server.served)
        if method == "GET"
    )
    assert all(mark in bodies for mark in private_server.marks)


def test_no_page_or_link_reveals_a_private_run_to_a_stranger(private_server: PrivateServer) -> None:
    pages = crawl_links(private_server.served, "/")
    assert any(PUBLIC in path for path in pages)
    for path in [*pages, "/search?q=unspeakable", "/owner/acme", "/owner/unspeakable", "/board.duckdb", "/mine"]:
        request_private(private_server, "GET", path, None)
        if PUBLIC in path:
            request_private(private_server, "GET", path.replace(PUBLIC, PRIVATE), None)
    for path in ("/mine/run/acme/unspeakable/1", "/run/acme/unspeakable/1"):
        request_private(private_server, "GET", path, None)


def sign_in(served: ServerProcess, account: str) -> str:
    """Sign in with an account's token and return the session cookie."""
    page = served.request("/login")
    form_cookie = page.headers["set-cookie"].partition(";")[0]
    form_token = re.search(r'name="word" value="([^"]+)"', page.body.decode())
    assert form_token
    form = f"word={quote(form_token[1])}&token={served.tokens[account]}".encode()
    response = served.request(
        "/login",
        "POST",
        form,
        Cookie=form_cookie,
        Origin=served.address,
        Content_Type="application/x-www-form-urlencoded",
    )
    assert response.status == 303, response.body
    cookie = re.search(r"nip-run-session=[^;]+", response.headers["set-cookie"])
    assert cookie
    return cookie[0]


def test_signed_in_stranger_sees_no_private_run(private_server: PrivateServer) -> None:
    cookie = sign_in(private_server.served, "mallory")
    for path in [*crawl_links(private_server.served, "/mine", Cookie=cookie), f"/mine/run/acme/{PRIVATE}/1"]:
        request_private(private_server, "GET", path, None, Cookie=cookie)
    cookie = sign_in(private_server.served, "alice")
    assert PRIVATE.encode() in b"".join(
        response.body for response in crawl_links(private_server.served, "/mine", Cookie=cookie).values()
    )
    # The API ignores the cookie, so another site cannot use it through a browser.
    assert private_server.served.request("/api/v1", Cookie=cookie).json["account"] is None


SECURITY_HEADERS = {
    "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


def test_every_response_has_security_headers_and_private_ones_forbid_caching(
    private_server: PrivateServer,
) -> None:
    served, token = private_server.served, private_server.served.tokens["alice"]
    responses = [served.request(path, method, body, token=token) for method, path, body in list_requests(served)]
    responses += [served.request(path) for path in ("/", "/nothing", "/login", "/mine", "/%ff", "/search?q=a")]
    for response in responses:
        assert response.headers.items() >= SECURITY_HEADERS.items()
        assert response.headers["referrer-policy"] in ("no-referrer", "same-origin")
        policy = response.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy
        assert "access-control-allow-origin" not in response.headers
    private = served.request(f"/api/v1/tree/{FOLDER}/release.json", token=token)
    assert private.status == 200
    assert re.search("no-store|private", private.headers["cache-control"])


@pytest.mark.full
def test_wrong_and_unknown_tokens_get_the_same_response(private_server: PrivateServer) -> None:
    served, valid_token = private_server.served, private_server.served.tokens["alice"]
    invalid_tokens = [
        valid_token[:-1] + ("A" if valid_token[-1] != "A" else "B"),
        f"nip_{'z' * 12}_{'z' * 43}",
        "x",
        "",
        valid_token + "a",
    ]
    responses = {comparable_response(served.request("/api/v1", token=token))[::2] for token in invalid_tokens}
    assert len(responses) == 1
    assert next(iter(responses))[0] == 401
