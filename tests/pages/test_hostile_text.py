"""Hostile text is escaped in every page, parsed here as by a browser without JavaScript.

`tests/browser/test_hostile_text.py` checks the same in Chromium.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from markupsafe import Markup

import runner.pages
from runner.base.text import in_one_line
from runner.pages.html import PageView, as_json, escape_plain, mark_hidden, policy, render_template, script, style
from tests.support.hostile_payloads import PAYLOADS
from tests.support.hostile_text import SHOWN_MANIFEST_FIELDS, expected_in_file, release_with_manifest
from tests.support.report_pages import ParsedPage, parse_page, report, visible_text

ALLOWED_ELEMENTS = frozenset(
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
"""Elements that pages may contain; none of them loads anything or sends a request."""


def find_faults(page: ParsedPage) -> list[str]:
    """Return the elements and attributes that no page may have."""
    problems = [f"<{element.tag}>" for element in page.elements if element.tag not in ALLOWED_ELEMENTS]
    for element in page.elements:
        for name, value in element.attributes.items():
            if name.startswith("on") or name in ("style", "src", "srcdoc", "action", "formaction", "autofocus"):
                problems.append(f"<{element.tag} {name}>")
            if name.endswith("href") and not (value or "").startswith("#"):
                problems.append(f"<{element.tag} {name}={value}>")
    counts = [sum(element.tag == tag for element in page.elements) for tag in ("style", "body", "main", "h1")]
    return [*problems, *page.unclosed, *([] if counts == [1, 1, 1, 1] else [f"elements there is one of: {counts}"])]


@pytest.mark.full
def test_report_of_a_hostile_run_has_only_allowed_elements(hostile_run_folder: Path) -> None:
    page = parse_page(report(hostile_run_folder))
    assert find_faults(page) == []
    assert len([element for element in page.elements if element.tag == "title"]) >= 1
    for number, text in enumerate(PAYLOADS.values()):
        assert visible_text(f"p{number} {expected_in_file(text)[:60]}") in page.text


def test_text_beside_a_hidden_character_is_escaped() -> None:
    marked = mark_hidden("<b>\u202e</b>")
    assert marked.startswith("&lt;b&gt;<span ")
    assert marked.endswith("</span>&lt;/b&gt;")


@pytest.mark.sample(1)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_shown_field_of_a_hostile_manifest_is_text(
    payload: str, hostile_run_folder: Path, tmp_path: Path
) -> None:
    text = PAYLOADS[payload]
    page = parse_page(report(release_with_manifest(hostile_run_folder, tmp_path / "run", text)))
    assert find_faults(page) == []
    missing = [
        field for field in SHOWN_MANIFEST_FIELDS if visible_text(f"{field}: {expected_in_file(text)}") not in page.text
    ]
    assert missing == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_json_data_in_a_page_is_escaped_and_unchanged(payload: str) -> None:
    data = {"text": expected_in_file(PAYLOADS[payload]), expected_in_file(PAYLOADS[payload]): [1]}
    script_text = str(as_json(data))
    assert not set("<>&") & set(script_text)
    assert json.loads(script_text) == data


@pytest.mark.parametrize(
    ("character", "name"),
    [
        ("\x00", "NUL"), ("\x1b", "ESC"), ("\x08", "U+0008"), ("\x7f", "DEL"), ("\x85", "U+0085"), ("\xad", "SHY"),
        ("\u202e", "RLO"), ("\u2066", "LRI"), ("\u200f", "RLM"), ("\u200b", "ZWSP"), ("\ufeff", "BOM"),
        ("\u061c", "U+061C"), ("\u2028", "U+2028"), ("\u2029", "U+2029"), ("\ud800", "U+D800"), ("\ue000", "U+E000"),
        ("\U000e0041", "U+E0041"), ("\r", "U+000D"),
    ],
)  # fmt: skip
def test_invisible_character_is_shown_as_a_mark_with_its_name(character: str, name: str) -> None:
    assert visible_text(f"a{character}b") == f"a{name}b"


def test_every_invisible_character_of_a_text_becomes_a_mark() -> None:
    assert visible_text("\u202e\u202e– <b>[^-]\n\x00\\\t&\ud800é\x7f") == "RLORLO– <b>[^-]\nNUL\\\t&U+D800éDEL"


def test_visible_characters_stay_unchanged() -> None:
    for text in ("tab\tand\nline", "שלום", "中文", "é", "🙂", "{{7*7}}", "&lt;"):
        assert visible_text(text) == text


def test_template_does_not_evaluate_its_values() -> None:
    page = parse_page(render_template(
        "base.html",
        PageView(
            title="{{7*7}}<b>",
            policy=policy(connects=False),
            style=Markup(),
            links=[("run/a b\"<>'&?#/games", "<i>x")],
        ),
    ))  # fmt: skip
    assert "{{7*7}}<b>" in page.text
    (link,) = [
        element.attributes["href"]
        for element in page.elements
        if element.tag == "a" and element.attributes["href"] != "#main"
    ]
    assert link == "#/run/a%20b%22%3C%3E%27%26%3F%23/games"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_page_title_is_one_line_without_invisible_characters(payload: str) -> None:
    """A title cannot contain marks: a browser shows its elements as text."""
    text = f"{PAYLOADS[payload]}\n&amp;\t"
    page = render_template("base.html", PageView(title=text, policy=policy(connects=False), style=Markup()))
    assert find_faults(parse_page(page)) == []
    assert unescape(page.partition("<title>")[2].partition("</title>")[0]) == in_one_line(text)


def test_content_policy_allows_only_our_script_and_style_by_hash() -> None:
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


def test_script_contains_no_html_injection_calls_or_external_addresses() -> None:
    script_text = script().replace("http://www.w3.org/2000/svg", "")
    assert [pattern for pattern in FORBIDDEN if pattern in script_text] == []


def test_stylesheet_loads_nothing() -> None:
    assert not re.search(r"url\(|@import|@font-face|expression\(", style())


def test_no_name_is_declared_twice_in_the_script() -> None:
    """The files share one scope, so a name declared twice would break the script of every page."""
    declared_names = re.findall(r"^(?:async )?(?:function\*?|const|let|class) (\w+)", script(), re.MULTILINE)
    assert [name for name, count in Counter(declared_names).items() if count > 1] == []


ATTRIBUTE_EXPRESSION = re.compile(r"""[\w-]+=["'][^"'{>]*\{\{((?:[^}"']|"[^"]*"|'[^']*')*)\}\}""")
SAFE_EXPRESSIONS = (
    "policy", "(100 * share) | round(1)", "low | round(1) + 2", "high | round(1) + 2", "value | round(1) + 2", "kind",
    "row.kind", "longest", "loop.index", "turn.color", "max_days", "max_name",
)  # fmt: skip
"""Expressions whose values the program generates."""


def test_template_attributes_use_only_escaped_or_safe_expressions() -> None:
    """A mark is an element, which would break out of an attribute."""
    unsafe_expressions = [
        f"{path.name}: {expression}"
        for path in sorted(Path(runner.pages.__file__).parent.rglob("templates/**/*.html"))
        for expression in map(str.strip, ATTRIBUTE_EXPRESSION.findall(path.read_text("utf-8")))
        if expression not in SAFE_EXPRESSIONS and not re.search(r"(\| (plain|route|e)|\.href)$", expression)
    ]
    assert unsafe_expressions == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_attribute_text_stays_one_value_without_invisible_characters(payload: str) -> None:
    (element,) = parse_page(f'<p title="{escape_plain(PAYLOADS[payload])}">').elements
    assert element.attributes == {"title": in_one_line(PAYLOADS[payload])}
    assert visible_text(str(element.attributes["title"])) == element.attributes["title"]
