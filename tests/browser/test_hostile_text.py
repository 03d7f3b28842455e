"""What a stranger wrote is text in Chromium, too: nothing runs, nothing is asked for, no link of theirs is live.

`watched` fails a test on any dialog, request, error or word on the console: a policy that had to step in is a fault.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.text import in_one_line
from tests.browser.conftest import Opens
from tests.support.hostile_pages import report_full_of
from tests.support.hostile_payloads import PAYLOADS
from tests.support.hostile_text import MANIFEST, expected_in_file, hostile_run, release_with_manifest
from tests.support.report_pages import report, visible_text

OPEN_ALL = (
    "(() => { const all = [...document.querySelectorAll('#view "
    "details:not([open])')]; for (const one of all) one.open = true; return "
    "all.length; })()"
)

IN_A_GAME = {
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
"""Where a game of the real run says a payload."""

IN_EVERY_GAME = {
    "system prompt": PAYLOADS["script"] + PAYLOADS["right to left"] + PAYLOADS["ansi"],
    "name of a column": f"column 0 {PAYLOADS['script']}",
}


def test_there_are_thirty_places() -> None:
    assert len(IN_A_GAME) + len(IN_EVERY_GAME) + len(MANIFEST) >= 30


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def real(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "report.html"
    path.write_bytes(report(run))
    return path


def inert(page: Any) -> None:
    """Nothing of a stranger's ran, and nothing waits for a click."""
    assert page.evaluate(
        "window.pwned === undefined && document.querySelectorAll('iframe, img, object, "
        "embed, base, form[action]').length === 0"
    )
    strange = page.evaluate(
        "[...document.querySelectorAll('a, area, [href], [src]')].map((one) => "
        "one.getAttribute('href') ?? one.getAttribute('src') ?? "
        "one.getAttribute('xlink:href')).filter((to) => to && !to.startsWith('#'))"
    )
    assert strange == []
    handlers = page.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => "
        "[...one.attributes].some(({name}) => name.startsWith('on') || name === 'style' "
        "&& !one.matches('[aria-hidden] *'))).length"
    )
    assert handlers == 0


def unfolded(page: Any) -> None:
    """Everything that is folded up, and what is in it, and so on."""
    while page.evaluate(OPEN_ALL):
        page.wait_for_timeout(20)


def in_json(text: str) -> str:
    """As a body with half of a pair is repaired when it arrives."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_game_of_a_stranger_is_text(payload: str, real: Path, watched: Opens) -> None:
    number, text = list(PAYLOADS).index(payload), PAYLOADS[payload]
    page = watched().open(real)
    page.get_by_role("link", name="Games", exact=True).click()
    link = page.locator("table.games tbody a").filter(has_text=f"p{number} ").first
    page.get_by_role("searchbox").fill(f"[p{number:02}]")
    link.wait_for()
    inert(page)
    link.click()
    page.locator("header.game h2").wait_for()
    inert(page)
    unfolded(page)
    inert(page)
    seen: str = page.locator("#view").evaluate("one => one.textContent")
    words = {
        "number": number,
        "text": expected_in_file(text),
        "short": expected_in_file(text)[:200],
        "said": in_json(text),
        "error": in_one_line(in_json(text))[:60],
        "token": json.dumps(f"token {in_json(text)}", ensure_ascii=False),
        "finish": repr(f"finish {in_json(text)}")[1:-1],
    }
    wanted = {place: form.format(**words) for place, form in IN_A_GAME.items()} | IN_EVERY_GAME
    if payload in ("lone surrogate", "long word"):
        wanted = {place: said[:40].split("a\ufffd")[0] for place, said in wanted.items()}
    missing = {place: said for place, said in wanted.items() if visible_text(said) not in seen}
    assert missing == {}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_data_full_of_a_text_are_text(payload: str, run: Path, watched: Opens, tmp_path: Path) -> None:
    """Names of agents, channels and columns too, which no record of ours would let be so."""
    path = tmp_path / "report.html"
    path.write_bytes(report_full_of(PAYLOADS[payload], run))
    page = watched().open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    page.locator("table.games tbody a").first.wait_for()
    inert(page)
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    inert(page)
    unfolded(page)
    inert(page)
    seen: str = page.locator("#view").evaluate("one => one.textContent")
    assert seen.count(visible_text(PAYLOADS[payload])) > 30
    page.get_by_role("group", name="Whose view").get_by_role("button").nth(1).click()
    page.wait_for_url("**as=*")
    page.locator("header.game h2").wait_for()
    inert(page)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_manifest_full_of_a_text_is_text(payload: str, run: Path, watched: Opens, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report(release_with_manifest(run, tmp_path / "run", PAYLOADS[payload])))
    page = watched().open(path)
    page.locator("h1").wait_for()
    inert(page)
    seen: str = page.locator("section.page").first.evaluate("one => one.textContent")
    assert visible_text(f"benchmark: {expected_in_file(PAYLOADS[payload])}") in seen


CASES = {
    "\x00": "NUL", "\x1b": "ESC", "\x08": "U+0008", "\x7f": "DEL", "\x85": "U+0085", "\xad": "SHY", "\u202e": "RLO",
    "\u2066": "LRI", "\u200b": "ZWSP", "\ufeff": "BOM", "\u061c": "U+061C", "\u2028": "U+2028", "\ue000": "U+E000",
    "\U000e0041": "U+E0041", "\r": "U+000D",
}  # fmt: skip


def test_the_script_marks_the_characters_that_python_marks(run: Path, watched: Opens, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report_full_of("|".join(CASES), run))
    page = watched().open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    assert "|".join(CASES.values()) in page.locator("header.game h2").evaluate("one => one.textContent")
    assert visible_text("|".join(CASES)) == "|".join(CASES.values())


def test_titles_and_labels_of_the_script_spell_out_what_python_spells_out(
    run: Path, watched: Opens, tmp_path: Path
) -> None:
    text = "|".join([*CASES, "a\tb\nc"])
    path = tmp_path / "report.html"
    path.write_bytes(report_full_of(text, run))
    page = watched().open(path)
    page.get_by_role("link", name="Games", exact=True).click()
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    assert in_one_line(text) in page.evaluate("document.title")
    assert in_one_line(text) in page.locator("article.turn").first.get_attribute("aria-label")
    assert in_one_line(text) in page.locator("#announced").evaluate("one => one.textContent")
