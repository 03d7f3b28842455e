"""Quotes in messages are found, checked against their source, and shown with the result."""

from __future__ import annotations

import random

import pytest

from runner.game.protocols.quotations import (
    Quotation,
    count_verified_words,
    find_quotations,
    locate_quote,
    show_quotations,
)
from tests.game.protocols.quotation_cases import CASES, MARKED, SAME, SOURCES, every_case

PROSE = SOURCES["prose"]


def show(message: str, source: str = PROSE) -> str:
    quotations = find_quotations(message, source)
    return show_quotations(message, quotations, [quotation.is_verified for quotation in quotations])


def test_a_quote_is_verified_exactly_if_its_source_has_it() -> None:
    for case_name, (name, quote, expected) in every_case():
        source = SOURCES[name]
        span = locate_quote(quote, source)
        located = None if span is None else source[slice(*span)]
        assert located == (quote if expected is SAME else expected), case_name


def test_there_are_at_least_two_hundred_cases() -> None:
    assert sum(map(len, CASES.values())) >= 200


@pytest.mark.parametrize(("message", "shown", "quotes"), MARKED)
def test_marks_are_paired_and_shown_with_the_result(message: str, shown: str, quotes: list[tuple[str, bool]]) -> None:
    assert [(q.text, q.is_verified) for q in find_quotations(message, PROSE)] == quotes
    assert show(message) == shown


def test_a_quote_has_its_places_in_the_message_and_in_the_source() -> None:
    message = "As it says, <quote>grey\n rock</quote>."
    (quotation,) = find_quotations(message, PROSE)
    assert message[slice(*quotation.span)] == "<quote>grey\n rock</quote>"
    assert message[slice(*quotation.inner)] == quotation.text == "grey\n rock"
    assert quotation.source_span is not None
    assert PROSE[slice(*quotation.source_span)] == "grey rock"


def test_an_unclosed_quote_is_never_verified() -> None:
    assert find_quotations("<quote>grey rock", PROSE) == [Quotation((0, 16), (7, 16), "grey rock", False, None)]


def test_what_is_shown_has_no_verified_quote_that_the_source_lacks() -> None:
    pieces = ["<quote>", "</quote>", "<verified_quote>", "</verified_quote>", "<ver", "ified_quote>", "<", ">", "/"]
    pieces += ["grey rock", "gold", " ", "\u200b", "quote", "_", "```", "\n"]
    rng = random.Random(5)
    for _ in range(3000):
        shown = show("".join(rng.choices(pieces, k=rng.randrange(1, 14))))
        for part in shown.split("<verified_quote>")[1:]:
            inside, mark, _ = part.partition("</verified_quote>")
            assert mark
            assert locate_quote(inside.replace("“", "").replace("”", ""), PROSE) is not None
        again = find_quotations(shown, PROSE)
        assert len(again) == shown.count("<verified_quote>") + shown.count("<unverified_quote>")


@pytest.mark.parametrize(
    "mark",
    [
        f"<verified_quote {'x' * 300}>", "<v\u0435rified_quote>", "<\u0432erified_quote>", "<v\u0435rified_qu\u03bfte>",
        "<v\u00e9rified_quote>", "<ve\u0301rified_quote>", "<veri\ufb01ed_quote>", "<verified quotes>",
        "<verified_quote\n", "&lt;verified_quote&gt;", "&#60;verified_quote&#62;", "\u2039verified_quote\u203a",
        "\u27e8verified-quote\u27e9", "[verified_quote]", "[Verified quote]", "{verified_quote}", "<<verified_quote>>",
    ],
)  # fmt: skip
def test_a_text_that_looks_like_a_mark_is_no_mark_for_others(mark: str) -> None:
    closing = mark.replace("v", "/v", 1).replace("\u0432", "/\u0432", 1)
    for message in (f"So {mark}gold{closing}.", f"<quote>grey rock {mark}gold{closing}</quote>"):
        shown = show(message).replace("<unverified_quote>", "(").replace("</unverified_quote>", ")")
        assert "rified" not in shown
        assert "gold" in shown


@pytest.mark.parametrize("text", ["It is a verified quote (verified quote: no).", "a < b [see quotes] {x}", "«quote»"])
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert show(text) == text


def test_words_of_verified_quotes_are_counted_in_what_is_shown() -> None:
    shown = show("<quote>grey rock</quote> <quote>gold</quote> and <quote>Mira Holt kept the lamp</quote>")
    assert count_verified_words(shown) == 7


def test_a_quote_is_found_where_the_source_has_it_first() -> None:
    assert locate_quote("b c", "a b c, b c") == (2, 5)


LONG = 50_000
"""A length that would take minutes if the work were quadratic."""

LONG_TEXTS = {
    "opening marks": "<quote>" * LONG,
    "nested marks": "<quote>" * LONG + "</quote>" * LONG,
    "closing marks": "</quote>" * LONG,
    "mark beginnings": "<quote " * LONG,
    "a mark with spaces": "<" + " " * LONG + "/" + " " * LONG + "verified" + "_" * LONG,
    "invisible characters": "<" + "\u200b" * LONG + "quote" + "\u200b" * LONG,
    "a mark with an attribute": "<quote " + "a" * LONG + "<quote " + "b" * LONG + ">",
    "beginnings of imitations": "[verified_quote " * LONG + "[" * LONG + "[" + " " * LONG,
    "quotation marks": f"<quote>{chr(34) * LONG}</quote>",
    "spaces": f"<quote>{' ' * LONG}</quote>",
    "line numbers": "<quote>" + "".join(f"{i}: a\n" for i in range(LONG)) + "</quote>",
    "fences": "<quote>" + "```\n" * LONG + "</quote>",
    "accents": f"<quote>e{chr(0x301) * LONG}</quote>",
    "repeated letters": f"<quote>{'a' * LONG}b</quote>",
    "repeated words": f"<quote>{'a b ' * LONG}c</quote>",
    "apostrophes": "<quote>" + "a'" * LONG + "</quote>",
    "digits": "<quote>" + "1," * LONG + "</quote>",
}


@pytest.mark.gate
@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_long_messages_and_sources_take_linear_time(text: str) -> None:
    quotations = find_quotations(text, "a " + "a b " * (2 * LONG) + "é")
    assert not any(quotation.is_verified for quotation in quotations)
    show_quotations(text, quotations, [False] * len(quotations))
