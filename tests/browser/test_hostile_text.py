"""Hostile text in Chromium: no script runs, no request is sent, and no link of a stranger works.

`open_watched` fails a test on any dialog, request, error or console message, also if the policy blocked something.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.text import in_one_line
from tests.browser.conftest import PageOpener
from tests.support.hostile_pages import build_hostile_report
from tests.support.hostile_payloads import PAYLOADS
from tests.support.hostile_text import MANIFEST, expected_in_file, hostile_run, release_with_manifest
from tests.support.report_pages import report, visible_text

OPEN_ALL = (
    "(() => { const all = [...document.querySelectorAll('#view "
    "details:not([open])')]; for (const one of all) one.open = true; return "
    "all.length; })()"
)

GAME_FIELDS = {
    "id of a datapoint": "p{number} {short}",
    "group": "group {short}",
    "value of a column": "value {number} {text}",
    "value of another column": "[P{number:02}] {text}",
    "question": "question {said}",
    "argument": "argument {said}",
    "verdict": "verdict {said}",
    "reasoning": "reasoning {said}",
    "why an answer cannot be used": "{finish}",
    "error of a server": "error {error}",
    "model that a server names": "served {said}",
    "alternative token": "{token}",
}
"""Fields of a game that contain a payload."""

FIELDS_OF_EVERY_GAME = {
    "system prompt": PAYLOADS["script"] + PAYLOADS["right to left"] + PAYLOADS["ansi"],
    "name of a column": f"column 0 {PAYLOADS['script']}",
}


def test_at_least_30_fields_contain_hostile_text() -> None:
    assert len(GAME_FIELDS) + len(FIELDS_OF_EVERY_GAME) + len(MANIFEST) >= 30


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def hostile_report(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "report.html"
    path.write_bytes(report(run))
    return path


def assert_inert(page: Any) -> None:
    """Check that no hostile script ran and that no hostile link or handler exists."""
    assert page.evaluate(
        "window.pwned === undefined && document.querySelectorAll('iframe, img, object, "
        "embed, base, form[action]').length === 0"
    )
    external_links = page.evaluate(
        "[...document.querySelectorAll('a, area, [href], [src]')].map((one) => "
        "one.getAttribute('href') ?? one.getAttribute('src') ?? "
        "one.getAttribute('xlink:href')).filter((to) => to && !to.startsWith('#'))"
    )
    assert external_links == []
    handlers = page.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => "
        "[...one.attributes].some(({name}) => name.startsWith('on') || name === 'style' "
        "&& !one.matches('[aria-hidden] *'))).length"
    )
    assert handlers == 0


def unfold_all(page: Any) -> None:
    """Open all folded elements, including nested ones."""
    while page.evaluate(OPEN_ALL):
        page.wait_for_timeout(20)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates as the JSON decoder does."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_game_is_shown_as_text(payload: str, hostile_report: Path, open_watched: PageOpener) -> None:
    number, text = list(PAYLOADS).index(payload), PAYLOADS[payload]
    page = open_watched().open(hostile_report)
    page.get_by_role("link", name="Games", exact=True).click()
    link = page.locator("table.games tbody a").filter(has_text=f"p{number} ").first
    page.get_by_role("searchbox").fill(f"[p{number:02}]")
    link.wait_for()
    assert_inert(page)
    link.click()
    page.locator("header.game h2").wait_for()
    assert_inert(page)
    unfold_all(page)
    assert_inert(page)
    page_text: str = page.locator("#view").evaluate("one => one.textContent")
    substitutions = {
        "number": number,
        "text": expected_in_file(text),
        "short": expected_in_file(text)[:200],
        "said": replace_surrogates(text),
        "error": in_one_line(replace_surrogates(text))[:60],
        "token": json.dumps(f"token {replace_surrogates(text)}", ensure_ascii=False),
        "finish": repr(f"finish {replace_surrogates(text)}")[1:-1],
    }
    expected = {
        field: template.format(**substitutions) for field, template in GAME_FIELDS.items()
    } | FIELDS_OF_EVERY_GAME
    if payload in ("lone surrogate", "long word"):
        expected = {field: expected_text[:40].split("a\ufffd")[0] for field, expected_text in expected.items()}
    missing = {
        field: expected_text
        for field, expected_text in expected.items()
        if visible_text(expected_text) not in page_text
    }
    assert missing == {}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_report_data_full_of_hostile_text_is_shown_as_text(
    payload: str, run: Path, open_watched: PageOpener, tmp_path: Path
) -> None:
    """Includes names of agents, channels and columns, which valid records could not contain."""
    path = tmp_path / "report.html"
    path.write_bytes(build_hostile_report(PAYLOADS[payload], run))
    page = open_watched().open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    page.locator("table.games tbody a").first.wait_for()
    assert_inert(page)
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    assert_inert(page)
    unfold_all(page)
    assert_inert(page)
    page_text: str = page.locator("#view").evaluate("one => one.textContent")
    assert page_text.count(visible_text(PAYLOADS[payload])) > 30
    page.get_by_role("group", name="Whose view").get_by_role("button").nth(1).click()
    page.wait_for_url("**as=*")
    page.locator("header.game h2").wait_for()
    assert_inert(page)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_manifest_is_shown_as_text(payload: str, run: Path, open_watched: PageOpener, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report(release_with_manifest(run, tmp_path / "run", PAYLOADS[payload])))
    page = open_watched().open(path)
    page.locator("h1").wait_for()
    assert_inert(page)
    page_text: str = page.locator("section.page").first.evaluate("one => one.textContent")
    assert visible_text(f"benchmark: {expected_in_file(PAYLOADS[payload])}") in page_text


CHARACTER_MARKS = {
    "\x00": "NUL", "\x1b": "ESC", "\x08": "U+0008", "\x7f": "DEL", "\x85": "U+0085", "\xad": "SHY", "\u202e": "RLO",
    "\u2066": "LRI", "\u200b": "ZWSP", "\ufeff": "BOM", "\u061c": "U+061C", "\u2028": "U+2028", "\ue000": "U+E000",
    "\U000e0041": "U+E0041", "\r": "U+000D",
}  # fmt: skip


def test_script_marks_the_same_invisible_characters_as_python(
    run: Path, open_watched: PageOpener, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(build_hostile_report("|".join(CHARACTER_MARKS), run))
    page = open_watched().open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    assert "|".join(CHARACTER_MARKS.values()) in page.locator("header.game h2").evaluate("one => one.textContent")
    assert visible_text("|".join(CHARACTER_MARKS)) == "|".join(CHARACTER_MARKS.values())


def test_script_spells_out_characters_in_titles_and_labels_like_python(
    run: Path, open_watched: PageOpener, tmp_path: Path
) -> None:
    text = "|".join([*CHARACTER_MARKS, "a\tb\nc"])
    path = tmp_path / "report.html"
    path.write_bytes(build_hostile_report(text, run))
    page = open_watched().open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    assert in_one_line(text) in page.evaluate("document.title")
    assert in_one_line(text) in page.locator("article.turn").first.get_attribute("aria-label")
    assert in_one_line(text) in page.locator("#announced").evaluate("one => one.textContent")
