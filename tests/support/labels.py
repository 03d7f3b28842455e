"""Analyzers and labels of tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.analysis.analyzer import Analyzer, AnalyzerFile
from runner.analysis.labels import Label


def yes_no_analyzer(**keys: Any) -> Analyzer:
    """Return an analyzer of a yes-or-no question about channels."""
    return Analyzer(AnalyzerFile(**{"name": "tone", "unit": "channel", "question": "Is it polite?", **keys}), Path())


def label(analyzer: Analyzer, unit_id: str, answer: str | None, reader: str = "Ann", **fields: Any) -> Label:
    """Return a label with a fixed time."""
    return Label(
        unit_id, answer, reader, "2026-01-31T09:30:00Z", analyzer.name, analyzer.sha256, analyzer.question_sha256,
        **fields,
    )  # fmt: skip


def labels_of(analyzer: Analyzer, answers: Sequence[str], reader: str = "Ann") -> list[Label]:
    """Return a label of the units `u0`, `u1`, ... for each answer."""
    return [label(analyzer, f"u{number}", answer, reader) for number, answer in enumerate(answers)]
