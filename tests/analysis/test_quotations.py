"""Quotations of every kind, from `quotations.jsonl`: hand-written messages about six sources.

A case lists, for each quotation, the matching text of the source, or null if no source contains it.
"""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from runner.analysis.quotation_search import check_quotations, find_marked_texts
from tests.support.files import json_lines
from tests.support.paths import ROOT

LINES = json_lines(ROOT / "tests/analysis/quotations.jsonl")
SOURCES = {line["name"]: line["text"] for line in LINES if "name" in line}
CASES = [line for line in LINES if "message" in line]


def test_each_quotation_is_found_in_its_source_or_reported_as_missing() -> None:
    failures = []
    for case in CASES:
        source = SOURCES[case["source"]]
        actual = [
            None if quotation.source_span is None else source[slice(*quotation.source_span)]
            for quotation in check_quotations(case["message"], [("source", source)])
        ]
        if actual != case["expect"]:
            failures.append((case["topic"], case["message"], case["expect"], actual))
    assert failures == []


def test_the_cases_are_many_and_varied() -> None:
    topics = Counter(case["topic"] for case in CASES)
    assert len(CASES) >= 200
    assert len({case["message"] for case in CASES}) == len(CASES)
    assert min(topics.values()) >= 10
    assert len(topics) >= 9


@pytest.mark.parametrize("text", ["`", "«", "“", "‘a ", "` `` ", "» «", '"a ', "\n```", "\n> ", "\n ", " ...", "(. "])
def test_message_of_quotation_marks_alone_is_checked_in_linear_time(text: str) -> None:
    """At this length, quadratic time takes a minute and exceeds the suite's time limit for a test."""
    message = text * (50_000 // len(text))
    assert len(find_marked_texts(message)) <= len(message)
    assert len(find_marked_texts(re.sub(r"\s", "x", message))) <= len(message)
    check_quotations(f"“a{message}", [("source", "a")])


@pytest.mark.parametrize("message", ['"' + "the ... " * 10_000 + 'x"', "`the cat `" * 10_000])
def test_repetitive_message_is_checked_against_a_long_source_in_seconds(message: str) -> None:
    started = time.process_time()
    check_quotations(message, [("source", "the quick brown fox jumps over the lazy dog " * 2_000)])
    assert time.process_time() - started < 5
