"""A server's pages over HTTP: what anybody reads, what nobody but the owners does, and what strangers wrote in them."""

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
ALICE, AGAIN = "run/alice/first@1", "run/mallory/again@1"


@dataclass(frozen=True)
class Site:
    """A server with a few releases."""

    served: ServerProcess
    server: Service
    board: str
    """Of the first page's only task."""

    def browser(self) -> CookieClient:
        return CookieClient(self.served)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("pages")
    bundle = run_bundle(folder / "played", question=HOSTILE, models={"m": {"model": HOSTILE}})
    first = copy_bundle(bundle, owner="alice", name="first", description=HOSTILE)
    link = ReleaseLink(role="reproduces", release=ALICE, sha256=first.sha256)
    with run_server(folder / "server") as served:
        server = Service.open(Settings(folder=folder / "server"))
        again = copy_bundle(bundle, owner="mallory", name="again", links=(link,))
        secret = copy_bundle(bundle, owner="alice", name="hush-hush", visibility="private")
        insert_releases(server, [first, again, secret])
        home = CookieClient(served).wait_for_response("/", lambda answer: b"/board/" in answer.body).body.decode()
        found = re.search(r'href="(/board/[0-9a-f]{12})"', home)
        assert found is not None
        yield Site(served, server, found[1])
        server.database.close()


def walked(browser: CookieClient, *starts: str) -> dict[str, str]:
    """Every page that can be reached from some, by its address; each link of each leads somewhere."""
    seen: dict[str, str] = {}
    waiting = list(starts)
    while waiting:
        path = waiting.pop().partition("#")[0]
        if path in seen or path.startswith("/logout"):
            continue
        assert is_same_server(path), path
        answer = browser.wait_for_response(path, lambda found: found.status != 503)
        assert answer.status in (200, 303), (path, answer.status)
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        seen[path] = answer.body.decode() if is_page else ""
        waiting += LinkParser(seen[path]).paths if is_page else []
        waiting += [answer.headers["location"]] if answer.status == 303 else []
    return seen


@pytest.mark.full
def test_every_link_of_every_page_leads_to_a_page_of_the_same_server(site: Site) -> None:
    seen = walked(site.browser(), "/", "/search?q=first", "/compare/alice/first/1/mallory/again/1")
    assert {
        site.board,
        f"{site.board}.json",
        f"{site.board}.csv",
        "/board.duckdb",
        "/run/alice/first/1",
        "/login",
    } <= set(seen)
    assert {"/owner/alice", "/owner/mallory"} <= set(seen)


@pytest.mark.gate
def test_a_private_run_is_on_no_page_file_or_count_that_a_stranger_can_reach(site: Site) -> None:
    browser = site.browser()
    seen = walked(browser, "/", "/search?q=hush", "/owner/alice")
    files = [
        gzip.decompress(browser.request(path, Accept_Encoding="gzip").body)
        for path in (f"{site.board}.json", f"{site.board}.csv")
    ]
    files.append(browser.request("/board.duckdb").body)
    assert "hush-hush" not in "".join(seen.values())
    assert not [data for data in files if b"hush" in data]
    for path in ("/run/alice/hush-hush/1", "/run/alice/hush-hush", "/run/alice/nowhere/1"):
        answers = {
            (answer.status, answer.body) for answer in (browser.request(path), browser.request("/run/alice/nothing/1"))
        }
        assert {status for status, _ in answers} == {404}
    assert "1 public release<" in seen["/owner/alice"].replace("1 public release\n", "1 public release<")


@pytest.mark.gate
def test_what_strangers_wrote_is_text_on_every_page(site: Site) -> None:
    seen = walked(site.browser(), "/", "/search?q=first", "/run/alice/first/1")
    assert any("&lt;script&gt;document.title" in html for html in seen.values())
    for path, html in seen.items():
        tags = LinkParser(html).tags
        inline = [
            said
            for tag, said in tags
            if tag == "script" and "src" not in said and said.get("type") != "application/json"
        ]
        assert not inline, path
        assert not [said for tag, said in tags if tag == "img" or any(name.startswith("on") for name in said)], path
        assert not [said for _, said in tags if "style" in said], path
        assert "\u202e" not in html, path


def test_pages_forbid_what_they_do_not_need_and_public_ones_may_be_kept(site: Site) -> None:
    browser = site.browser()
    for path in ("/", site.board, "/run/alice/first/1"):
        answer = browser.wait_for_response(path, lambda found: found.status == 200)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"].startswith("public")
        assert browser.request(path, If_None_Match=answer.headers["etag"]).status == 304
        assert browser.request(path, method="HEAD").status == 200
        packed = browser.request(path, Accept_Encoding="gzip")
        assert gzip.decompress(packed.body) == answer.body
        assert packed.headers["etag"] != answer.headers["etag"]
    static = re.search(r'src="(/static/[0-9a-f]+\.js)"', browser.load_page("/"))
    assert static is not None
    assert "immutable" in browser.request(static[1]).headers["cache-control"]


def test_a_row_says_how_far_it_is_checked_and_how_often_its_owner_tried(site: Site) -> None:
    rows = json.loads(site.browser().request(f"{site.board}.json").body)["rows"]
    assert {row["release"]: (row["tier"], row["owner_runs"]) for row in rows} == {
        ALICE: ("recomputed", 1), AGAIN: ("recomputed", 1)
    }  # fmt: skip
    told = list(csv.DictReader(io.StringIO(site.browser().request(f"{site.board}.csv").body.decode())))
    assert [row["release"] for row in told] == [row["release"] for row in rows]
    with site.served.registry() as registry:
        assert {str(one.reference): one.tier for one in registry.entries()} == {
            ALICE: "recomputed", AGAIN: "recomputed"
        }  # fmt: skip
    page = site.browser().load_page("/run/alice/first/1")
    # The very same answers are no second play, whoever sends them.
    assert "Reproductions" in page
    assert "reproduced by" not in page


@pytest.mark.full
def test_commands_say_what_the_server_vouches_for_and_that_it_is_the_server_that_says_so(
    site: Site, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    where = ("--from", site.served.address)
    listed = nip_run("leaderboard", *where, "--json", cwd=tmp_path, XDG_CACHE_HOME=cache)
    assert listed.returncode == 0, listed.stderr
    rows = json.loads(listed.stdout)["rows"]
    assert {row["tier"] for row in rows} == {"recomputed"}
    shown = nip_run("leaderboard", *where, cwd=tmp_path, XDG_CACHE_HOME=cache)
    assert f"recomputed: {site.served.address} says" in " ".join(shown.stderr.split())
    got = nip_run("get", "alice/first@1", "mine", *where, cwd=tmp_path)
    assert f"recomputed, says {site.served.address}" in got.stdout
    checked = nip_run("verify", "alice/first@1", *where, cwd=tmp_path)
    assert f"recomputed, says {site.served.address}; the following was checked locally" in checked.stderr


def test_the_board_is_one_duckdb_file_as_the_page_has_it(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "board.duckdb"
    path.write_bytes(site.browser().request("/board.duckdb").body)
    with duckdb.connect(str(path), read_only=True) as file:
        told = file.execute("SELECT release, tier, accuracy, lost, undecided FROM runs ORDER BY place").fetchall()
        kinds = file.execute("SELECT DISTINCT kind FROM releases").fetchall()
    rows = json.loads(site.browser().request(f"{site.board}.json").body)["rows"]
    assert told == [tuple(row[name] for name in ("release", "tier", "accuracy", "lost", "undecided")) for row in rows]
    assert None not in told[0]
    assert kinds == [("run",)]


def test_a_page_of_a_run_says_how_to_get_it_and_has_its_games(site: Site) -> None:
    html = site.browser().load_page("/run/alice/first/1")
    assert "nip-run get run/alice/first@1 --from" in html
    assert "nip-run reproduce run/alice/first@1 --fresh" in html
    assert "parameters.yaml" in html
    about = json.loads(re.search(r'id="about">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]
    games = site.browser().request(f"{about['data']}r0-games-0.json.gz")
    assert games.status == 200
    assert len(json.loads(gzip.decompress(games.body))["games"]) == 12


def test_a_private_run_is_shown_to_its_owner_who_signs_in_and_never_kept(site: Site) -> None:
    browser = site.browser()
    assert browser.request("/mine").headers["location"] == "/login"
    assert browser.sign_in(site.served.tokens["alice-reads"]).status == 303
    assert "hush-hush" in browser.load_page("/mine")
    # Its address without /mine is mailed round; nobody else learns from it that there is such a run.
    at = browser.request("/run/alice/hush-hush/1")
    assert (at.status, at.headers["location"]) == (303, "/mine/run/alice/hush-hush/1")
    assert (at.headers["cache-control"], browser.request("/run/alice/nothing/1").status) == ("private, no-store", 404)
    answer = browser.wait_for_response("/mine/run/alice/hush-hush/1", lambda found: found.status == 200)
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


def test_a_cookie_is_for_pages_alone_and_ends_with_signing_out(site: Site) -> None:
    browser = site.browser()
    browser.sign_in(site.served.tokens["alice"])
    said = next(one for one in browser.set_cookie_headers if one.startswith("nip-run-session"))
    assert "HttpOnly" in said
    assert "SameSite=strict" in said
    assert not [name for name, value in browser.cookies.items() if site.served.tokens["alice"] in value]
    assert browser.request("/api/v1/tree/run/alice/hush-hush/1/release.json").status == 404
    kept = dict(browser.cookies)
    assert browser.request("/logout", {"word": "another"}).status == 403
    assert (
        browser.request(
            "/logout", {"word": find_form_token(browser.load_page("/mine"))}, Origin="http://evil.example"
        ).status
        == 403
    )
    assert "hush-hush" in browser.load_page("/mine")
    assert browser.request("/logout", {"word": find_form_token(browser.load_page("/mine"))}).status == 303
    assert CookieClient(site.served, kept).request("/mine").status == 303


@pytest.mark.parametrize("token", ["", "nip_aaaaaaaaaaaa_" + "a" * 43, "x" * 5_000])
def test_a_token_that_is_none_signs_nobody_in(site: Site, token: str) -> None:
    assert site.browser().sign_in(token).status in (401, 403)


def test_a_form_from_elsewhere_signs_nobody_in(site: Site) -> None:
    browser, token = site.browser(), site.served.tokens["alice"]
    word = find_form_token(browser.load_page("/login"))
    assert browser.request("/login", {"word": word, "token": token}, Origin="http://evil.example").status == 403
    assert browser.request("/login", {"word": "guessed", "token": token}).status == 403
    assert CookieClient(site.served).request("/login", {"word": "", "token": token}).status == 403


@pytest.mark.parametrize(
    "path",
    ["/board/" + "0" * 12, "/board/..%2f..%2fregistry", "/static/../app.py", "/boards/x/y.json.gz", "/run/a/b/c",
     "/owner/nobody", "/prompts/a/b", "/compare/a/b/1/c/d/1", "/run/alice/first/1/data/..%2fpage.json.gz"],
)  # fmt: skip
def test_what_is_not_there_is_no_page(site: Site, path: str) -> None:
    assert site.browser().request(path).status == 404


@pytest.mark.full
def test_a_yanked_run_leaves_the_board_and_keeps_its_page(site: Site) -> None:
    reference = parse_reference("run/alice/gone@1")
    assert isinstance(reference, Reference)
    insert_releases(site.server, [run_copy(site, "gone")])
    browser = site.browser()
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/gone" in answer.body)
    piece = piece_of(site, browser)
    assert b"alice/gone" in gzip.decompress(browser.request(piece).body)
    with site.served.registry("alice") as registry:
        registry.yank(reference, "it was played with the wrong key")
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/gone" not in answer.body)
    assert "wrong key" in browser.load_page("/run/alice/gone/1")
    browser.wait_for_response(piece, lambda answer: answer.status == 404)


@pytest.mark.full
def test_boards_of_before_answer_until_something_of_them_is_hidden(site: Site) -> None:
    browser, keeper = site.browser(), site.served.tokens["keeper"]
    insert_releases(site.server, [run_copy(site, "leak")])
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/leak" in answer.body)
    piece = piece_of(site, browser)
    insert_releases(site.server, [run_copy(site, "later")])
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/later" in answer.body)
    assert piece != piece_of(site, browser)
    assert (kept := browser.request(piece)).status == 200
    assert kept.headers["cache-control"] == "public, max-age=5"
    where = "/api/v1/hidden/run/alice/leak/1"
    assert site.served.request(where, "PUT", {"why": "it has labels"}, token=keeper).status == 204
    browser.wait_for_response(f"{site.board}.csv", lambda answer: b"alice/leak" not in answer.body)
    browser.wait_for_response(piece, lambda answer: answer.status == 404)
    assert browser.request("/run/alice/leak/1").status == 404
    left = b"".join(path.read_bytes() for path in (site.served.folder / "boards" / "made").rglob("index.sqlite"))
    assert b"alice/leak" not in left


def piece_of(site: Site, browser: CookieClient) -> str:
    """The first rows of the board as its script asks for them: by the name of the board as it is now."""
    about = json.loads(re.search(r'id="about">(.*?)</script>', browser.load_page(site.board), re.DOTALL)[1])  # type: ignore[index]
    return f"{about['data']}{site.board.rpartition('/')[2]}-rows-0.json.gz"


def run_copy(site: Site, name: str) -> Bundle:
    """Alice's run as the server has it, under another name."""
    registry = Registry(VisibleReleases(site.server.database, site.server.blobs), DEFAULT_LIMITS)
    found = parse_reference(ALICE)
    assert isinstance(found, Reference)
    entry = registry.find(found)
    release, _ = registry.read_manifest(entry)
    contents = {file.path: registry.read_file(entry, release, file.path, 1 << 26) for file in release.files}
    return Bundle(replace(release, name=name), contents)


@pytest.mark.full
def test_what_cannot_be_shown_for_a_while_is_not_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a run is hidden, or the database is busy, just when its page is made."""
    bundle = run_copy(site, "delayed")
    reference = bundle.release.reference
    monkeypatch.setattr("runner.server.web.pages.run_cache.RETRY_SECONDS", 0.01)
    pages = RunPageCache(site.served.settings)

    async def asked() -> CachedPage:
        return await pages.get_or_build([reference], [bundle.sha256], ANYBODY, 60, requester="somebody")

    before = asyncio.run(asked())
    assert "no run/alice/delayed@1" in str(before.content.wrong)
    assert not before.is_permanent
    insert_releases(site.server, [bundle])
    time.sleep(0.02)
    after = asyncio.run(asked())
    assert after.is_permanent
    assert after.content.wrong is None


@pytest.mark.full
def test_boards_are_made_again_from_the_database_and_the_blobs(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path)
    places = BoardPaths(settings)
    places.boards.mkdir(parents=True)
    (places.boards / ".half").mkdir()
    places.current.write_text('{"name": "9-gone"}')
    delete_boards(settings)
    assert not places.root.exists()


@pytest.mark.full
def test_a_server_that_is_killed_while_it_makes_a_board_makes_it_whole_the_next_time(tmp_path: Path) -> None:
    bundle = run_bundle(tmp_path / "played")
    folder = tmp_path / "server"
    for turn in range(3):
        with run_server(folder, people=turn == 0) as served:
            server = Service.open(Settings(folder=folder))
            insert_releases(server, [copy_bundle(bundle, owner="alice", name=f"run-{turn}")])
            server.database.close()
            if turn == 2:
                browser = CookieClient(served)
                home = browser.wait_for_response("/", lambda answer: b"alice/run-2" in answer.body).body.decode()
                board = next(part.split('"')[0] for part in home.split('href="') if part.startswith("/board/"))
                rows = json.loads(browser.request(f"{board}.json").body)["rows"]
                assert sorted(row["run"] for row in rows) == [f"alice/run-{n}@1" for n in range(3)]
            else:
                time.sleep(1.5 * (turn + 1))
                served.kill()
    assert not list((folder / "boards" / "made").glob(".*"))
