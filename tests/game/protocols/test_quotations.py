"""Quotes in messages are found, checked against their source, and marked with the result."""

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
from tests.game.protocols.quotation_cases import CASES, MARKED_MESSAGES, QUOTE_ITSELF, SOURCES, iterate_cases

PROSE = SOURCES["prose"]


def mark_quotes(message: str, source: str = PROSE) -> str:
    quotations = find_quotations(message, source)
    return show_quotations(message, quotations, [quotation.is_verified for quotation in quotations])


def test_quote_is_verified_exactly_if_its_source_contains_it() -> None:
    for case_name, (name, quote, expected) in iterate_cases():
        source = SOURCES[name]
        span = locate_quote(quote, source)
        located = None if span is None else source[slice(*span)]
        assert located == (quote if expected is QUOTE_ITSELF else expected), case_name


def test_at_least_two_hundred_quotes_are_tested() -> None:
    assert sum(map(len, CASES.values())) >= 200


@pytest.mark.parametrize(("message", "expected", "quotes"), MARKED_MESSAGES)
def test_quote_marks_are_paired_and_shown_with_the_result(
    message: str, expected: str, quotes: list[tuple[str, bool]]
) -> None:
    assert [(q.text, q.is_verified) for q in find_quotations(message, PROSE)] == quotes
    assert mark_quotes(message) == expected


def test_quotation_has_its_spans_in_the_message_and_the_source() -> None:
    message = "As it says, <quote>grey\n rock</quote>."
    (quotation,) = find_quotations(message, PROSE)
    assert message[slice(*quotation.span)] == "<quote>grey\n rock</quote>"
    assert message[slice(*quotation.inner)] == quotation.text == "grey\n rock"
    assert quotation.source_span is not None
    assert PROSE[slice(*quotation.source_span)] == "grey rock"


def test_unclosed_quote_is_never_verified() -> None:
    assert find_quotations("<quote>grey rock", PROSE) == [Quotation((0, 16), (7, 16), "grey rock", False, None)]


def test_random_messages_never_show_a_verified_quote_that_the_source_lacks() -> None:
    pieces = ["<quote>", "</quote>", "<verified_quote>", "</verified_quote>", "<ver", "ified_quote>", "<", ">", "/"]
    pieces += ["grey rock", "gold", " ", "\u200b", "quote", "_", "```", "\n"]
    rng = random.Random(5)
    for _ in range(3000):
        marked_message = mark_quotes("".join(rng.choices(pieces, k=rng.randrange(1, 14))))
        for part in marked_message.split("<verified_quote>")[1:]:
            quote, mark, _ = part.partition("</verified_quote>")
            assert mark
            assert locate_quote(quote.replace("“", "").replace("”", ""), PROSE) is not None
        quotations = find_quotations(marked_message, PROSE)
        assert len(quotations) == marked_message.count("<verified_quote>") + marked_message.count("<unverified_quote>")


@pytest.mark.parametrize(
    "mark",
    [
        f"<verified_quote {'x' * 300}>", "<v\u0435rified_quote>", "<\u0432erified_quote>", "<v\u0435rified_qu\u03bfte>",
        "<v\u00e9rified_quote>", "<ve\u0301rified_quote>", "<veri\ufb01ed_quote>", "<verified quotes>",
        "<verified_quote\n", "&lt;verified_quote&gt;", "&#60;verified_quote&#62;", "\u2039verified_quote\u203a",
        "\u27e8verified-quote\u27e9", "[verified_quote]", "[Verified quote]", "{verified_quote}", "<<verified_quote>>",
    ],
)  # fmt: skip
def test_imitations_of_a_verified_mark_are_removed(mark: str) -> None:
    closing = mark.replace("v", "/v", 1).replace("\u0432", "/\u0432", 1)
    for message in (f"So {mark}gold{closing}.", f"<quote>grey rock {mark}gold{closing}</quote>"):
        marked_message = mark_quotes(message).replace("<unverified_quote>", "(").replace("</unverified_quote>", ")")
        assert "rified" not in marked_message
        assert "gold" in marked_message


@pytest.mark.parametrize("text", ["It is a verified quote (verified quote: no).", "a < b [see quotes] {x}", "«quote»"])
def test_other_texts_are_shown_unchanged(text: str) -> None:
    assert mark_quotes(text) == text


def test_words_of_verified_quotes_are_counted_in_the_shown_message() -> None:
    marked_message = mark_quotes(
        "<quote>grey rock</quote> <quote>gold</quote> and <quote>Mira Holt kept the lamp</quote>"
    )
    assert count_verified_words(marked_message) == 7


def test_quote_is_located_at_its_first_occurrence() -> None:
    assert locate_quote("b c", "a b c, b c") == (2, 5)


LONG_COUNT = 50_000
"""A number of repetitions that takes minutes in quadratic time."""

LONG_TEXTS = {
    "opening marks": "<quote>" * LONG_COUNT,
    "nested marks": "<quote>" * LONG_COUNT + "</quote>" * LONG_COUNT,
    "closing marks": "</quote>" * LONG_COUNT,
    "mark beginnings": "<quote " * LONG_COUNT,
    "a mark with spaces": "<" + " " * LONG_COUNT + "/" + " " * LONG_COUNT + "verified" + "_" * LONG_COUNT,
    "invisible characters": "<" + "\u200b" * LONG_COUNT + "quote" + "\u200b" * LONG_COUNT,
    "a mark with an attribute": "<quote " + "a" * LONG_COUNT + "<quote " + "b" * LONG_COUNT + ">",
    "beginnings of imitations": "[verified_quote " * LONG_COUNT + "[" * LONG_COUNT + "[" + " " * LONG_COUNT,
    "quotation marks": f"<quote>{chr(34) * LONG_COUNT}</quote>",
    "spaces": f"<quote>{' ' * LONG_COUNT}</quote>",
    "line numbers": "<quote>" + "".join(f"{i}: a\n" for i in range(LONG_COUNT)) + "</quote>",
    "fences": "<quote>" + "```\n" * LONG_COUNT + "</quote>",
    "accents": f"<quote>e{chr(0x301) * LONG_COUNT}</quote>",
    "repeated letters": f"<quote>{'a' * LONG_COUNT}b</quote>",
    "repeated words": f"<quote>{'a b ' * LONG_COUNT}c</quote>",
    "apostrophes": "<quote>" + "a'" * LONG_COUNT + "</quote>",
    "digits": "<quote>" + "1," * LONG_COUNT + "</quote>",
}


@pytest.mark.gate
@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_long_messages_and_sources_take_linear_time(text: str) -> None:
    quotations = find_quotations(text, "a " + "a b " * (2 * LONG_COUNT) + "é")
    assert not any(quotation.is_verified for quotation in quotations)
    show_quotations(text, quotations, [False] * len(quotations))
