"""Answers of people to an analyzer's question: JSON lines in the folder of the analysed run.

The file is `labels/NAME-QUESTION.jsonl`, where QUESTION is the first 10 digits of the question's hash. Lines are only
appended. The last line of a reader about a unit counts; `answer: null` takes an earlier label back.
"""

from __future__ import annotations

from dataclasses import dataclass

LABELS = "labels"
"""The subfolder of a run with the answers of people."""


@dataclass(frozen=True)
class Label:
    """A person's answer for one unit."""

    unit_id: str
    answer: str | None
    """One of the analyzer's answers; None if the reader took the label back."""
    reader: str
    time: str
    """The time of the answer in UTC, such as 2026-01-31T09:30:00Z."""
    analyzer: str
    analyzer_sha256: str
    question_sha256: str
    seconds: float | None = None
    """The time that the answer took; None for imported labels."""
    stratum: str | None = None
    """The stratum from which the unit was drawn: a model's answer; None if units were drawn from all."""
    drawn: int | None = None
    """The position in the random order of units, from 0; None for imported labels."""
