"""The values of a run's games by an analysis: metric names such as `analysis:NAME@INSTRUMENT=ANSWER`, and rates.

A game's value is the mean over its units that have an answer. `=ANSWER` counts the units with this answer.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from runner.analysis.results import AnalysisTable, UnitResult, analysis_files, read_analyses
from runner.analysis.validation_log import VALIDATIONS, ValidationRecord, read_validations
from runner.base.errors import UsageError
from runner.base.text import comma_join, counted, did_you_mean, with_interval
from runner.results.comparison.analysis_metrics import ANALYSIS_PREFIX, NO_BETTER, UNDEFINED_KAPPA
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.table_columns import ANALYSES

_NAME = re.compile(
    r"(?P<analyzer>[^@=]*)(?:@(?P<first>[^=]*))?"
    r"(?:=(?P<answer>\"[^\"]*\"|.*?)(?(first)|(?:@(?P<last>[0-9a-f]+))?))?",
    re.DOTALL,
)


class AnalysisName(NamedTuple):
    """The parts of a metric's name."""

    analyzer: str
    instrument: str | None
    """The start of the instrument, or the whole instrument."""
    answer: str | None

    @classmethod
    def parse(cls, name: str) -> AnalysisName:
        """Parse `analysis:NAME[@INSTRUMENT][=ANSWER]`, with the last two parts in any order.

        An answer may have quotes, and needs them if it ends with `@` and hexadecimal digits.
        """
        match = _NAME.fullmatch(name.removeprefix(ANALYSIS_PREFIX))
        assert match is not None  # the pattern matches every text
        answer = match["answer"]
        return cls(match["analyzer"], match["first"] or match["last"], None if answer is None else answer.strip('"'))


@dataclass(frozen=True)
class RunAnalysis:
    """The results of one instrument on several runs, as a metric."""

    name: str
    answer: str | None
    instrument: str
    tables: Mapping[str, AnalysisTable]
    """The results by run."""

    @property
    def numbers(self) -> dict[str, float] | None:
        """The value of a unit with each possible answer; None if the answers are labels and none of them is chosen."""
        table = next(iter(self.tables.values()))
        if self.answer is not None:
            return {answer: float(answer == self.answer) for answer in table.answers}
        return None if table.answer_values is None else dict(zip(table.answers, table.answer_values, strict=True))

    @property
    def is_share(self) -> bool:
        """Whether a unit's value is 0 or 1."""
        return self.numbers is not None and set(self.numbers.values()) <= {0.0, 1.0}

    def value_of(self, result: UnitResult) -> float | None:
        """Return the value of a unit; None without an answer."""
        if result.status != "answered" or self.answer is None:
            return result.value
        return float(result.answer == self.answer)

    def game_values(self, run_id: str) -> dict[str, float]:
        """Return the values of a run's games by rollout, without games that have no answered unit."""
        values: dict[str, list[float]] = {}
        for result in self.tables[run_id].results:
            if (value := self.value_of(result)) is not None:
                values.setdefault(result.rollout_id, []).append(value)
        return {rollout: math.fsum(numbers) / len(numbers) for rollout, numbers in values.items()}

    def rate(self) -> AnalysisRate:
        """Return the mean over the datapoints of all runs. Like `compare`, it gives all datapoints the same weight."""
        points: dict[str, list[float]] = {}
        groups = set()
        for run_id, table in self.tables.items():
            values = self.game_values(run_id)
            for rollout, datapoint, group in {(r.rollout_id, r.datapoint_id, r.group): None for r in table.results}:
                if rollout in values:
                    points.setdefault(datapoint, []).append(values[rollout])
                    groups.add(group)
        means = [math.fsum(numbers) / len(numbers) for numbers in points.values()]
        games = sum(map(len, points.values()))
        return AnalysisRate(math.fsum(means) / len(means) if means else None, games, len(groups))


class AnalysisRate(NamedTuple):
    """The uncorrected mean of an analysis."""

    value: float | None
    games: int
    groups: int


def find_analysis(name: str, folders: Sequence[RunFolder]) -> RunAnalysis:
    """Return the analysis that all these runs have.

    Raises:
        UsageError: a run lacks the analysis or the answer, or several instruments are possible.
        RunError: a table is damaged.
    """
    parts = AnalysisName.parse(name)
    tables = {folder.run_id: _tables_of(folder, parts) for folder in folders}
    instruments = {table.instrument for run_tables in tables.values() for table in run_tables}
    if len(instruments) != 1:
        raise _ambiguous_instrument(name, parts, tables)
    (instrument,) = instruments
    chosen = {run_id: run_tables[0] for run_id, run_tables in tables.items()}
    _check_answer(name, parts, chosen)
    return RunAnalysis(name, parts.answer, instrument, chosen)


def _tables_of(folder: RunFolder, parts: AnalysisName) -> list[AnalysisTable]:
    """Return the tables of an analyzer, only those that the instrument in the name allows."""
    tables = cached_analyses(folder)
    own_tables = [table for table in tables if table.analyzer == parts.analyzer]
    if not own_tables:
        names = sorted({table.analyzer for table in tables})
        hint = did_you_mean(parts.analyzer, names) or (f"; it has {comma_join(names)}" if names else "")
        command = f"nip-run analyze {folder.run_id} {parts.analyzer}"
        raise UsageError(f"{folder.run_id} has no analysis {parts.analyzer!r} (to make one: {command}){hint}")
    if parts.instrument is None:
        return own_tables
    matching = [table for table in own_tables if table.instrument.startswith(parts.instrument)]
    if not matching:
        instruments = comma_join(table.instrument for table in own_tables)
        raise UsageError(
            f"{folder.run_id} has no {parts.analyzer}@{parts.instrument}; it has the instruments {instruments}"
        )
    return matching


def _ambiguous_instrument(name: str, parts: AnalysisName, tables: Mapping[str, Sequence[AnalysisTable]]) -> UsageError:
    listed = "\n".join(
        f"  {run_id}: {comma_join(f'{table.instrument} ({describe_model(table)})' for table in run_tables)}"
        for run_id, run_tables in tables.items()
    )
    answer = "" if parts.answer is None else f"={parts.answer}"
    return UsageError(
        f"{name}: there are several instruments (versions of the analyzer and its model):\n{listed}\nChoose one that "
        f"all runs have with {ANALYSIS_PREFIX}{parts.analyzer}@INSTRUMENT{answer}, or analyze the runs with the same "
        "analyzer and model"
    )


def _check_answer(name: str, parts: AnalysisName, tables: Mapping[str, AnalysisTable]) -> None:
    """Check that the answer is possible, and that answers without a number have a chosen one."""
    table = next(iter(tables.values()))
    answers = table.answers
    if parts.answer is not None and parts.answer not in answers:
        raise UsageError(
            f"{name}: {parts.answer!r} is not an answer of the analyzer; answers are {comma_join(answers)}"
        )
    if parts.answer is None and table.answer_values is None:
        raise UsageError(
            f"{name}: the answers are labels without a number; choose one: "
            f"{comma_join(f'{name}={answer}' for answer in answers)}"
        )


def describe_model(table: AnalysisTable) -> str:
    """Return the names of the models that answered; `code` stands for the analyzer's function."""
    return comma_join(Counter(result.model for result in table.results if result.model)) or "no answers"


def cached_analyses(folder: RunFolder) -> list[AnalysisTable]:
    """Return the analyses of a run, which are read once per process unless their files change."""
    return _read_once(folder, tuple((path.name, path.stat().st_mtime_ns) for path in analysis_files(folder)))


@cache
def _read_once(folder: RunFolder, _: tuple[tuple[str, int], ...]) -> list[AnalysisTable]:
    return read_analyses(folder)


def find_validations(folder: RunFolder) -> dict[str, str]:
    """Return the latest recorded validation of each instrument, in words, from this run and all runs next to it.

    Labels of this run count more than those of another one, even if they are older.

    Raises:
        RunError: a file is damaged.
    """
    records = sorted(find_validation_records(folder), key=lambda record: record.run_id == folder.run_id)
    return {record.instrument: _describe(record) for record in records}


def find_validation_records(folder: RunFolder) -> list[ValidationRecord]:
    """Return the last validations of all instruments from all runs next to this one, the oldest first.

    Raises:
        RunError: a file is damaged.
    """
    runs = [folder.path]
    if folder.name is None:
        runs += [other.path for other in Results.of(folder).folders_with(f"{ANALYSES}/{VALIDATIONS}")]
    files = {run.resolve(): run for run in runs}
    records = [record for run in files.values() for record in read_validations(run).values()]
    return sorted(records, key=lambda record: record.time)


def _describe(record: ValidationRecord) -> str:
    labels = f"{counted(record.labeled_units, 'label')} of {record.run_id}"
    if record.kappa is None:
        return f"not validated with {labels}: {UNDEFINED_KAPPA}, because people and the model gave only one answer"
    kappa = with_interval(record.kappa, record.kappa_low, record.kappa_high)
    if record.kappa_low is not None and record.kappa_low > 0:
        return f"validated with {labels}: kappa {kappa}"
    return f"validated on {record.run_id}: {NO_BETTER} (kappa {kappa}, {counted(record.labeled_units, 'label')})"
