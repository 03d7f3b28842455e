"""The pages of runs in a browser: lists, filters, navigation, keys and print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from runner.game.protocols.protocol import Decision
from tests.browser.conftest import PageOpener
from tests.compatibility.old import FIXTURES
from tests.support.paths import ROOT
from tests.support.report_pages import report, report_folder
from tests.support.runs import only_run, run_spec, table
from tests.support.specs import spec_file


def locate_rows(page: Any) -> Any:
    return page.locator("table.games tbody tr:not([aria-hidden])")


def read_count(page: Any) -> str:
    text: str = page.locator("p.count").inner_text()
    return text


def wait_until_read(page: Any) -> None:
    page.wait_for_function("() => !document.querySelector('p.count').textContent.includes('reading')")


def open_games(open_watched: PageOpener, path: Path, query: str = "", **options: Any) -> Any:
    """Open the list of a report's games with a query, and wait until it is read."""
    page = open_watched(**options).open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    if query:
        page.evaluate("words => { location.hash += words; }", f"?{query}")
    locate_rows(page).first.wait_for()
    wait_until_read(page)
    return page


def test_report_opens_from_disk_with_its_summary_and_no_other_request(
    open_watched: PageOpener, small_report: Path
) -> None:
    watched_page = open_watched()
    page = watched_page.open(small_report)
    page.get_by_role("heading", name="Metrics").wait_for()
    assert page.locator("#view").is_hidden()
    assert page.locator(".unscripted").is_hidden()
    assert watched_page.requests == [small_report.as_uri()]


def test_report_folder_opened_from_disk_says_that_it_needs_a_web_server(
    open_watched: PageOpener, small_report: Path, tmp_path: Path
) -> None:
    run = only_run(small_report.parent / "results")
    report_folder(tmp_path / "site", run)
    page = open_watched().open(tmp_path / "site" / "index.html", f"run/{run.name}/games")
    assert "serve this folder" in page.locator("#view p.why").inner_text()
    page.get_by_role("searchbox").fill("Decision")
    page.get_by_role("button", name="Search messages").click()
    page.locator("#view p.why").wait_for()
    page.get_by_role("button", name="Search messages").wait_for()


def test_list_has_every_game(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report)
    assert read_count(page) == "12 of 12 games"
    assert locate_rows(page).count() == 12


def test_filter_and_search_narrow_the_list_and_are_stored_in_the_url(
    open_watched: PageOpener, small_report: Path
) -> None:
    page = open_games(open_watched, small_report)
    page.get_by_role("searchbox").fill("p1")
    assert read_count(page) == "3 of 12 games"  # p1, p10, p11
    page.get_by_role("button", name="Right").click()
    assert "q=p1" in page.url
    assert "only=right" in page.url
    filtered_count = read_count(page)
    fresh_page = open_watched().open(page.url)
    fresh_page.locator("p.count").wait_for()
    wait_until_read(fresh_page)
    assert read_count(fresh_page) == filtered_count
    assert fresh_page.get_by_role("button", name="Right").get_attribute("aria-pressed") == "true"
    assert fresh_page.get_by_role("searchbox").input_value() == "p1"


def test_column_filter_compares_values_as_the_list_shows_them(open_watched: PageOpener, tmp_path: Path) -> None:
    lost = {"rollouts": {"max_transport_failed": 1.0}, "retry": {"transient": {"attempts": 1}}}
    run_spec(spec_file(tmp_path, "http://127.0.0.1:9/v1", size=2, fine_tune=None, **lost), tmp_path / "results")
    lost_path, old_path = tmp_path / "lost.html", tmp_path / "old.html"
    lost_path.write_bytes(report(only_run(tmp_path / "results")))
    old_path.write_bytes(report(FIXTURES / "results" / "runs" / "served-c534600bdb"))
    for path, condition, games in (
        (old_path, "correct,=,right", "7 of 12 games"),
        (old_path, "latency_ms,>,0.005", "8 of 12 games"),  # the column shows seconds
        (old_path, "tokens,<,1%252C000", "12 of 12 games"),
        (lost_path, "outcome,=,transport failed", "2 of 2 games"),
        (lost_path, "correct,~,failed", "2 of 2 games"),
    ):
        assert read_count(open_games(open_watched, path, f"where={condition}")) == games, condition


def test_game_marks_the_selected_candidate_and_shows_private_notes(open_watched: PageOpener, tmp_path: Path) -> None:
    for name in ("best_of_n_debate", "debate_quotes"):
        run_spec(ROOT / "specs" / f"{name}.yaml", tmp_path / name, "dataset.limit=1")
        (tmp_path / f"{name}.html").write_bytes(report(only_run(tmp_path / name)))
    page = open_games(open_watched, tmp_path / "best_of_n_debate.html")
    locate_rows(page).first.get_by_role("link").click()
    turn = page.locator("article.turn").first
    turn.get_by_text("4 candidates").click()
    candidates = turn.locator(".attempt")
    candidates.first.wait_for()
    assert sorted(candidates.locator(".badge").all_inner_texts()) == ["not selected"] * 3 + ["used"]
    used = candidates.filter(has=page.get_by_text("used", exact=True)).inner_text()
    assert turn.locator(".text").first.inner_text().partition(" <")[0] in used
    page = open_games(open_watched, tmp_path / "debate_quotes.html")
    locate_rows(page).first.get_by_role("link").click()
    turn = page.locator("article.turn").first
    turn.get_by_text("The whole answer").click()
    assert "Statement:" in turn.locator(".attempt").inner_text()


def test_message_search_finds_games_by_words_that_the_list_does_not_have(
    open_watched: PageOpener, small_report: Path
) -> None:
    page = open_games(open_watched, small_report)
    page.get_by_role("searchbox").fill("Decision: accept")
    assert read_count(page) == "0 of 12 games"
    page.get_by_role("button", name="Search messages").click()
    page.wait_for_function("() => document.querySelector('p.count').textContent.includes('messages included')")
    decisions = [row["decision"] for row in table(only_run(small_report.parent / "results"), "rollouts")]
    accepted = decisions.count(int(Decision.ACCEPT))
    assert 0 < accepted < 12
    assert read_count(page) == f"{accepted} of 12 games, messages included"


def test_column_header_sorts_ascending_descending_and_not_at_all(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report)
    header = page.get_by_role("columnheader", name="Datapoint")
    unsorted = locate_rows(page).all_inner_texts()
    orders = []
    for _ in range(3):
        header.get_by_role("button").click()
        orders.append(
            (header.get_attribute("aria-sort"), locate_rows(page).locator("td:first-child").all_inner_texts())
        )
    assert [order for order, _ in orders] == ["ascending", "descending", None]
    assert orders[0][1] == sorted(orders[0][1])
    assert orders[1][1] == orders[0][1][::-1]
    assert locate_rows(page).all_inner_texts() == unsorted


def test_keys_move_between_games_and_back_to_the_list(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report, "sort=-datapoint")
    names = locate_rows(page).locator("td:first-child").all_inner_texts()
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
    locate_rows(page).first.wait_for()
    assert "sort=-datapoint" in page.url
    assert locate_rows(page).locator("td:first-child").all_inner_texts() == names


def test_back_button_returns_to_the_previous_page(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report)
    list_url = page.url
    locate_rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    page.go_back()
    locate_rows(page).first.wait_for()
    assert page.url == list_url
    page.go_back()
    page.get_by_role("heading", name="Metrics").wait_for()


def test_url_of_a_game_is_permanent(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report)
    locate_rows(page).nth(4).get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    conversation = page.locator(".conversation").inner_text()
    fresh_page = open_watched().open(page.url)
    fresh_page.locator("header.game h2").wait_for()
    assert fresh_page.locator(".conversation").inner_text() == conversation
    assert re.search(r"#/run/[^/]+/game/[0-9a-f]+$", page.url)


def test_shortcut_keys_typed_into_the_search_are_text(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report)
    page.get_by_role("searchbox").press_sequentially("juk")
    assert page.get_by_role("searchbox").input_value() == "juk"
    assert "/games" in page.url


def test_unknown_address_shows_a_message(open_watched: PageOpener, small_report: Path) -> None:
    watched_page = open_watched()
    page = watched_page.open(small_report, "run/none/games")
    page.get_by_text("There is no run none in this page").wait_for()
    watched_page.navigate("nowhere/%E0%A4%A")
    page.get_by_text("There is no page nowhere").wait_for()


def test_report_without_javascript_has_the_summary_and_first_games(
    open_watched: PageOpener, small_report: Path
) -> None:
    page = open_watched(java_script_enabled=False).open(small_report)
    assert page.get_by_role("heading", name="Metrics").is_visible()
    assert page.get_by_role("heading", name="Games").is_visible()
    assert page.locator(".unscripted tbody tr").count() == 12


def test_print_hides_controls(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report)
    locate_rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    page.emulate_media(media="print")
    assert page.locator("nav.pages").is_hidden()
    assert page.get_by_role("button", name="Everything").is_hidden()
    assert page.locator(".turn").first.is_visible()


def test_printed_list_has_its_header_and_all_rows(open_watched: PageOpener, tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path, size=80), tmp_path / "results")
    path = tmp_path / "report.html"
    path.write_bytes(report(only_run(tmp_path / "results")))
    page = open_games(open_watched, path)
    screen_rows = locate_rows(page).count()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert screen_rows < locate_rows(page).count() == 80
    assert page.get_by_role("button", name="Datapoint").is_visible()
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert locate_rows(page).count() == screen_rows


def test_list_without_matches_says_so(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report)
    page.get_by_role("searchbox").fill("nowhere")
    page.get_by_text("No game matches.").wait_for()
    assert read_count(page) == "0 of 12 games"


def test_reduced_motion_disables_transitions_and_animations(open_watched: PageOpener, small_report: Path) -> None:
    page = open_games(open_watched, small_report, reduced_motion="reduce")
    moving_count = page.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => { const style = getComputedStyle(one);"
        " return style.transitionDuration.split(',').some((t) => parseFloat(t) > 0)"
        " || style.animationName !== 'none'; }).length"
    )
    assert moving_count == 0


def test_page_never_scrolls_sideways_on_a_phone(open_watched: PageOpener, small_report: Path) -> None:
    watched_page = open_watched(viewport={"width": 360, "height": 700})
    page = watched_page.open(small_report)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0
    page.get_by_role("link", name="Games", exact=True).click()
    locate_rows(page).first.wait_for()
    assert page.evaluate(overflow) == 0
    locate_rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    assert page.evaluate(overflow) == 0
