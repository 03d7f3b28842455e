"""Analyzers and labels of tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.analysis.analyzer import Analyzer, AnalyzerFile
from runner.analysis.labels import Label
from runner.analysis.results import AnalysisTable, UnitResult


def yes_no_analyzer(**keys: Any) -> Analyzer:
    """Return an analyzer of a yes-or-no question about channels."""
    return Analyzer(AnalyzerFile(**{"name": "tone", "unit": "channel", "question": "Is it polite?", **keys}), Path())


def label(analyzer: Analyzer, unit_id: str, answer: str | None, reader: str = "Ann", **fields: Any) -> Label:
    """Return a label with a fixed time."""
    return Label(
        unit_id, answer, reader, "2026-01-31T09:30:00Z", analyzer.name, analyzer.sha256, analyzer.question_sha256,
        **fields,
    )  # fmt: skip


def make_labels(analyzer: Analyzer, answers: Sequence[str], reader: str = "Ann") -> list[Label]:
    """Return a label of the units `u0`, `u1`, ... for each answer."""
    return [label(analyzer, f"u{number}", answer, reader) for number, answer in enumerate(answers)]


def make_analysis_table(
    analyzer: Analyzer,
    answers: Sequence[str | None],
    instrument: str = "0123456789",
    *,
    group_size: int = 2,
    **fields: Any,
) -> AnalysisTable:
    """Return results with an answer for each of the units `u0`, `u1`, ...; `fields` change the table's fields."""
    results = tuple(
        UnitResult(
            f"u{number}", f"r{number}", f"p{number}", f"g{number // group_size}", "prover", "main", None,
            "no_answer" if answer is None else "answered", answer, analyzer.value_of(answer), None, "tiny",
        )
        for number, answer in enumerate(answers)
    )  # fmt: skip
    values = {
        "run_id": "tiny", "analyzer": analyzer.name, "analyzer_sha256": analyzer.sha256,
        "question_sha256": analyzer.question_sha256, "instrument": instrument, "analysis_run_id": None,
        "answers": analyzer.file.answers, "answer_values": analyzer.answer_values,
    }  # fmt: skip
    return AnalysisTable(**{**values, **fields}, results=results)
