"""The server's pages over HTTP: public pages, private pages, and text written by strangers."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pytest

from runner.documents.releases.bundle import Bundle
from runner.documents.releases.limits import DEFAULT_LIMITS
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Reference, parse_reference
from runner.registry.transports.registry import Registry
from runner.server.accounts.accounts import ANYBODY
from runner.server.boards.paths import BoardPaths, delete_boards
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.visible_releases import VisibleReleases
from runner.server.web.pages.run_cache import CachedPage, RunPageCache
from tests.support.cookie_client import CookieClient, LinkParser, find_form_token, is_same_server
from tests.support.processes import nip_run
from tests.support.server_process import ServerProcess, run_server
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\u202e https://evil.example/ javascript:x"
FIRST, REPRODUCTION = "run/alice/first@1", "run/mallory/again@1"


@dataclass(frozen=True)
class Site:
    """A server with a few releases."""

    served: ServerProcess
    server: Service
    board: str
    """The path of the board that the home page links to."""

    def browser(self) -> CookieClient:
        return CookieClient(self.served)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("pages")
    bundle = run_bundle(folder / "played", question=HOSTILE, models={"m": {"model": HOSTILE}})
    first = copy_bundle(bundle, owner="alice", name="first", description=HOSTILE)
    link = ReleaseLink(role="reproduces", release=FIRST, sha256=first.sha256)
    with run_server(folder / "server") as served:
        server = Service.open(Settings(folder=folder / "server"))
        reproduction = copy_bundle(bundle, owner="mallory", name="again", links=(link,))
        private_run = copy_bundle(bundle, owner="alice", name="hush-hush", visibility="private")
        insert_releases(server, [first, reproduction, private_run])
        home = CookieClient(served).wait_for_response("/", lambda answer: b"/board/" in answer.body).body.decode()
        match = re.search(r'href="(/board/[0-9a-f]{12})"', home)
        assert match is not None
        yield Site(served, server, match[1])
        server.database.close()


def crawl(browser: CookieClient, *start_paths: str) -> dict[str, str]:
    """Follow all links from these paths and return each page's HTML by its path; fail on a dead link."""
    pages: dict[str, str] = {}
    queue = list(start_paths)
    while queue:
        path = queue.pop().partition("#")[0]
        if path in pages or path.startswith("/logout"):
            continue
        assert is_same_server(path), path
        page_response = browser.wait_for_response(path, lambda response: response.status != 503)
        assert page_response.status in (200, 303), (path, page_response.status)
        is_page = page_response.headers.get("content-type", "").startswith("text/html")
        pages[path] = page_response.body.decode() if is_page else ""
        queue += LinkParser(pages[path]).paths if is_page else []
        queue += [page_response.headers["location"]] if page_response.status == 303 else []
    return pages


@pytest.mark.full
def test_every_link_leads_to_an_existing_page_of_the_same_server(site: Site) -> None:
    pages = crawl(site.browser(), "/", "/search?q=first", "/compare/alice/first/1/mallory/again/1")
    assert {
        site.board,
        f"{site.board}.json",
        f"{site.board}.csv",
        "/board.duckdb",
        "/run/alice/first/1",
        "/login",
    } <= set(pages)
    assert {"/owner/alice", "/owner/mallory"} <= set(pages)


@pytest.mark.gate
def test_strangers_find_a_private_run_in_no_page_file_or_count(site: Site) -> None:
    browser = site.browser()
    pages = crawl(browser, "/", "/search?q=hush", "/owner/alice")
    files = [
        gzip.decompress(browser.request(path, Accept_Encoding="gzip").body)
        for path in (f"{site.board}.json", f"{site.board}.csv")
    ]
    files.append(browser.request("/board.duckdb").body)
    assert "hush-hush" not in "".join(pages.values())
    assert not [data for data in files if b"hush" in data]
    for path in ("/run/alice/hush-hush/1", "/run/alice/hush-hush", "/run/alice/nowhere/1"):
        responses = {
            (response.status, response.body)
            for response in (browser.request(path), browser.request("/run/alice/nothing/1"))
        }
        assert {status for status, _ in responses} == {404}
    assert "1 public release<" in pages["/owner/alice"].replace("1 public release\n", "1 public release<")


@pytest.mark.gate
def test_every_page_escapes_text_written_by_strangers(site: Site) -> None:
    pages = crawl(site.browser(), "/", "/search?q=first", "/run/alice/first/1")
    assert any("&lt;script&gt;document.title" in html for html in pages.values())
    for path, html in pages.items():
        tags = LinkParser(html).tags
        inline = [
            attributes
            for tag, attributes in tags
            if tag == "script" and "src" not in attributes and attributes.get("type") != "application/json"
        ]
        assert not inline, path
        assert not [
            attributes for tag, attributes in tags if tag == "img" or any(name.startswith("on") for name in attributes)
        ], path
        assert not [attributes for _, attributes in tags if "style" in attributes], path
        assert "\u202e" not in html, path


def test_public_pages_have_a_strict_content_policy_and_are_cacheable(site: Site) -> None:
    browser = site.browser()
    for path in ("/", site.board, "/run/alice/first/1"):
        answer = browser.wait_for_response(path, lambda response: response.status == 200)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"].startswith("public")
        assert browser.request(path, If_None_Match=answer.headers["etag"]).status == 304
        assert browser.request(path, method="HEAD").status == 200
        compressed = browser.request(path, Accept_Encoding="gzip")
        assert gzip.decompress(compressed.body) == answer.body
        assert compressed.headers["etag"] != answer.headers["etag"]
    match = re.search(r'src="(/static/[0-9a-f]+\.js)"', browser.load_page("/"))
    assert match is not None
    assert "immutable" in browser.request(match[1]).headers["cache-control"]


def test_board_rows_name_the_verification_tier_and_the_owners_run_count(site: Site) -> None:
    rows = json.loads(site.browser().request(f"{site.board}.json").body)["rows"]
    assert {row["release"]: (row["tier"], row["owner_runs"]) for row in rows} == {
        FIRST: ("recomputed", 1), REPRODUCTION: ("recomputed", 1)
    }  # fmt: skip
    csv_rows = list(csv.DictReader(io.StringIO(site.browser().request(f"{site.board}.csv").body.decode())))
    assert [row["release"] for row in csv_rows] == [row["release"] for row in rows]
    with site.served.registry() as registry:
        assert {str(entry.reference): entry.tier for entry in registry.entries()} == {
            FIRST: "recomputed", REPRODUCTION: "recomputed"
        }  # fmt: skip
    page = site.browser().load_page("/run/alice/first/1")
    # Identical answers do not count as a reproduction.
    assert "Reproductions" in page
    assert "reproduced by" not in page


@pytest.mark.full
def test_commands_attribute_the_verification_tier_to_the_server(site: Site, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    source = ("--from", site.served.address)
    json_process = nip_run("leaderboard", *source, "--json", cwd=tmp_path, XDG_CACHE_HOME=cache)
    assert json_process.returncode == 0, json_process.stderr
    rows = json.loads(json_process.stdout)["rows"]
    assert {row["tier"] for row in rows} == {"recomputed"}
    text_process = nip_run("leaderboard", *source, cwd=tmp_path, XDG_CACHE_HOME=cache)
    assert f"recomputed: {site.served.address} says" in " ".join(text_process.stderr.split())
    get_process = nip_run("get", "alice/first@1", "mine", *source, cwd=tmp_path)
    assert f"recomputed, says {site.served.address}" in get_process.stdout
    verify_process = nip_run("verify", "alice/first@1", *source, cwd=tmp_path)
    assert f"recomputed, says {site.served.address}; the following was checked locally" in verify_process.stderr


def test_duckdb_file_has_the_same_rows_as_the_board_page(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "board.duckdb"
    path.write_bytes(site.browser().request("/board.duckdb").body)
    with duckdb.connect(str(path), read_only=True) as file:
        file_rows = file.execute("SELECT release, tier, accuracy, lost, undecided FROM runs ORDER BY place").fetchall()
        kinds = file.execute("SELECT DISTINCT kind FROM releases").fetchall()
    rows = json.loads(site.browser().request(f"{site.board}.json").body)["rows"]
    assert file_rows == [
        tuple(row[name] for name in ("release", "tier", "accuracy", "lost", "undecided")) for row in rows
    ]
    assert None not in file_rows[0]
    assert kinds == [("run",)]


def test_run_page_shows_download_commands_and_serves_its_games(site: Site) -> None:
    html = site.browser().load_page("/run/alice/first/1")
    assert "nip-run get run/alice/first@1 --from" in html
    assert "nip-run reproduce run/alice/first@1 --fresh" in html
    assert "parameters.yaml" in html
    about = json.loads(re.search(r'id="about">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]
    games = site.browser().request(f"{about['data']}r0-games-0.json.gz")
    assert games.status == 200
    assert len(json.loads(gzip.decompress(games.body))["games"]) == 12


def test_private_run_is_shown_only_to_its_signed_in_owner_and_never_cached(site: Site) -> None:
    browser = site.browser()
    assert browser.request("/mine").headers["location"] == "/login"
    assert browser.sign_in(site.served.tokens["alice-reads"]).status == 303
    assert "hush-hush" in browser.load_page("/mine")
    # The owner may share the address without /mine; to others it must look like an unknown run.
    redirect = browser.request("/run/alice/hush-hush/1")
    assert (redirect.status, redirect.headers["location"]) == (303, "/mine/run/alice/hush-hush/1")
    assert (redirect.headers["cache-control"], browser.request("/run/alice/nothing/1").status) == (
        "private, no-store",
        404,
    )
    answer = browser.wait_for_response("/mine/run/alice/hush-hush/1", lambda response: response.status == 200)
    assert answer.headers["cache-control"] == "private, no-store"
    assert "etag" not in answer.headers
    about = json.loads(re.search(r'id="about">(.*?)</script>', answer.body.decode(), re.DOTALL)[1])  # type: ignore[index]
    piece = f"{about['data']}r0-games-0.json.gz"
    assert browser.request(piece).headers["cache-control"] == "private, no-store"
    stranger = site.browser()
    assert stranger.request(piece).status == 404
    assert stranger.sign_in(site.served.tokens["mallory"]).status == 303
    for path in (piece, "/mine/run/alice/hush-hush/1", "/run/alice/hush-hush/1"):
        assert stranger.request(path).status == 404
    assert "hush" not in stranger.load_page("/mine")


def test_owner_sees_that_a_private_run_is_yanked_or_signed_and_a_hidden_run(site: Site) -> None:
    bundles = [copy_first_run(site, name) for name in ("quiet", "removed")]
    insert_releases(site.server, [copy_bundle(bundles[0], visibility="private"), bundles[1]])
    quiet = parse_reference("run/alice/quiet@1")
    assert isinstance(quiet, Reference)
    with site.served.registry("alice") as registry:
        registry.yank(quiet, "it was played with the wrong key")
        registry.add_signature(registry.find(quiet), b"a signature")
    response = site.served.request(
        "/api/v1/hidden/run/alice/removed/1", "PUT", {"why": "it has labels"}, token=site.served.tokens["keeper"]
    )
    assert response.status == 204
    browser = site.browser()
    assert browser.sign_in(site.served.tokens["alice-reads"]).status == 303
    listed = browser.load_page("/mine")
    assert "/mine/run/alice/removed/1" in listed
    assert "wrong key" in listed
    pages = {}
    for name in ("quiet", "removed"):
        path = f"/mine/run/alice/{name}/1"
        pages[name] = browser.wait_for_response(path, lambda answer: answer.status == 200).body.decode()
    assert "Yanked by its publisher: it was played with the wrong key" in pages["quiet"]
    assert "<dt>Signed</dt><dd>yes</dd>" in pages["quiet"]
    assert "by an administrator of this server" in pages["removed"]


def test_session_cookie_works_for_pages_only_and_ends_at_sign_out(site: Site) -> None:
    browser = site.browser()
    browser.sign_in(site.served.tokens["alice"])
    header = next(line for line in browser.set_cookie_headers if line.startswith("nip-run-session"))
    assert "HttpOnly" in header
    assert "SameSite=strict" in header
    assert not [name for name, value in browser.cookies.items() if site.served.tokens["alice"] in value]
    assert browser.request("/api/v1/tree/run/alice/hush-hush/1/release.json").status == 404
    old_cookies = dict(browser.cookies)
    assert browser.request("/logout", {"word": "another"}).status == 403
    assert (
        browser.request(
            "/logout", {"word": find_form_token(browser.load_page("/mine"))}, Origin="http://evil.example"
        ).status
        == 403
    )
    assert "hush-hush" in browser.load_page("/mine")
    assert browser.request("/logout", {"word": find_form_token(browser.load_page("/mine"))}).status == 303
    assert CookieClient(site.served, old_cookies).request("/mine").status == 303


@pytest.mark.parametrize("token", ["", "nip_aaaaaaaaaaaa_" + "a" * 43, "x" * 5_000])
def test_invalid_token_signs_nobody_in(site: Site, token: str) -> None:
    assert site.browser().sign_in(token).status in (401, 403)


def test_cross_site_login_form_signs_nobody_in(site: Site) -> None:
    browser, token = site.browser(), site.served.tokens["alice"]
    form_token = find_form_token(browser.load_page("/login"))
    assert browser.request("/login", {"word": form_token, "token": token}, Origin="http://evil.example").status == 403
    assert browser.request("/login", {"word": "guessed", "token": token}).status == 403
    assert CookieClient(site.served).request("/login", {"word": "", "token": token}).status == 403


@pytest.mark.parametrize(
    "path",
    ["/board/" + "0" * 12, "/board/..%2f..%2fregistry", "/static/../app.py", "/boards/x/y.json.gz", "/run/a/b/c",
     "/owner/nobody", "/prompts/a/b", "/compare/a/b/1/c/d/1", "/run/alice/first/1/data/..%2fpage.json.gz"],
)  # fmt: skip
def test_unknown_paths_return_404(site: Site, path: str) -> None:
    assert site.browser().request(path).status == 404


@pytest.mark.full
def test_yanked_run_leaves_the_board_and_keeps_its_page(site: Site) -> None:
    reference = parse_reference("run/alice/gone@1")
    assert isinstance(reference, Reference)
    insert_releases(site.server, [copy_first_run(site, "gone")])
    browser = site.browser()
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/gone" in answer.body)
    piece = find_first_piece(site, browser)
    assert b"alice/gone" in gzip.decompress(browser.request(piece).body)
    with site.served.registry("alice") as registry:
        registry.yank(reference, "it was played with the wrong key")
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/gone" not in answer.body)
    assert "wrong key" in browser.load_page("/run/alice/gone/1")
    browser.wait_for_response(piece, lambda answer: answer.status == 404)


@pytest.mark.full
def test_old_board_pieces_are_served_until_one_of_their_runs_is_hidden(site: Site) -> None:
    browser, admin_token = site.browser(), site.served.tokens["keeper"]
    insert_releases(site.server, [copy_first_run(site, "leak")])
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/leak" in answer.body)
    piece = find_first_piece(site, browser)
    insert_releases(site.server, [copy_first_run(site, "later")])
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/later" in answer.body)
    assert piece != find_first_piece(site, browser)
    assert (old_piece := browser.request(piece)).status == 200
    assert old_piece.headers["cache-control"] == "public, max-age=5"
    hide_path = "/api/v1/hidden/run/alice/leak/1"
    assert site.served.request(hide_path, "PUT", {"why": "it has labels"}, token=admin_token).status == 204
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/leak" not in answer.body)
    browser.wait_for_response(piece, lambda answer: answer.status == 404)
    assert browser.request("/run/alice/leak/1").status == 404
    index_bytes = b"".join(path.read_bytes() for path in (site.served.folder / "boards" / "made").rglob("index.sqlite"))
    assert b"alice/leak" not in index_bytes


def find_first_piece(site: Site, browser: CookieClient) -> str:
    """Return the path of the current board's first piece of rows."""
    about = json.loads(re.search(r'id="about">(.*?)</script>', browser.load_page(site.board), re.DOTALL)[1])  # type: ignore[index]
    return f"{about['data']}{site.board.rpartition('/')[2]}-rows-0.json.gz"


def copy_first_run(site: Site, name: str) -> Bundle:
    """Return a copy of alice's first run under another name."""
    registry = Registry(VisibleReleases(site.server.database, site.server.blobs), DEFAULT_LIMITS)
    reference = parse_reference(FIRST)
    assert isinstance(reference, Reference)
    entry = registry.find(reference)
    release, _ = registry.read_manifest(entry)
    contents = {}
    for listed in release.files:
        with registry.open(entry, listed.path) as file:
            contents[listed.path] = file.read()
    return Bundle(replace(release, name=name), contents)


@pytest.mark.full
def test_temporary_page_error_is_not_cached(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be hidden, or the database busy, while the page is being built."""
    bundle = copy_first_run(site, "delayed")
    reference = bundle.release.reference
    monkeypatch.setattr("runner.server.web.pages.run_cache.RETRY_SECONDS", 0.01)
    pages = RunPageCache(site.served.settings)

    async def load_page() -> CachedPage:
        return await pages.get_or_build([reference], [bundle.sha256], ANYBODY, 60, requester="somebody")

    before = asyncio.run(load_page())
    assert "no run/alice/delayed@1" in str(before.content.wrong)
    assert not before.is_permanent
    insert_releases(site.server, [bundle])
    time.sleep(0.02)
    after = asyncio.run(load_page())
    assert after.is_permanent
    assert after.content.wrong is None


@pytest.mark.full
def test_delete_boards_removes_every_board_file(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path)
    paths = BoardPaths(settings)
    paths.boards.mkdir(parents=True)
    (paths.boards / ".half").mkdir()
    paths.current.write_text('{"name": "9-gone"}')
    delete_boards(settings)
    assert not paths.root.exists()


@pytest.mark.full
def test_server_killed_during_a_board_build_builds_it_completely_after_restart(tmp_path: Path) -> None:
    bundle = run_bundle(tmp_path / "played")
    folder = tmp_path / "server"
    for attempt in range(3):
        with run_server(folder, people=attempt == 0) as served:
            server = Service.open(Settings(folder=folder))
            insert_releases(server, [copy_bundle(bundle, owner="alice", name=f"run-{attempt}")])
            server.database.close()
            if attempt == 2:
                browser = CookieClient(served)
                home = browser.wait_for_response("/", lambda answer: b"alice/run-2" in answer.body).body.decode()
                board = next(part.split('"')[0] for part in home.split('href="') if part.startswith("/board/"))
                rows = json.loads(browser.request(f"{board}.json").body)["rows"]
                assert sorted(row["run"] for row in rows) == [f"alice/run-{n}@1" for n in range(3)]
            else:
                time.sleep(1.5 * (attempt + 1))
                served.kill()
    assert not list((folder / "boards" / "made").glob(".*"))
