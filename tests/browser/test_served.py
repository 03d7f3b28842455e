"""The server's pages in a browser: sorting, filters, links, keyboard use, and reading without JavaScript.

Hostile texts have no effect, and no page sends requests to other hosts.
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

from tests.browser.conftest import PageOpener
from tests.browser.test_accessibility import find_violations
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

PAGE_TIMEOUT_MS = 60_000
"""Timeout of a page, in milliseconds, for busy machines."""


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    with run_demo_server(tmp_path_factory.mktemp("served")) as server:
        yield server


def load_page(open_watched: PageOpener, demo: DemoServer, path: str, **options: Any) -> Any:
    """Load a page; a request to another host fails the test."""
    watched_page = open_patiently(open_watched, **options)
    watched_page.open(f"{demo.served.address}{path}", own=f"{demo.served.address}/")
    return watched_page.page


def open_patiently(open_watched: PageOpener, **options: Any) -> WatchedPage:
    """Open a browser page with a timeout for busy machines."""
    watched_page = open_watched(**options)
    watched_page.context.set_default_timeout(PAGE_TIMEOUT_MS)
    return watched_page


def load_board(open_watched: PageOpener, demo: DemoServer) -> Any:
    page = load_page(open_watched, demo, demo.boards["claims/v1"])
    page.wait_for_selector("[data-live] tbody th.name")
    return page


def list_row_names(page: Any) -> list[str]:
    return list(page.locator("[data-live] tbody th.name a").all_inner_texts())


def test_permanent_link_restores_sorting_search_filters_and_columns(
    demo_server: DemoServer, open_watched: PageOpener
) -> None:
    page = load_board(open_watched, demo_server)
    all_names = list_row_names(page)
    assert len(all_names) == 6
    page.click("button[data-column='run']")
    assert list_row_names(page) == sorted(all_names)
    page.fill("[aria-label='Search rows']", "alone")
    page.select_option("[aria-label='Protocol']", "solo_verifier")
    page.click("summary:has-text('Columns')")
    page.uncheck("label:has-text('Cost') input")
    names_shown, headings = list_row_names(page), page.locator("[data-live] thead th").all_inner_texts()
    assert names_shown == [name for name in sorted(all_names) if "alone" in name]
    assert "Cost" not in headings
    link = page.get_attribute("a[data-permanent]", "href")
    linked_page = load_page(open_watched, demo_server, f"{demo_server.boards['claims/v1']}{link}")
    linked_page.wait_for_selector("[data-live] tbody th.name")
    assert (list_row_names(linked_page), linked_page.locator("[data-live] thead th").all_inner_texts()) == (
        names_shown,
        headings,
    )
    assert linked_page.input_value("[aria-label='Search rows']") == "alone"


def test_board_has_all_columns_with_and_without_javascript(demo_server: DemoServer, open_watched: PageOpener) -> None:
    headings = ["Rank", "Run", "Accuracy, 95 %", "n", "Checked", "Protocol", "Models", "Outcomes", "Cost", "Finished",
             "Owner's runs", "Marks"]  # fmt: skip
    board = demo_server.boards["claims/v1"]
    for options in ({}, {"java_script_enabled": False}):
        page = load_page(open_watched, demo_server, board, **options)
        page.wait_for_selector("table.board:visible tbody th.name")
        shown_headings = [
            text for text in page.locator("table.board:visible thead th").all_inner_texts() if text[:1].isalpha()
        ]
        assert shown_headings == headings
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
        training_board = load_page(open_watched, demo_server, demo_server.boards["code-validation/v1"], **options)
        training_board.wait_for_selector("table.board:visible tbody th.name")
        assert training_board.locator("th:visible:has-text('Trained on')").count() == (
            1 if "learns-t3" in training_board.inner_text("main") else 0
        )
    rows = json.loads(demo_server.served.request(f"{board}.json").body)["rows"]
    shown_headings = list(csv.DictReader(demo_server.served.request(f"{board}.csv").body.decode().splitlines()))
    assert [row["release"] for row in rows] == [row["release"] for row in shown_headings]
    assert {(row["rank"], row["rank_last"]) for row in rows} != {(index + 1, index + 1) for index in range(len(rows))}


def test_links_lead_from_a_board_row_to_its_run_to_a_game_and_back(
    demo_server: DemoServer, open_watched: PageOpener
) -> None:
    page = load_board(open_watched, demo_server)
    page.click("[data-live] a:text-is('acme/owl-debate@1')")
    page.wait_for_url("**/run/acme/owl-debate/1")
    page.click("nav.within a:has-text('Get and reproduce')")  # an anchor on the page
    assert page.locator("#get").is_visible()
    page.click("a:has-text('Games (120)')")
    page.click("table.games tbody a >> nth=0")
    page.wait_for_selector(".game")
    assert page.locator(".turn").count() > 1
    for _ in range(2):
        page.go_back()
    assert page.locator("#get").is_visible()


def test_tab_key_reaches_every_control_in_document_order(demo_server: DemoServer, open_watched: PageOpener) -> None:
    describe_focus = """() => { const one = document.activeElement, box = one.getBoundingClientRect();
      const style = getComputedStyle(one);
      return [one === document.body ? null : [...document.querySelectorAll('*')].indexOf(one),
        style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2, box.width > 0 && box.height > 0]; }"""
    count_focusable = """() => [...document.querySelectorAll('a[href], button:not([disabled]),'
      + 'input:not([type=hidden]), select, summary, [tabindex="0"]')].filter((one) => one.checkVisibility()).length"""
    for path in (demo_server.boards["claims/v1"], "/run/acme/hawk-alone/1", "/", "/login"):
        page = load_page(open_watched, demo_server, path)
        page.wait_for_load_state("networkidle")
        count = page.evaluate(count_focusable)
        positions: list[int] = []
        while len(positions) < count + 5:
            page.keyboard.press("Tab")
            position, is_outlined, is_visible = page.evaluate(describe_focus)
            if position is None:
                break
            assert is_outlined, (path, page.evaluate("document.activeElement.outerHTML"))
            assert is_visible, (path, page.evaluate("document.activeElement.outerHTML"))
            positions.append(position)
        assert positions == sorted(positions), path
        assert len(positions) == count, path


def test_keyboard_alone_searches_a_board_and_opens_a_run(demo_server: DemoServer, open_watched: PageOpener) -> None:
    page = load_board(open_watched, demo_server)
    page.keyboard.press("/")
    page.keyboard.type("owl-debate")
    assert list_row_names(page) == ["acme/owl-debate@1"]
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "/run/acme/owl-debate/1":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/acme/owl-debate/1")


def test_hostile_text_has_no_effect_on_any_page(demo_server: DemoServer, open_watched: PageOpener) -> None:
    paths = ["/", "/owner/mallory", HOSTILE_RUN, "/search?q=evil", "/run/mallory/evil", *demo_server.boards.values()]
    for path in paths:
        page = load_page(open_watched, demo_server, path)
        page.wait_for_load_state("networkidle")
        assert page.title() != "taken"
        assert page.locator("main img, main script, a[href*='evil.example']").count() == 0
        assert "\u202e" not in page.inner_text("body")
    page = load_page(open_watched, demo_server, HOSTILE_RUN)
    page.click("a:has-text('Games (12)')")
    page.click("table.games tbody a >> nth=0")
    page.wait_for_selector(".game")
    assert page.title() != "taken"
    assert page.locator("main img, main script, a[href*='evil.example']").count() == 0


def test_every_page_is_readable_without_javascript(demo_server: DemoServer, open_watched: PageOpener) -> None:
    for name, path in demo_server.pages.items():
        page = load_page(open_watched, demo_server, path, java_script_enabled=False)
        assert page.locator("h1").inner_text().strip(), name
        assert page.locator("main").inner_text().strip(), name
        assert page.locator("[hidden]:not(#view)").count() == 0, name
    page = load_page(open_watched, demo_server, "/run/acme/learns/1", java_script_enabled=False)
    for heading in ("Get and reproduce", "Learning curve", "Lineage", "Parameters"):
        assert page.locator(f"h2:text-is('{heading}')").is_visible()
    page = load_page(open_watched, demo_server, "/run/acme/learns-t3/1", java_script_enabled=False)
    assert page.locator("h3:text-is('Learning curve') + figure svg").is_visible()
    page = load_page(open_watched, demo_server, "/run/acme/hawk-alone/1", java_script_enabled=False)
    for heading in ("Metrics", "Reproductions"):
        assert page.locator(f"h2:text-is('{heading}')").is_visible()
    assert "c0" in page.inner_text("section.unscripted")  # its first games


def test_every_game_is_readable_without_javascript(demo_server: DemoServer, open_watched: PageOpener) -> None:
    for start, count in ((DEBATE_RUN, 120), (HOSTILE_RUN, 12)):
        page = load_page(open_watched, demo_server, start, java_script_enabled=False)
        page.click("a:text-is('All games')")
        assert page.locator("tbody tr").count() == min(count, 100)
        page.click("tbody a >> nth=0")
        assert page.locator("article.turn").count() > 1
        assert page.locator("article.turn .text").first.inner_text().strip()
        page.click("a[rel='next']")
        page.click("nav.where a:text-is('Games')")
        assert page.url.endswith("/games?part=1")
        assert page.locator("main img, main script, a[href*='evil.example']").count() == 0
    page = load_page(open_watched, demo_server, f"{DEBATE_RUN}/games?part=2", java_script_enabled=False)
    assert page.locator("tbody tr").count() == 20
    for path in (
        f"{DEBATE_RUN}/game/121",
        f"{DEBATE_RUN}/games?part=3",
        "/run/acme/learns/1/games",
        "/run/bob/secret-mole/1/games",
    ):
        assert demo_server.served.request(path).status == 404, path


def test_content_policy_blocks_injected_scripts_on_every_page(
    demo_server: DemoServer, open_watched: PageOpener
) -> None:
    inject_script = """() => new Promise((told) => {
      addEventListener('securitypolicyviolation', (one) => told(one.effectiveDirective));
      const one = document.createElement('script');
      one.textContent = 'document.title = "taken"'; document.body.append(one);
      setTimeout(() => told(document.title), 20000); })"""
    watched_page = open_patiently(open_watched)
    watched_page.open(f"{demo_server.served.address}/", own=f"{demo_server.served.address}/")
    for path in ("/", demo_server.boards["claims/v1"], HOSTILE_RUN, "/login", "/nowhere"):
        watched_page.page.goto(f"{demo_server.served.address}{path}")
        assert watched_page.page.evaluate(inject_script) == "script-src-elem", path
    assert watched_page.problems  # the browser reports each violation
    assert not [problem for problem in watched_page.problems if not problem.startswith("console error")]
    watched_page.problems.clear()


def test_errors_are_pages_for_browsers_and_json_for_programs(demo_server: DemoServer, open_watched: PageOpener) -> None:
    watched_page = open_patiently(open_watched)
    for path in ABSENT_PAGES.values():
        watched_page.open(f"{demo_server.served.address}{path}", own=f"{demo_server.served.address}/")
        assert watched_page.page.locator("h1").inner_text() == "Page not found"
        assert watched_page.page.locator("a[href='/']").count() > 0
    assert not [problem for problem in watched_page.problems if "status of 404" not in problem]
    watched_page.problems.clear()
    json_response = demo_server.served.request("/nowhere")
    assert (json_response.status, json_response.json["code"]) == (404, "missing")
    html_response = demo_server.served.request("/nowhere", Accept="text/html")
    assert (html_response.status, html_response.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert (
        demo_server.served.request("/api/v1/nowhere", Accept="text/html").headers["content-type"] == "application/json"
    )


def test_signed_in_user_sees_private_runs_until_signing_out(demo_server: DemoServer, open_watched: PageOpener) -> None:
    page = load_page(open_watched, demo_server, "/")
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
def test_axe_finds_no_violation_on_any_page(
    demo_server: DemoServer, open_watched: PageOpener, axe: str, width: int, scheme: str
) -> None:
    watched_page = open_patiently(open_watched, viewport={"width": width, "height": 900}, color_scheme=scheme)
    watched_page.context.add_cookies(demo_server.sign_in_cookies("bob"))
    for name, path in {**demo_server.pages, **ABSENT_PAGES, **PRIVATE_PAGES}.items():
        watched_page.open(f"{demo_server.served.address}{path}", own=f"{demo_server.served.address}/")
        watched_page.page.wait_for_load_state("networkidle")
        assert find_violations(watched_page.page, axe) == [], name
        assert watched_page.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
    watched_page.problems[:] = [problem for problem in watched_page.problems if "status of 404" not in problem]


def test_empty_server_says_that_nothing_is_published(open_watched: PageOpener, tmp_path: Path, axe: str) -> None:
    with run_empty_server(tmp_path) as served:
        page = open_patiently(open_watched).open(f"{served.address}/", own=f"{served.address}/")
        assert page.locator("text=No benchmark run is published on this server yet.").is_visible()
        assert "nip-run publish RUN" in page.inner_text("main")
        assert find_violations(page, axe) == []


def list_commands(page: Any) -> list[str]:
    return list(page.locator("h2#get + dl.commands code").all_inner_texts())


def test_commands_of_a_page_work_when_pasted_into_a_shell(
    demo_server: DemoServer, open_watched: PageOpener, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nip-run"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m runner "$@"\n', "utf-8")
    program.chmod(0o755)
    variables = environment(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    variables["PATH"] = f"{tmp_path / 'bin'}:{variables['PATH']}"
    for path in ("/run/bob/quick-a/1", "/prompts/acme/plain-claims"):
        lines = list_commands(load_page(open_watched, demo_server, path))
        assert len(lines) == (4 if path.startswith("/run/") else 2)
        for line in lines:
            process = subprocess.run(
                ["sh", "-c", line],
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
                check=False,
            )
            assert process.returncode == 0, (line, process.stdout, process.stderr)
    wait_until((tmp_path / "quick-a" / "data" / "journal.jsonl").is_file)
