"""The order of units, strata, and the units that each reader gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from runner.analysis.label_queue import LabelQuestion, LabelQueue
from runner.analysis.label_sample import sample_units
from runner.analysis.labels import LabelFile
from runner.base.errors import UsageError
from tests.support.labels import yes_no_analyzer

TONE = yes_no_analyzer()
UNITS = {f"u{number}": "yes" if number < 5 else "no" if number < 95 else "(no answer)" for number in range(100)}


def test_larger_sample_contains_the_smaller_one_whatever_the_unit_order() -> None:
    units = dict.fromkeys(UNITS)
    small, large = sample_units(units, "0", 20), sample_units(dict(reversed(units.items())), "0", 60)
    assert {unit.unit_id for unit in small} < {unit.unit_id for unit in large}
    assert [unit.position for unit in large] == list(range(60))
    assert {unit.probability for unit in small} == {0.2}
    assert sample_units(units, "1", 20) != small == sample_units(units, "0", 20)
    assert len(sample_units(units, "0")) == 100


def test_strata_get_equal_sample_sizes_as_far_as_they_have_units() -> None:
    sample = sample_units(UNITS, "0", 50)
    assert Counter(unit.stratum for unit in sample) == {"yes": 5, "(no answer)": 5, "no": 40}
    assert {(unit.stratum, unit.probability) for unit in sample} == {("yes", 1), ("(no answer)", 1), ("no", 40 / 90)}
    assert Counter(unit.stratum for unit in sample_units(UNITS, "0", 11)) == {"yes": 4, "(no answer)": 3, "no": 4}
    assert len({unit.stratum for unit in sample[:10]}) > 1


@pytest.fixture
def queue(tmp_path: Path) -> LabelQueue:
    return make_queue(tmp_path)


def make_queue(folder: Path, readers: Collection[str] = ()) -> LabelQueue:
    sample = sample_units(UNITS, "0", 6)
    file = LabelFile(folder, TONE)
    return LabelQueue(
        file, sample, lambda unit: LabelQuestion([{"content": f"text of {unit}"}], "Is it polite?"), readers=readers
    )


def answer_next(queue: LabelQueue, person: str, answer: str) -> object:
    question = queue.take(person)
    assert question
    queue.answer(person, question.id, {"answer": answer})
    return question.messages[0]["content"]


def test_each_reader_gets_all_units_in_the_same_order_and_resumes_after_a_restart(
    queue: LabelQueue, tmp_path: Path
) -> None:
    texts_for_ann = [answer_next(queue, "Ann", "yes") for _ in range(3)]
    texts_for_ben = [answer_next(queue, "Ben", "no") for _ in range(6)]
    queue = make_queue(tmp_path)
    assert queue.progress("Ann") == (3, 6)
    texts_for_ann += [answer_next(queue, "Ann", "no") for _ in range(3)]
    assert texts_for_ann == texts_for_ben
    assert queue.take("Ann") is None
    labels = LabelFile(tmp_path, TONE).current()
    assert {(label.stratum, label.probability) for label in labels} == {
        ("yes", 0.4),
        ("no", 2 / 90),
        ("(no answer)", 0.4),
    }
    assert [label.drawn for label in labels if label.reader == "Ben"] == list(range(6))
    assert all(label.seconds is not None and label.seconds >= 0 for label in labels)


def test_last_labels_can_be_undone_one_by_one(queue: LabelQueue) -> None:
    texts = [answer_next(queue, "Ann", "yes") for _ in range(6)]
    queue.undo("Ann")
    queue.undo("Ann")
    assert queue.progress("Ann") == (4, 6)
    assert [answer_next(queue, "Ann", "no") for _ in range(2)] == texts[4:]
    with pytest.raises(UsageError, match="no label"):
        queue.undo("Ben")


def test_wrong_answers_and_unknown_readers_are_refused(queue: LabelQueue, tmp_path: Path) -> None:
    question = queue.take("Ann")
    assert question
    with pytest.raises(UsageError, match="choose one: 1 for 'yes', 2 for 'no'"):
        queue.answer("Ann", question.id, {"answer": "maybe"})
    with pytest.raises(UsageError, match="answered this question already"):
        queue.answer("Ben", question.id, {"answer": "yes"})
    queue.answer("Ann", question.id, {"answer": "yes"})
    with pytest.raises(UsageError, match="answered this question already"):
        queue.answer("Ann", question.id, {"answer": "yes"})
    with pytest.raises(UsageError, match="--readers"):
        make_queue(tmp_path, readers=["Ann"]).take("Ben")
