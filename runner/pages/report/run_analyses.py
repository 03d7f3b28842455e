"""The analyses of a run on its page: a table of rates, and the answers about each game for the script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runner.analysis.results import AnalysisTable, UnitResult
from runner.analysis.scores import RunAnalysis, cached_analyses, describe_model, find_validations
from runner.base.text import decimal
from runner.results.folder import RunFolder


@dataclass(frozen=True)
class AnalysisRow:
    """The results of one instrument."""

    analyzer: str
    instrument: str
    model: str
    unit: str
    rates: tuple[tuple[str, str], ...]
    """The name of each rate with its value: the share of an answer, or the mean of a scale."""
    games: int
    counts: Mapping[str, int]
    """The number of units by status."""
    validation: str


def analysis_rows(folder: RunFolder) -> list[AnalysisRow]:
    """Return the rows of the table of analyses. Raises RunError if a file of an analysis is damaged."""
    validations = find_validations(folder)
    return [_row(table, validations.get(table.instrument, "not validated")) for table in cached_analyses(folder)]


def _row(table: AnalysisTable, validation: str) -> AnalysisRow:
    numbers = RunAnalysis(table.analyzer, None, table.instrument, {table.run_id: table})
    rate, answers = numbers.rate(), Counter(result.answer for result in table.results if result.answer is not None)
    rates: tuple[tuple[str, str], ...]
    if rate.value is not None:
        counted = [answer for answer, value in (numbers.numbers or {}).items() if value == 1]
        rates = ((f"share of {' or '.join(counted)}" if numbers.is_share else "mean", decimal(rate.value)),)
    else:
        rates = tuple((answer, decimal(RunAnalysis(
            table.analyzer, answer, table.instrument, {table.run_id: table}
        ).rate().value)) for answer in sorted(answers))  # fmt: skip
    return AnalysisRow(
        table.analyzer, table.instrument, describe_model(table), table.unit, rates, rate.games,
        Counter(result.status for result in table.results), validation,
    )  # fmt: skip


def analyses_name(slug: str) -> str:
    """Return the name of the piece with the answers of a run's analyses."""
    return f"{slug}-analyses"


def analyses_data(folder: RunFolder) -> dict[str, list[dict[str, object]]]:
    """Return the answers about each game by rollout, without units that are not applicable. Raises RunError."""
    games: dict[str, list[dict[str, Any]]] = {}
    for table in cached_analyses(folder):
        for result in table.results:
            if result.status != "not_applicable":
                games.setdefault(result.rollout_id, []).append(_answer(table, result))
    return games


def _answer(table: AnalysisTable, result: UnitResult) -> dict[str, object]:
    names = ("agent", "channel", "round", "answer", "reason", "model")
    return {
        "analyzer": table.analyzer,
        "status": result.status,
        **{name: getattr(result, name) for name in names},
        "spans": [asdict(span) for span in result.spans],
    }
