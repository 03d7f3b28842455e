"""Parsing of stated confidences."""

from __future__ import annotations

import time
from contextlib import suppress
from decimal import Decimal

import pytest

from runner.base.errors import InvalidConfidenceError, InvalidDecisionError
from runner.game.protocols.answer_parser import DecisionFormat, ParsedAnswer, parse_answer, verdict_fork
from runner.game.protocols.confidence import stated_confidence
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Decision

SOLO = load_protocol("solo_verifier")
MARKER = "Confidence:"


def parse_verifier_answer(
    text: str, format_: DecisionFormat | None = None, *, states_confidence: bool = True
) -> ParsedAnswer:
    format_ = format_ or DecisionFormat()
    return parse_answer(SOLO, "verifier", 0, text, format_, states_confidence=states_confidence)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.8", "0.8"), (".8", "0.8"), ("0.80", "0.8"), ("1", "1"), ("1.", "1"), ("0", "0"), ("0.8.", "0.8"),
        ("80%", "0.8"), ("80 %", "0.8"), ("80 percent", "0.8"), ("80 Per cent.", "0.8"), ("99.5%", "0.995"),
        ("100%", "1"), ("0%", "0"), ("**0.8**", "0.8"), ("`0.8`", "0.8"), ("<0.8>", "0.8"), ("[80%]", "0.8"),
        ("0.8 (fairly sure)", "0.8"), ("0.8, since line 3 fails", "0.8"), ("0.8 - fairly sure", "0.8"),
    ],
)  # fmt: skip
def test_confidence_is_parsed_in_its_usual_forms(value: str, expected: str) -> None:
    for line in (f"Confidence: {value}", f"**Confidence:** {value}  ", f"- confidence : {value}\r"):
        assert stated_confidence(f"It holds.\n\nDecision: accept\n{line}\nEnd 3.", MARKER) == Decimal(expected)


@pytest.mark.parametrize(
    "value",
    [
        "", "high", "NaN", "inf", "1e9", "1e-1", "-0.2", "+0.2", "0,8", "80", "1.2", "101%", "0.8%", "8/10", "1 / 10",
        "1 out of 10", "0.8-0.9", "0.8 to 0.9", "0.8 \u00b1 0.1", "0.8.5", "0x1", "<0 to 1>", "<0.8", "0.8 (80%)",
        "\u0660.\u0668", "\uff10.\uff18", "\u00bd", "0.8abc", "0.8\nConfidence: 0.3", "NaN\nConfidence: 3",
        "0." + "8" * 100, "9" * 10_000,
    ],
)  # fmt: skip
def test_value_other_than_one_probability_is_an_invalid_decision(value: str) -> None:
    with pytest.raises(InvalidConfidenceError) as caught:
        parse_verifier_answer(f"Decision: reject\nConfidence: {value}")
    assert isinstance(caught.value, InvalidDecisionError)
    assert len(str(caught.value)) < 200
    assert parse_verifier_answer(f"Decision: reject\nConfidence: {value}", states_confidence=False) == ParsedAnswer(
        None, Decision.REJECT
    )


def test_repeated_equal_confidence_counts_once_and_prose_is_ignored() -> None:
    assert stated_confidence("My confidence: high. Confidence: 0.7\nConfidence: 70%", MARKER) == Decimal("0.7")
    with pytest.raises(InvalidConfidenceError, match="no 'Confidence:' with a number"):
        stated_confidence("overconfidence: 0.7, and\nConfidence:\n0.7", MARKER)


def test_stated_confidence_becomes_the_probability_of_accept() -> None:
    assert parse_verifier_answer("Decision: accept\nConfidence: 0.8") == ParsedAnswer(None, Decision.ACCEPT, 0.8)
    assert parse_verifier_answer("Decision: reject\nConfidence: 80%") == ParsedAnswer(None, Decision.REJECT, 0.2)
    assert parse_verifier_answer("Confidence: 0.3\nDecision: reject") == ParsedAnswer(None, Decision.REJECT, 0.7)
    decision_format = DecisionFormat(marker="Verdict", accept="Verdict: yes", reject="Verdict: no", confidence="P =")
    assert parse_verifier_answer("Verdict: no. P = 0.9", decision_format) == ParsedAnswer(None, Decision.REJECT, 0.1)


def test_answer_without_a_verdict_needs_no_confidence() -> None:
    nip = load_protocol("nip")
    answer = parse_answer(nip, "verifier", 2, "Why? Confidence: 3", DecisionFormat(), states_confidence=True)
    assert answer == ParsedAnswer({"main": "Why? Confidence: 3"}, Decision.NONE)


REPEATED_TEXTS = {
    "markers": ("", "confidence:"), "words": ("", "confidence "), "blanks": ("Confidence", " "),
    "marks": ("Confidence: ", "*"), "digits": ("Confidence: ", "1"), "points": ("Confidence: 0.8", "."),
    "dashes": ("Confidence: 1 ", "-"),
}  # fmt: skip
"""The beginning of a text, and the part that is repeated after it."""


@pytest.mark.parametrize("size", [1_000_000, pytest.param(10_000_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", REPEATED_TEXTS)
def test_confidence_in_megabytes_of_text_is_parsed_in_linear_time(kind: str, size: int) -> None:
    start, repeated = REPEATED_TEXTS[kind]
    text = start + repeated * (size // len(repeated))
    started = time.process_time()
    with suppress(InvalidConfidenceError):
        stated_confidence(text, MARKER)
    assert time.process_time() - started < 30  # backtracking would take hours


@pytest.mark.parametrize(
    ("text", "options", "text_after_fork"),
    [
        ("So. Decision: Accept", {}, "Accept"),
        ("Decision: reject", {}, "reject"),
        ("\u0130! **Decision:**  *Reject*.", {"lenient": True}, "Reject*."),
        ("correct", {"marker": "correct", "accept": "correct", "reject": "corrupt"}, "ect"),
        ("Decision: maybe", {}, None),
        ("Yes, not", {"marker": "Yes", "accept": "Yes", "reject": "Yes, not"}, None),
    ],
)
def test_verdict_fork_is_at_the_first_character_that_differs(
    text: str, options: dict[str, object], text_after_fork: str | None
) -> None:
    format_ = DecisionFormat(**options)  # type: ignore[arg-type]
    fork = verdict_fork(text, format_)
    assert (None if fork is None else text[fork.at :]) == text_after_fork
    if fork is not None and not options.get("marker"):
        assert (fork.accept, fork.reject) == ("accept", "reject")
