"""The pages of runs in a browser: every one opens, and a reader finds a way about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.browser.conftest import Opens
from tests.support.report_pages import report
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file


def rows(page: Any) -> Any:
    return page.locator("table.games tbody tr:not([aria-hidden])")


def count(page: Any) -> str:
    text: str = page.locator("p.count").inner_text()
    return text


def settled(page: Any) -> None:
    page.wait_for_function("() => !document.querySelector('p.count').textContent.includes('reading')")


def open_games(watched: Opens, path: Path, words: str = "", **options: Any) -> Any:
    """The list of a report's games, with what its address says."""
    page = watched(**options).open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    if words:
        page.evaluate("words => { location.hash += words; }", f"?{words}")
    rows(page).first.wait_for()
    settled(page)
    return page


def test_a_report_opens_from_the_disk_with_its_summary(watched: Opens, small: Path) -> None:
    one = watched()
    page = one.open(small)
    page.get_by_role("heading", name="Metrics").wait_for()
    assert page.locator("#view").is_hidden()
    assert page.locator(".unscripted").is_hidden()
    assert one.requests == [small.as_uri()]


def test_the_list_has_every_game(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    assert count(page) == "12 of 12 games"
    assert rows(page).count() == 12


def test_a_filter_and_a_search_narrow_the_list_and_are_in_its_address(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    page.get_by_role("searchbox").fill("p1")
    assert count(page) == "3 of 12 games"  # p1, p10, p11
    page.get_by_role("button", name="Right").click()
    assert "q=p1" in page.url
    assert "only=right" in page.url
    found = count(page)
    fresh = watched().open(page.url)
    fresh.locator("p.count").wait_for()
    settled(fresh)
    assert count(fresh) == found
    assert fresh.get_by_role("button", name="Right").get_attribute("aria-pressed") == "true"
    assert fresh.get_by_role("searchbox").input_value() == "p1"


def test_a_column_sorts_up_and_down_and_not(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    head = page.get_by_role("columnheader", name="Datapoint")
    plain = rows(page).all_inner_texts()
    orders = []
    for _ in range(3):
        head.get_by_role("button").click()
        orders.append((head.get_attribute("aria-sort"), rows(page).locator("td:first-child").all_inner_texts()))
    assert [order for order, _ in orders] == ["ascending", "descending", None]
    assert orders[0][1] == sorted(orders[0][1])
    assert orders[1][1] == orders[0][1][::-1]
    assert rows(page).all_inner_texts() == plain


def test_keys_lead_from_game_to_game_and_back_to_the_list(watched: Opens, small: Path) -> None:
    page = open_games(watched, small, "sort=-datapoint")
    names = rows(page).locator("td:first-child").all_inner_texts()
    page.get_by_role("link", name=names[0], exact=True).click()
    heading = page.locator("header.game h2")
    heading.wait_for()
    assert heading.inner_text().startswith(f"{names[0]} ")
    page.keyboard.press("j")
    page.wait_for_function(
        "name => document.querySelector('header.game h2')?.textContent.startsWith(name)", arg=f"{names[1]} "
    )
    page.keyboard.press("k")
    page.wait_for_function(
        "name => document.querySelector('header.game h2')?.textContent.startsWith(name)", arg=f"{names[0]} "
    )
    page.keyboard.press("u")
    rows(page).first.wait_for()
    assert "sort=-datapoint" in page.url
    assert rows(page).locator("td:first-child").all_inner_texts() == names


def test_the_back_button_leads_back(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    of_list = page.url
    rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    page.go_back()
    rows(page).first.wait_for()
    assert page.url == of_list
    page.go_back()
    page.get_by_role("heading", name="Metrics").wait_for()


def test_the_address_of_a_game_is_permanent(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    rows(page).nth(4).get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    said = page.locator(".conversation").inner_text()
    fresh = watched().open(page.url)
    fresh.locator("header.game h2").wait_for()
    assert fresh.locator(".conversation").inner_text() == said
    assert re.search(r"#/run/[^/]+/game/[0-9a-f]+$", page.url)


def test_keys_typed_into_the_search_are_text(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    page.get_by_role("searchbox").press_sequentially("juk")
    assert page.get_by_role("searchbox").input_value() == "juk"
    assert "/games" in page.url


def test_an_address_that_leads_nowhere_says_so(watched: Opens, small: Path) -> None:
    one = watched()
    page = one.open(small, "run/none/games")
    page.get_by_text("There is no run none in this page").wait_for()
    one.navigate("nowhere/%E0%A4%A")
    page.get_by_text("There is no page nowhere").wait_for()


def test_without_a_script_there_are_the_summary_and_the_first_games(watched: Opens, small: Path) -> None:
    page = watched(java_script_enabled=False).open(small)
    assert page.get_by_role("heading", name="Metrics").is_visible()
    assert page.get_by_role("heading", name="Games").is_visible()
    assert page.locator(".unscripted tbody tr").count() == 12


def test_print_shows_what_is_read_and_no_control(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    page.emulate_media(media="print")
    assert page.locator("nav.pages").is_hidden()
    assert page.get_by_role("button", name="Everything").is_hidden()
    assert page.locator(".turn").first.is_visible()


def test_a_printed_list_has_the_titles_and_the_rows_out_of_sight(watched: Opens, tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path, size=80), tmp_path / "results")
    path = tmp_path / "report.html"
    path.write_bytes(report(only_run(tmp_path / "results")))
    page = open_games(watched, path)
    seen = rows(page).count()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen < rows(page).count() == 80
    assert page.get_by_role("button", name="Datapoint").is_visible()
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert rows(page).count() == seen


def test_a_list_that_nothing_fits_says_so(watched: Opens, small: Path) -> None:
    page = open_games(watched, small)
    page.get_by_role("searchbox").fill("nowhere")
    page.get_by_text("No game matches.").wait_for()
    assert count(page) == "0 of 12 games"


def test_nothing_moves_for_whom_motion_disturbs(watched: Opens, small: Path) -> None:
    page = open_games(watched, small, reduced_motion="reduce")
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => { const style = getComputedStyle(one);"
        " return style.transitionDuration.split(',').some((t) => parseFloat(t) > 0)"
        " || style.animationName !== 'none'; }).length"
    )
    assert moving == 0


def test_a_phone_never_scrolls_sideways(watched: Opens, small: Path) -> None:
    one = watched(viewport={"width": 360, "height": 700})
    page = one.open(small)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    page.get_by_role("link", name="Games", exact=True).click()
    rows(page).first.wait_for()
    assert page.evaluate(wide) == 0
    rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    assert page.evaluate(wide) == 0
