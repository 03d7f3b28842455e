"""A server's pages in a browser: boards sort, filter and link; all of it by keys, and read without a script.

What strangers wrote does nothing, and nothing is asked of anybody else.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Opens
from tests.browser.test_accessibility import violations
from tests.support.browser import WatchedPage
from tests.support.demo_server import (
    ABSENT_PAGES,
    DEBATE_RUN,
    HOSTILE_RUN,
    PRIVATE_PAGES,
    DemoServer,
    run_demo_server,
    run_empty_server,
)
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment, wait_until

SECONDS = 60_000
"""Milliseconds for a page, on a machine with much else to do."""


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    with run_demo_server(tmp_path_factory.mktemp("served")) as there:
        yield there


def opened(watched: Opens, made: DemoServer, path: str, **options: Any) -> Any:
    """A page; whatever it asks of elsewhere is a problem of the test."""
    one = patient(watched, **options)
    one.open(f"{made.served.address}{path}", own=f"{made.served.address}/")
    return one.page


def patient(watched: Opens, **options: Any) -> WatchedPage:
    """A browser that waits for a page as long as a busy machine takes."""
    one = watched(**options)
    one.context.set_default_timeout(SECONDS)
    return one


def board_of(watched: Opens, made: DemoServer) -> Any:
    page = opened(watched, made, made.boards["claims/v1"])
    page.wait_for_selector("[data-live] tbody th.name")
    return page


def names(page: Any) -> list[str]:
    return list(page.locator("[data-live] tbody th.name a").all_inner_texts())


def test_a_permanent_link_has_what_was_sorted_searched_filtered_and_chosen(
    demo_server: DemoServer, watched: Opens
) -> None:
    page = board_of(watched, demo_server)
    everything = names(page)
    assert len(everything) == 6
    page.click("button[data-column='run']")
    assert names(page) == sorted(everything)
    page.fill("[aria-label='Search rows']", "alone")
    page.select_option("[aria-label='Protocol']", "solo_verifier")
    page.click("summary:has-text('Columns')")
    page.uncheck("label:has-text('Cost') input")
    shown, heads = names(page), page.locator("[data-live] thead th").all_inner_texts()
    assert shown == [one for one in sorted(everything) if "alone" in one]
    assert "Cost" not in heads
    link = page.get_attribute("a[data-permanent]", "href")
    elsewhere = opened(watched, demo_server, f"{demo_server.boards['claims/v1']}{link}")
    elsewhere.wait_for_selector("[data-live] tbody th.name")
    assert (names(elsewhere), elsewhere.locator("[data-live] thead th").all_inner_texts()) == (shown, heads)
    assert elsewhere.input_value("[aria-label='Search rows']") == "alone"


def test_a_board_has_all_that_is_to_be_known_of_a_row(demo_server: DemoServer, watched: Opens) -> None:
    heads = ["Rank", "Run", "Accuracy, 95 %", "n", "Checked", "Protocol", "Models", "Outcomes", "Cost", "Finished",
             "Owner's runs", "Marks"]  # fmt: skip
    board = demo_server.boards["claims/v1"]
    for options in ({}, {"java_script_enabled": False}):
        page = opened(watched, demo_server, board, **options)
        page.wait_for_selector("table.board:visible tbody th.name")
        told = [text for text in page.locator("table.board:visible thead th").all_inner_texts() if text[:1].isalpha()]
        assert told == heads
        rows = dict(
            zip(
                page.locator("table.board:visible tbody th.name a").all_inner_texts(),
                page.locator("table.board:visible tbody tr").all_inner_texts(),
                strict=True,
            )
        )
        assert "4 games per datapoint" in rows["bob/mouse-four-times@1"]
        assert "reproduced by 1" in rows["acme/hawk-alone@1"]
        assert "bob/mole@1" not in rows  # yanked
        trained = opened(watched, demo_server, demo_server.boards["code-validation/v1"], **options)
        trained.wait_for_selector("table.board:visible tbody th.name")
        assert trained.locator("th:visible:has-text('Trained on')").count() == (
            1 if "learns-t3" in trained.inner_text("main") else 0
        )
    rows = json.loads(demo_server.served.request(f"{board}.json").body)["rows"]
    told = list(csv.DictReader(demo_server.served.request(f"{board}.csv").body.decode().splitlines()))
    assert [row["release"] for row in rows] == [row["release"] for row in told]
    assert {(row["rank"], row["rank_last"]) for row in rows} != {(place + 1, place + 1) for place in range(len(rows))}


def test_a_row_leads_to_its_run_and_that_to_a_game_and_back(demo_server: DemoServer, watched: Opens) -> None:
    page = board_of(watched, demo_server)
    page.click("[data-live] a:text-is('acme/owl-debate@1')")
    page.wait_for_url("**/run/acme/owl-debate/1")
    page.click("nav.within a:has-text('Get and reproduce')")  # a place on the page
    assert page.locator("#get").is_visible()
    page.click("a:has-text('Games (120)')")
    page.click("table.games tbody a >> nth=0")
    page.wait_for_selector(".game")
    assert page.locator(".turn").count() > 1
    for _ in range(2):
        page.go_back()
    assert page.locator("#get").is_visible()


def test_all_of_a_page_is_reached_by_keys_in_the_order_in_which_it_stands(
    demo_server: DemoServer, watched: Opens
) -> None:
    reached = """() => { const one = document.activeElement, box = one.getBoundingClientRect();
      const style = getComputedStyle(one);
      return [one === document.body ? null : [...document.querySelectorAll('*')].indexOf(one),
        style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2, box.width > 0 && box.height > 0]; }"""
    all_of_it = """() => [...document.querySelectorAll('a[href], button:not([disabled]), input:not([type=hidden]),'
      + 'select, summary, [tabindex="0"]')].filter((one) => one.checkVisibility()).length"""
    for path in (demo_server.boards["claims/v1"], "/run/acme/hawk-alone/1", "/", "/login"):
        page = opened(watched, demo_server, path)
        page.wait_for_load_state("networkidle")
        count = page.evaluate(all_of_it)
        places: list[int] = []
        while len(places) < count + 5:
            page.keyboard.press("Tab")
            place, is_outlined, is_there = page.evaluate(reached)
            if place is None:
                break
            assert is_outlined, (path, page.evaluate("document.activeElement.outerHTML"))
            assert is_there, (path, page.evaluate("document.activeElement.outerHTML"))
            places.append(place)
        assert places == sorted(places), path
        assert len(places) == count, path


def test_a_board_is_searched_and_a_run_opened_by_keys_alone(demo_server: DemoServer, watched: Opens) -> None:
    page = board_of(watched, demo_server)
    page.keyboard.press("/")
    page.keyboard.type("owl-debate")
    assert names(page) == ["acme/owl-debate@1"]
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "/run/acme/owl-debate/1":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/acme/owl-debate/1")


def test_what_strangers_wrote_does_nothing(demo_server: DemoServer, watched: Opens) -> None:
    paths = ["/", "/owner/mallory", HOSTILE_RUN, "/search?q=evil", "/run/mallory/evil", *demo_server.boards.values()]
    for path in paths:
        page = opened(watched, demo_server, path)
        page.wait_for_load_state("networkidle")
        assert page.title() != "taken"
        assert page.locator("main img, main script, a[href*='evil.example']").count() == 0
        assert "\u202e" not in page.inner_text("body")
    page = opened(watched, demo_server, HOSTILE_RUN)
    page.click("a:has-text('Games (12)')")
    page.click("table.games tbody a >> nth=0")
    page.wait_for_selector(".game")
    assert page.title() != "taken"
    assert page.locator("main img, main script, a[href*='evil.example']").count() == 0


def test_every_page_is_read_without_a_script(demo_server: DemoServer, watched: Opens) -> None:
    for name, path in demo_server.pages.items():
        page = opened(watched, demo_server, path, java_script_enabled=False)
        assert page.locator("h1").inner_text().strip(), name
        assert page.locator("main").inner_text().strip(), name
        assert page.locator("[hidden]:not(#view)").count() == 0, name
    page = opened(watched, demo_server, "/run/acme/learns/1", java_script_enabled=False)
    for heading in ("Get and reproduce", "Learning curve", "Lineage", "Parameters"):
        assert page.locator(f"h2:text-is('{heading}')").is_visible()
    page = opened(watched, demo_server, "/run/acme/learns-t3/1", java_script_enabled=False)
    assert page.locator("h3:text-is('Learning curve') + figure svg").is_visible()
    page = opened(watched, demo_server, "/run/acme/hawk-alone/1", java_script_enabled=False)
    for heading in ("Metrics", "Reproductions"):
        assert page.locator(f"h2:text-is('{heading}')").is_visible()
    assert "c0" in page.inner_text("section.unscripted")  # its first games


def test_every_game_is_read_without_a_script(demo_server: DemoServer, watched: Opens) -> None:
    for start, count in ((DEBATE_RUN, 120), (HOSTILE_RUN, 12)):
        page = opened(watched, demo_server, start, java_script_enabled=False)
        page.click("a:text-is('All games')")
        assert page.locator("tbody tr").count() == min(count, 100)
        page.click("tbody a >> nth=0")
        assert page.locator("article.turn").count() > 1
        assert page.locator("article.turn .text").first.inner_text().strip()
        page.click("a[rel='next']")
        page.click("nav.where a:text-is('Games')")
        assert page.url.endswith("/games?part=1")
        assert page.locator("main img, main script, a[href*='evil.example']").count() == 0
    page = opened(watched, demo_server, f"{DEBATE_RUN}/games?part=2", java_script_enabled=False)
    assert page.locator("tbody tr").count() == 20
    for path in (
        f"{DEBATE_RUN}/game/121",
        f"{DEBATE_RUN}/games?part=3",
        "/run/acme/learns/1/games",
        "/run/bob/secret-mole/1/games",
    ):
        assert demo_server.served.request(path).status == 404, path


def test_no_script_but_the_servers_own_runs_on_any_page(demo_server: DemoServer, watched: Opens) -> None:
    planted = """() => new Promise((told) => {
      addEventListener('securitypolicyviolation', (one) => told(one.effectiveDirective));
      const one = document.createElement('script');
      one.textContent = 'document.title = "taken"'; document.body.append(one);
      setTimeout(() => told(document.title), 20000); })"""
    one = patient(watched)
    one.open(f"{demo_server.served.address}/", own=f"{demo_server.served.address}/")
    for path in ("/", demo_server.boards["claims/v1"], HOSTILE_RUN, "/login", "/nowhere"):
        one.page.goto(f"{demo_server.served.address}{path}")
        assert one.page.evaluate(planted) == "script-src-elem", path
    assert one.problems  # the browser says so, each time
    assert not [problem for problem in one.problems if not problem.startswith("console error")]
    one.problems.clear()


def test_what_goes_wrong_is_a_page_for_people_and_a_fault_for_programs(demo_server: DemoServer, watched: Opens) -> None:
    one = patient(watched)
    for path in ABSENT_PAGES.values():
        one.open(f"{demo_server.served.address}{path}", own=f"{demo_server.served.address}/")
        assert one.page.locator("h1").inner_text() == "Page not found"
        assert one.page.locator("a[href='/']").count() > 0
    assert not [problem for problem in one.problems if "status of 404" not in problem]
    one.problems.clear()
    said = demo_server.served.request("/nowhere")
    assert (said.status, said.json["code"]) == (404, "missing")
    answer = demo_server.served.request("/nowhere", Accept="text/html")
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert (
        demo_server.served.request("/api/v1/nowhere", Accept="text/html").headers["content-type"] == "application/json"
    )


def test_who_signs_in_sees_what_is_private_and_signs_out(demo_server: DemoServer, watched: Opens) -> None:
    page = opened(watched, demo_server, "/")
    page.click("text=Sign in")
    page.fill("#token", demo_server.served.tokens["bob-reads"])
    page.keyboard.press("Enter")
    page.click("text=bob/secret-mole@1")
    page.wait_for_selector("text=Shown only to the accounts of bob.")
    page.click("button:has-text('Sign out')")
    page.wait_for_url(f"{demo_server.served.address}/")
    page.goto(f"{demo_server.served.address}/mine")
    assert page.url.endswith("/login")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_on_any_page(
    demo_server: DemoServer, watched: Opens, axe: str, width: int, scheme: str
) -> None:
    one = patient(watched, viewport={"width": width, "height": 900}, color_scheme=scheme)
    one.context.add_cookies(demo_server.sign_in_cookies("bob"))
    for name, path in {**demo_server.pages, **ABSENT_PAGES, **PRIVATE_PAGES}.items():
        one.open(f"{demo_server.served.address}{path}", own=f"{demo_server.served.address}/")
        one.page.wait_for_load_state("networkidle")
        assert violations(one.page, axe) == [], name
        assert one.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
    one.problems[:] = [problem for problem in one.problems if "status of 404" not in problem]


def test_a_server_without_a_release_says_so(watched: Opens, tmp_path: Path, axe: str) -> None:
    with run_empty_server(tmp_path) as served:
        page = patient(watched).open(f"{served.address}/", own=f"{served.address}/")
        assert page.locator("text=No benchmark run is published on this server yet.").is_visible()
        assert "nip-run publish RUN" in page.inner_text("main")
        assert violations(page, axe) == []


def commands(page: Any) -> list[str]:
    return list(page.locator("h2#get + dl.commands code").all_inner_texts())


def test_the_commands_of_a_page_work_as_they_stand_in_a_shell_elsewhere(
    demo_server: DemoServer, watched: Opens, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nip-run"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m runner "$@"\n', "utf-8")
    program.chmod(0o755)
    said = environment(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    said["PATH"] = f"{tmp_path / 'bin'}:{said['PATH']}"
    for path in ("/run/bob/quick-a/1", "/prompts/acme/plain-claims"):
        lines = commands(opened(watched, demo_server, path))
        assert len(lines) == (4 if path.startswith("/run/") else 2)
        for line in lines:
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=tmp_path,
                env=said,
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
                check=False,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
    wait_until((tmp_path / "quick-a" / "data" / "journal.jsonl").is_file)
