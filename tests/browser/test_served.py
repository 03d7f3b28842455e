"""A server's pages in a browser: a board sorts, filters and leads to runs; what strangers wrote does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from runner.server.service import Server
from runner.server.settings import Settings
from tests.browser.conftest import Opens
from tests.support.browsing import Browsing
from tests.support.served import copy_of, put, run_bundle
from tests.support.serving import Served, serving

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\u202e https://evil.example/"

AXE = """axe.run().then((done) => done.violations.map(
  (one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))]))"""


@dataclass(frozen=True)
class Site:
    served: Served
    board: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("served")
    plain = run_bundle(folder / "plain", seed=1)
    hostile = run_bundle(folder / "hostile", seed=2, question=HOSTILE, models={"m": {"model": HOSTILE}})
    same = [copy_of(plain, owner=f"group{n}", name=f"run-{n}") for n in range(3)]
    with serving(folder / "server") as served:
        server = Server.of(Settings(folder=folder / "server"))
        put(server, [*same, copy_of(hostile, owner="mallory", name="evil", description=HOSTILE)])
        put(server, [copy_of(plain, owner="alice", name="own", visibility="private")])
        server.database.close()
        browser = Browsing(served)
        home = browser.once("/", lambda answer: b"mallory/evil" in answer.body).body.decode()
        board = next(part.split('"')[0] for part in home.split('href="') if part.startswith("/board/"))
        boards = {part.split('"')[0] for part in home.split('href="') if part.startswith("/board/")}
        lists = {path: browser.page(path) for path in boards - {"/board.duckdb"}}
        board = next(path for path, html in lists.items() if "group1/run-1" in html)
        for path in ("/run/group1/run-1/1", "/run/mallory/evil/1", "/compare/group1/run-1/1/group2/run-2/1"):
            browser.page(path)
        browser.sign_in(served.tokens["alice-reads"])
        browser.page("/mine/run/alice/own/1")  # made once, which takes a while
        yield Site(served, board)


def opened(watched: Opens, site: Site, path: str, **options: Any) -> Any:
    one = watched(**options)
    one.open(f"{site.served.address}/")  # whatever is asked of elsewhere is a problem from now on
    one.page.goto(f"{site.served.address}{path}")
    return one.page


def names(page: Any) -> list[str]:
    cells = page.locator("[data-live] tbody th.name:visible")
    return [text.lstrip("+− ").split("\n")[0].strip() for text in cells.all_inner_texts()]


def test_a_board_sorts_filters_and_keeps_both_in_its_address(site: Site, watched: Opens) -> None:
    page = opened(watched, site, site.board)
    page.wait_for_selector("[data-live] tbody th.name")
    everything = names(page)
    page.fill("[aria-label='Search rows']", "run-2")
    assert names(page) == ["group2/run-2@1"]
    page.fill("[aria-label='Search rows']", "")
    page.click("button[data-column='run']")
    assert names(page) == sorted(everything)
    address = page.url
    page.goto(address)
    page.reload()
    page.wait_for_selector("[data-live] tbody th.name")
    assert names(page) == sorted(everything)


def test_a_row_leads_to_its_run_and_that_to_a_game(site: Site, watched: Opens) -> None:
    page = opened(watched, site, site.board)
    page.click("[data-live] >> text=group1/run-1@1")
    page.wait_for_url("**/run/group1/run-1/1")
    page.click("a:has-text('Games (12)')")
    page.click("table.games tbody a >> nth=0")
    page.wait_for_selector(".game")
    assert page.locator(".turn").count() > 0


def test_a_board_is_used_by_keys_alone(site: Site, watched: Opens) -> None:
    page = opened(watched, site, site.board)
    page.wait_for_selector("[data-live] tbody th.name")
    page.keyboard.press("/")
    page.keyboard.type("run-2")
    assert names(page) == ["group2/run-2@1"]
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "/run/group2/run-2/1":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/group2/run-2/1")


def test_what_strangers_wrote_does_nothing(site: Site, watched: Opens) -> None:
    for path in ("/", "/owner/mallory", "/run/mallory/evil/1", "/search?q=evil"):
        page = opened(watched, site, path)
        page.wait_for_load_state("networkidle")
        assert page.title() != "taken"
        assert page.locator("main img, main script").count() == 0
        assert page.locator("a[href*='evil.example']").count() == 0
    page = opened(watched, site, "/run/mallory/evil/1")
    page.click("a:has-text('Games (12)')")
    page.click("table.games tbody a >> nth=0")
    page.wait_for_selector(".game")
    assert page.title() != "taken"
    assert page.locator("main img, main script, a[href*='evil.example']").count() == 0


def test_all_of_it_is_read_without_a_script(site: Site, watched: Opens) -> None:
    page = opened(watched, site, site.board, java_script_enabled=False)
    assert page.locator("tbody th.name:visible").count() >= 3
    page.click("tbody th.name a:has-text('group1/run-1@1')")
    page.wait_for_url("**/run/group1/run-1/1")
    assert page.locator("text=Get and reproduce").is_visible()
    assert page.locator("text=nip-run get run/group1/run-1@1").is_visible()


def test_an_owner_signs_in_and_out(site: Site, watched: Opens) -> None:
    page = opened(watched, site, "/mine")
    page.fill("#token", site.served.tokens["alice-reads"])
    page.click("button:has-text('Sign in')")
    page.click("text=alice/own@1")
    page.wait_for_selector("text=Shown to the accounts of alice alone.")
    page.click("button:has-text('Sign out')")
    page.wait_for_url(f"{site.served.address}/")
    page.goto(f"{site.served.address}/mine")
    assert page.url.endswith("/login")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(site: Site, watched: Opens, axe: str, width: int, scheme: str) -> None:
    paths = ["/", site.board, "/run/group1/run-1/1", "/run/mallory/evil/1", "/run/group1/run-1", "/owner/group1",
             "/search?q=run", "/login", "/compare/group1/run-1/1/group2/run-2/1"]  # fmt: skip
    for path in paths:
        page = opened(watched, site, path, viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.wait_for_load_state("networkidle")
        page.evaluate(axe)
        found = page.evaluate(AXE)
        assert found == [], (path, found)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
