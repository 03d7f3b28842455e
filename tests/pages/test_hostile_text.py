"""What a stranger wrote is text in every page, read here as a browser without a script has it.

`tests/browser/test_hostile_text.py` has Chromium read the same.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path

import pytest

import runner.pages
from runner.base.text import in_one_line
from runner.pages.html import as_json, escape_plain, policy, render_template, script, style
from tests.support.hostile_payloads import PAYLOADS
from tests.support.hostile_text import SHOWN_MANIFEST_FIELDS, expected_in_file, release_with_manifest
from tests.support.report_pages import ParsedPage, parse_page, report, visible_text

OURS = frozenset(
    [
        "a",
        "article",
        "aside",
        "b",
        "body",
        "br",
        "caption",
        "circle",
        "code",
        "col",
        "colgroup",
        "dd",
        "defs",
        "desc",
        "details",
        "div",
        "dl",
        "dt",
        "em",
        "figcaption",
        "figure",
        "footer",
        "g",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "html",
        "kbd",
        "li",
        "line",
        "main",
        "marker",
        "meta",
        "nav",
        "ol",
        "p",
        "path",
        "polygon",
        "polyline",
        "pre",
        "rect",
        "script",
        "section",
        "small",
        "span",
        "strong",
        "style",
        "summary",
        "svg",
        "table",
        "tbody",
        "td",
        "text",
        "tfoot",
        "th",
        "thead",
        "time",
        "title",
        "tr",
        "tspan",
        "ul",
    ]
)
"""Elements that pages have; none of them loads or asks anything."""


def faults(page: ParsedPage) -> list[str]:
    """What no page of ours has."""
    found = [f"<{one.tag}>" for one in page.elements if one.tag not in OURS]
    for one in page.elements:
        for name, value in one.attributes.items():
            if name.startswith("on") or name in ("style", "src", "srcdoc", "action", "formaction", "autofocus"):
                found.append(f"<{one.tag} {name}>")
            if name.endswith("href") and not (value or "").startswith("#"):
                found.append(f"<{one.tag} {name}={value}>")
    counts = [sum(one.tag == tag for one in page.elements) for tag in ("style", "body", "main", "h1")]
    return [*found, *page.unclosed, *([] if counts == [1, 1, 1, 1] else [f"elements there is one of: {counts}"])]


@pytest.mark.full
def test_the_page_of_a_real_run_of_a_stranger_has_our_elements_alone(of_a_stranger: Path) -> None:
    page = parse_page(report(of_a_stranger))
    assert faults(page) == []
    assert len([one for one in page.elements if one.tag == "title"]) >= 1
    for number, text in enumerate(PAYLOADS.values()):
        assert visible_text(f"p{number} {expected_in_file(text)[:60]}") in page.text


@pytest.mark.sample(1)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_place_of_a_manifest_is_text(payload: str, of_a_stranger: Path, tmp_path: Path) -> None:
    text = PAYLOADS[payload]
    page = parse_page(report(release_with_manifest(of_a_stranger, tmp_path / "run", text)))
    assert faults(page) == []
    missing = [
        place for place in SHOWN_MANIFEST_FIELDS if visible_text(f"{place}: {expected_in_file(text)}") not in page.text
    ]
    assert missing == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_data_in_a_page_end_no_element_and_stay_what_they_are(payload: str) -> None:
    said = {"text": expected_in_file(PAYLOADS[payload]), expected_in_file(PAYLOADS[payload]): [1]}
    written = str(as_json(said))
    assert not set("<>&") & set(written)
    assert json.loads(written) == said


@pytest.mark.parametrize(
    ("character", "name"),
    [
        ("\x00", "NUL"), ("\x1b", "ESC"), ("\x08", "U+0008"), ("\x7f", "DEL"), ("\x85", "U+0085"), ("\xad", "SHY"),
        ("\u202e", "RLO"), ("\u2066", "LRI"), ("\u200f", "RLM"), ("\u200b", "ZWSP"), ("\ufeff", "BOM"),
        ("\u061c", "U+061C"), ("\u2028", "U+2028"), ("\u2029", "U+2029"), ("\ud800", "U+D800"), ("\ue000", "U+E000"),
        ("\U000e0041", "U+E0041"), ("\r", "U+000D"),
    ],
)  # fmt: skip
def test_a_character_that_cannot_be_seen_is_a_mark_with_its_name(character: str, name: str) -> None:
    assert visible_text(f"a{character}b") == f"a{name}b"


def test_of_a_text_each_character_that_cannot_be_seen_is_a_mark() -> None:
    assert visible_text("\u202e\u202e– <b>[^-]\n\x00\\\t&\ud800é\x7f") == "RLORLO– <b>[^-]\nNUL\\\t&U+D800éDEL"


def test_what_can_be_seen_is_no_mark() -> None:
    for text in ("tab\tand\nline", "שלום", "中文", "é", "🙂", "{{7*7}}", "&lt;"):
        assert visible_text(text) == text


def test_a_template_runs_nothing_of_its_facts() -> None:
    page = parse_page(render_template("base.html", {
        "title": "{{7*7}}<b>", "policy": policy(connects=False), "style": "", "script": "", "about": {}, "carriers": "",
        "links": [("run/a b\"<>'&?#/games", "<i>x")], "sections": [],
    }))  # fmt: skip
    assert "{{7*7}}<b>" in page.text
    (link,) = [one.attributes["href"] for one in page.elements if one.tag == "a" and one.attributes["href"] != "#main"]
    assert link == "#/run/a%20b%22%3C%3E%27%26%3F%23/games"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_pages_title_is_text_of_one_line_without_what_cannot_be_seen(payload: str) -> None:
    """No mark can stand there: a browser reads a title's elements as text."""
    text = f"{PAYLOADS[payload]}\n&amp;\t"
    page = render_template("base.html", {
        "title": text, "policy": policy(connects=False), "style": "", "script": "", "about": {}, "carriers": "",
        "links": [], "sections": [],
    })  # fmt: skip
    assert faults(parse_page(page)) == []
    assert unescape(page.partition("<title>")[2].partition("</title>")[0]) == in_one_line(text)


def test_the_policy_lets_nothing_in_but_our_script_and_style_by_their_hashes() -> None:
    rules = dict(rule.split(" ", 1) for rule in policy(connects=False).split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", rules["script-src"])
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", rules["style-src"])
    assert rules["img-src"] == "data:"
    assert "connect-src" not in rules
    assert "connect-src 'self'" in policy(connects=True)
    assert "unsafe" not in policy(connects=True)


FORBIDDEN = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
    "createContextualFragment", "DOMParser",
    "javascript:", "window.open", 'setTimeout("', "srcdoc", "style=", ".cssText", "http://", "https://",
)  # fmt: skip


def test_the_script_makes_no_markup_and_knows_no_other_address() -> None:
    whole = script().replace("http://www.w3.org/2000/svg", "")
    assert [word for word in FORBIDDEN if word in whole] == []


def test_the_style_loads_nothing() -> None:
    assert not re.search(r"url\(|@import|@font-face|expression\(", style())


def test_no_name_of_the_script_stands_for_two_things() -> None:
    """Its files are one scope: a name that two of them declare ends the script of every page."""
    declared = re.findall(r"^(?:async )?(?:function\*?|const|let|class) (\w+)", script(), re.MULTILINE)
    assert [name for name, count in Counter(declared).items() if count > 1] == []


EXPRESSION = re.compile(r"""[\w-]+=["'][^"'{>]*\{\{((?:[^}"']|"[^"]*"|'[^']*')*)\}\}""")
OURS_IN_ATTRIBUTES = (
    "policy", "(100 * share) | round(1)", "low | round(1) + 2", "high | round(1) + 2", "value | round(1) + 2", "kind",
    "row.kind", "longest", "loop.index", "turn.place", "max_days", "max_name",
)  # fmt: skip
"""Figures and words that we make ourselves."""


def test_no_attribute_of_a_template_has_a_text_that_may_become_a_mark() -> None:
    """A mark is an element: in an attribute it would end it."""
    found = [
        f"{path.name}: {expression}"
        for path in sorted(Path(runner.pages.__file__).parent.rglob("templates/**/*.html"))
        for expression in map(str.strip, EXPRESSION.findall(path.read_text("utf-8")))
        if expression not in OURS_IN_ATTRIBUTES and not re.search(r"(\| (plain|route|e)|\.href)$", expression)
    ]
    assert found == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_text_in_an_attribute_is_one_value_without_what_cannot_be_seen(payload: str) -> None:
    (made,) = parse_page(f'<p title="{escape_plain(PAYLOADS[payload])}">').elements
    assert made.attributes == {"title": in_one_line(PAYLOADS[payload])}
    assert visible_text(str(made.attributes["title"])) == made.attributes["title"]
