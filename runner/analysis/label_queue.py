"""The units that each reader still has to label: for each reader all units of a sample, in the same random order.

The file of labels is the only state. So a reader goes on at the same unit after a reload of the page or a new start of
the command. Readers see neither answers of models nor answers of other readers.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from runner.analysis.analyzer import Analyzer
from runner.analysis.instructions import column_texts, render_question
from runner.analysis.label_sample import SampledUnit
from runner.analysis.labels import Label, LabelFile
from runner.analysis.units import Unit
from runner.base.errors import UsageError
from runner.base.hashing import tagged_hash
from runner.base.question_queue import FormField, Question, check_name
from runner.base.text import comma_join
from runner.results.manifest import now

ANSWER = "answer"


class LabelQuestion(NamedTuple):
    """A unit as readers see it."""

    messages: Sequence[Mapping[str, object]]
    """The texts to show, each with `content` and optionally `role` and `name`."""
    text: str
    """The question about the unit."""


class LabelQueue:
    """Gives each reader the units of a sample one after another, and appends the labels to the file."""

    def __init__(
        self,
        file: LabelFile,
        sample: Sequence[SampledUnit],
        describe: Callable[[str], LabelQuestion],
        *,
        stratified_by: str | None = None,
        readers: Collection[str] = (),
    ) -> None:
        """`describe` returns the question about a unit; `readers` are the names that may label, empty: any."""
        self._file, self._sample, self._describe = file, sample, describe
        self._stratified_by, self._readers = stratified_by, readers
        self._secret = secrets.token_hex(8)
        self._lock = threading.RLock()
        self._first_seen: dict[str, tuple[str, float]] = {}
        """The unit that each reader has, and when it was shown."""

    def take(self, person: str) -> Question | None:
        """Return the first question that a reader has not answered; None if there is none.

        Raises:
            UsageError: the name is invalid, or not one of the readers.
            RunError: the labels cannot be read.
        """
        self._check_reader(person)
        with self._lock:
            unit = self._next_unit(person)
            if unit is None:
                return None
            if self._first_seen.get(person, ("", 0.0))[0] != unit.unit_id:
                self._first_seen[person] = unit.unit_id, time.monotonic()
        question = self._describe(unit.unit_id)
        field = FormField(ANSWER, question.text, "choice", self._file.analyzer.file.answers)
        return Question(question.messages, [field], lambda _: None, id=self._question_id(person, unit))

    def answer(self, person: str, question_id: str, values: Mapping[str, str]) -> None:
        """Save a reader's answer.

        Raises:
            UsageError: the answer is not one of the options, or the reader has another question now.
            RunError: the label cannot be saved.
        """
        self._check_reader(person)
        options = self._file.analyzer.file.answers
        if (answer := values.get(ANSWER)) not in options:
            keys = (f"{number} for {option!r}" for number, option in enumerate(options, 1))
            raise UsageError(f"choose one: {comma_join(keys)}")
        with self._lock:
            unit = self._next_unit(person)
            if unit is None or self._question_id(person, unit) != question_id:
                raise UsageError("you have answered this question already, on this page or on another")
            seen_unit, since = self._first_seen.pop(person, ("", 0.0))
            seconds = round(time.monotonic() - since, 3) if seen_unit == unit.unit_id else None
            self._append(person, unit, answer, seconds)

    def undo(self, person: str) -> None:
        """Take back a reader's last label, so that its unit is the next question.

        Raises:
            UsageError: the reader has no label.
            RunError: the labels cannot be read or saved.
        """
        self._check_reader(person)
        units = {unit.unit_id: unit for unit in self._sample}
        with self._lock:
            labeled = [label.unit_id for label in self._labels_of(person) if label.unit_id in units]
            if not labeled:
                raise UsageError("you have no label that can be taken back")
            self._append(person, units[labeled[-1]], None, None)

    def leave(self, person: str) -> None:
        """Do nothing: a reader's questions wait for the reader."""

    def has_ended_for(self, person: str) -> bool:
        """Return False: a reader who has labeled all units can still take back the last label."""
        del person
        return False

    def count_waiting(self) -> int:
        """Return 0: each question waits for a single reader."""
        return 0

    def progress(self, person: str) -> tuple[int, int]:
        """Return how many units of the sample a reader has labeled, and how many there are."""
        units = {unit.unit_id for unit in self._sample}
        return sum(label.unit_id in units for label in self._labels_of(person)), len(units)

    def _check_reader(self, person: str) -> None:
        check_name(person)
        if self._readers and person not in self._readers:
            raise UsageError("enter one of the names that the command lists after --readers")

    def _labels_of(self, person: str) -> list[Label]:
        return [label for label in self._file.current() if label.reader == person]

    def _next_unit(self, person: str) -> SampledUnit | None:
        labeled = {label.unit_id for label in self._labels_of(person)}
        return next((unit for unit in self._sample if unit.unit_id not in labeled), None)

    def _question_id(self, person: str, unit: SampledUnit) -> str:
        """Return an id that does not reveal the unit, whose id contains the datapoint's."""
        return tagged_hash("label question", [self._secret, person, unit.unit_id])[:16]

    def _append(self, person: str, unit: SampledUnit, answer: str | None, seconds: float | None) -> None:
        analyzer = self._file.analyzer
        label = Label(
            unit.unit_id, answer, person, now(), analyzer.name, analyzer.sha256, analyzer.question_sha256, seconds,
            unit.stratum, unit.position, self._stratified_by, unit.probability,
        )  # fmt: skip
        self._file.append([label])


def unit_question(analyzer: Analyzer, unit: Unit) -> LabelQuestion:
    """Return a unit as readers see it: with neither the verdict nor the label of its game.

    Raises:
        TemplateFailedError: the question fails with the variables of this unit.
    """
    messages = [{"role": name, "content": text} for name, text in column_texts(unit)]
    for part, suffix in ((unit.context, ", context"), (unit.messages, "")):
        messages += [
            {"name": message.name, "role": f"{message.channel}, round {message.round}{suffix}", "content": message.text}
            for message in part
        ]
    return LabelQuestion(messages, render_question(analyzer, unit))
