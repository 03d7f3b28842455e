"""Answers of people to an analyzer's question: JSON lines in the folder of the analysed run.

The file is `labels/NAME-QUESTION.jsonl`, where QUESTION is the first 10 digits of the question's hash. Lines are only
appended. The last line of a reader about a unit counts; `answer: null` takes an earlier label back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from runner.analysis.analyzer import Analyzer
from runner.base.errors import RunError, UsageError
from runner.base.question_queue import check_name
from runner.base.storage.line_file import LineFile, parse_record
from runner.base.text import comma_join
from runner.results.folder import RunFolder

LABELS = "labels"
"""The subfolder of a run with the answers of people."""
MAX_PROBLEMS = 20
"""The maximum number of damaged lines, or of different errors, that a message lists."""


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
    stratified_by: str | None = None
    """The name of the strata: the instrument whose answers they are, and the hash of these; see `strata.py`."""
    probability: float | None = None
    """The probability of drawing the unit from its stratum, or from all units; None if unknown."""


class LabelFile:
    """The labels of one analyzer's question on one run."""

    def __init__(self, run: Path, analyzer: Analyzer) -> None:
        """`run` is the folder of the run."""
        self.analyzer = analyzer
        stem = f"{analyzer.name}-{analyzer.question_sha256[:10]}"
        *self._published, self.path = (folder / f"{stem}.jsonl" for folder in label_folders(run))
        self._file = LineFile(self.path, self.path.with_name(f".{stem}.lock"), f"{self.path.name} of run {run.name}")

    def current(self) -> list[Label]:
        """Return the labels that count: the last of each reader for each unit, without those taken back.

        They are ordered by time.

        Raises:
            RunError: the file cannot be read, or has lines that are not labels of this question; lists them.
        """
        return _current_labels(_parse_files((*self._published, self.path), self._problem))

    def append(self, labels: Sequence[Label]) -> None:
        """Append labels: all or none.

        Raises:
            UsageError: a label has an unknown answer, another question, or an invalid reader.
            RunError: the labels cannot be saved.
        """
        for label in labels:
            check_name(label.reader)
            if (problem := self._problem(label)) is not None:
                raise UsageError(f"{label.unit_id}: {problem}")
        with self._file.hold_lock():
            self._file.append(map(asdict, labels))

    def _problem(self, label: Label) -> str | None:
        """Return why a label does not belong to this question; None if it does."""
        if label.question_sha256 != self.analyzer.question_sha256:
            return f"the label belongs to another question, {label.question_sha256[:10]}"
        if label.answer is not None and label.answer not in self.analyzer.file.answers:
            return f"the answer {label.answer!r} is not one of {comma_join(self.analyzer.file.answers)}"
        return None


def read_labels(run: Path) -> dict[Path, list[Label]]:
    """Return the labels that count of all questions of a run, by file.

    Raises:
        RunError: a file cannot be read, or a complete line is not a label.
    """
    folders = label_folders(run)
    names = sorted({path.name for folder in folders for path in folder.glob("*.jsonl")})
    return {folders[-1] / name: _current_labels(_parse_files([folder / name for folder in folders])) for name in names}


def label_folders(run: Path) -> list[Path]:
    """Return the folders with labels: for a fetched release also that of the published labels, which comes first."""
    return list(dict.fromkeys(folder / LABELS for folder in (run, RunFolder(run).additions.path)))


def _parse_files(paths: Iterable[Path], problem_of: Callable[[Label], str | None] = lambda _: None) -> Iterator[Label]:
    for path in paths:
        yield from _parse_lines(path, LineFile(path, path, "").complete_lines(), problem_of)


def _current_labels(labels: Iterable[Label]) -> list[Label]:
    current: dict[tuple[str, str], Label] = {}
    for label in labels:
        current.pop((label.reader, label.unit_id), None)
        if label.answer is not None:
            current[label.reader, label.unit_id] = label
    return list(current.values())


def _parse_lines(path: Path, data: bytes, problem_of: Callable[[Label], str | None]) -> list[Label]:
    labels, problems = [], []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            label = parse_record(Label, line)
            problem = problem_of(label)
        except ValueError as error:
            problems.append(f"{path.name}:{number}: not a label: {error}")
            continue
        if problem is None:
            labels.append(label)
        else:
            problems.append(f"{path.name}:{number}: {problem}")
    if problems:
        more = f"\n  and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        listed = "".join(f"\n  {problem}" for problem in problems[:MAX_PROBLEMS])
        raise RunError(f"{path}: correct or remove these lines:{listed}{more}")
    return labels


# Several readers


class CombinedLabels(NamedTuple):
    """The answers of all readers."""

    answers: Mapping[str, str]
    """The answer of the majority, by unit."""
    ties: tuple[str, ...]
    """The units without a majority."""
    readers: Mapping[str, Mapping[str, str]]
    """The answers of each reader by unit."""

    @property
    def units(self) -> int:
        """The number of labeled units."""
        return len(self.answers) + len(self.ties)


def combine_labels(labels: Iterable[Label]) -> CombinedLabels:
    """Return the majority of the readers' answers for each unit. Two most frequent answers are a tie."""
    votes: dict[str, Counter[str]] = {}
    readers: dict[str, dict[str, str]] = {}
    for label in labels:
        if label.answer is not None:
            votes.setdefault(label.unit_id, Counter())[label.answer] += 1
            readers.setdefault(label.reader, {})[label.unit_id] = label.answer
    answers, ties = {}, []
    for unit_id in sorted(votes):
        first, *others = votes[unit_id].most_common(2)
        if others and others[0][1] == first[1]:
            ties.append(unit_id)
        else:
            answers[unit_id] = first[0]
    return CombinedLabels(answers, tuple(ties), dict(sorted(readers.items())))
