"""Label files: current labels, damaged lines, concurrent writers, and Scout's CSV."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from runner.analysis.label_csv import labels_from_csv, labels_to_csv
from runner.analysis.labels import LabelFile, combine_labels, read_labels
from runner.base.errors import RunError, UsageError
from tests.support.labels import label, make_labels, yes_no_analyzer

TONE = yes_no_analyzer()
UNITS = [f"u{number}" for number in range(4)]


@pytest.fixture
def file(tmp_path: Path) -> LabelFile:
    return LabelFile(tmp_path, TONE)


def test_last_label_of_a_reader_for_a_unit_counts(file: LabelFile) -> None:
    ann_labels = make_labels(TONE, ["yes", "no", "yes"])
    ben_label = label(
        TONE, "u0", "no", "Ben", stratum="yes", drawn=3, seconds=1.5, stratified_by="abc", probability=0.5
    )
    file.append([*ann_labels, ben_label])
    file.append([label(TONE, "u0", "no"), label(TONE, "u1", None)])
    assert file.current() == [ann_labels[2], ben_label, label(TONE, "u0", "no")]
    assert read_labels(file.path.parents[1]) == {file.path: file.current()}
    assert len(file.path.read_bytes().splitlines()) == 6


def test_an_incomplete_line_is_ignored_and_the_next_write_removes_it(file: LabelFile) -> None:
    (first, second) = make_labels(TONE, ["yes", "no"])
    file.append([first])
    complete = file.path.read_bytes()
    for size in range(1, len(complete), 7):
        file.path.write_bytes(complete + complete[:size])
        assert file.current() == [first]
    file.append([second])
    assert file.current() == [first, second]


def test_all_invalid_lines_are_reported_with_their_numbers(file: LabelFile) -> None:
    file.append(make_labels(TONE, ["yes"]))
    good = json.loads(file.path.read_text())
    with file.path.open("a") as lines:
        lines.writelines(
            line + "\n"
            for line in (
                "no JSON", "[]",
                json.dumps({**good, "answer": "maybe"}), json.dumps({**good, "question_sha256": "f" * 64}),
                json.dumps({**good, "reader": 3}), json.dumps({"unit_id": "u1"}), json.dumps({**good, "seconds": 2}),
            )
        )  # fmt: skip
    with pytest.raises(RunError) as caught:
        file.current()
    message = str(caught.value)
    for number, reason in ((2, "not a label"), (3, "not a JSON object"), (4, "'maybe' is not one of yes, no"),
                           (5, "another question, ffffffffff"), (6, "`reader` has the wrong type"),
                           (7, "`reader` is missing")):  # fmt: skip
        assert f"{file.path.name}:{number}: " in message
        assert reason in message.splitlines()[number - 1]
    assert f"{file.path.name}:8:" not in message


def test_invalid_label_is_not_saved(file: LabelFile) -> None:
    other_analyzer = yes_no_analyzer(question="Is it short?")
    for invalid_label, reason in (
        (label(TONE, "u0", "maybe"), "not one of yes, no"),
        (label(other_analyzer, "u0", "yes"), "another question"),
        (label(TONE, "u0", "yes", " "), "enter a name"),
    ):
        with pytest.raises(UsageError, match=re.escape(reason)):
            file.append([label(TONE, "u1", "yes"), invalid_label])
    assert file.current() == []


def test_concurrently_written_labels_are_all_saved(file: LabelFile) -> None:
    labels = [label(TONE, f"u{number}", "yes", f"reader {number % 3}") for number in range(12)]
    threads = [
        threading.Thread(target=LabelFile(file.path.parents[1], TONE).append, args=([saved_label],))
        for saved_label in labels
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file.current(), key=str) == sorted(labels, key=str)


def test_the_majority_of_readers_counts_and_ties_are_left_out() -> None:
    by_reader = {"Ann": ["yes", "yes", "no"], "Ben": ["yes", "no"], "Cem": ["no"]}
    combined = combine_labels(
        reader_label for name, answers in by_reader.items() for reader_label in make_labels(TONE, answers, name)
    )
    assert combined.answers == {"u0": "yes", "u2": "no"}
    assert combined.ties == ("u1",)
    assert {name: list(answers.values()) for name, answers in combined.readers.items()} == by_reader


def test_labels_survive_a_round_trip_through_csv() -> None:
    names = ["=1+1", "a, b", '"c"', "d\ne"]
    analyzer = yes_no_analyzer(answers=("+1", "true", "two, three"))
    labels = [
        *(label(analyzer, unit, "+1", "-Ann", seconds=0.25, stratum="+1", drawn=7, stratified_by="i", probability=1 / 3)
          for unit in names),
        label(analyzer, "a, b", "true", "Ben"), label(analyzer, "a, b", "two, three", "Cem"),
    ]  # fmt: skip
    assert labels_from_csv(labels_to_csv(labels, analyzer), analyzer, names, None) == labels
    texts = labels_to_csv(make_labels(TONE, ["yes", "no"]), TONE)
    assert [line.split(",")[:3] for line in texts.splitlines()] == [
        ["id", "target", "reader"], ["u0", "true", "Ann"], ["u1", "false", "Ann"],
    ]  # fmt: skip
    assert labels_from_csv(texts, TONE, UNITS, "Ben") == make_labels(TONE, ["yes", "no"])


def test_scout_validation_set_is_read() -> None:
    text = "\ufeffid,target,split\nu0,True,dev\nu1,false,\nu2,no,test\n"
    labels = labels_from_csv(text, TONE, UNITS, "Ann")
    assert [replace(read_label, time="2026-01-31T09:30:00Z") for read_label in labels] == make_labels(
        TONE, ["yes", "no", "no"]
    )


def test_all_invalid_csv_rows_are_reported_with_their_lines() -> None:
    text = "id,target,reader,question_sha256,predicate\nu0,yes,Ann,,\nu9,yes,Ann,,\nu1,maybe,Ann,,\nu1,yes,,,\n"
    text += "u1,yes,Ann,0000000000,\nu1,yes,Ann,,ne\n"
    with pytest.raises(UsageError) as caught:
        labels_from_csv(text, TONE, UNITS, None)
    lines = str(caught.value).splitlines()
    assert [line.strip().partition(":")[0] for line in lines[1:]] == [f"line {number}" for number in range(3, 8)]
    for line, reason in zip(
        lines[1:], ("no unit 'u9'", "'maybe' is not", "no reader", "another question", "'ne'"), strict=True
    ):
        assert reason in line
    with pytest.raises(UsageError, match="no column target"):
        labels_from_csv("id,label_x\nu0,true\n", TONE, UNITS, "Ann")
    with pytest.raises(UsageError, match=r"line 2: the row has no cell target"):
        labels_from_csv("id,target\nu0\n", TONE, UNITS, "Ann")
    with pytest.raises(UsageError, match="`drawn` is inf, which is not a finite number"):
        labels_from_csv("id,target,drawn\nu0,yes,inf\n", TONE, UNITS, "Ann")
    for column, value, reason in (
        ("drawn", "x", "`drawn` is not a number: could not convert string to float: 'x'"),
        ("probability", "0", "`probability` is 0, but must be more than 0 and at most 1"),
        ("probability", "-3", "`probability` is -3, but"),
        ("probability", "1.5", "`probability` is 1.5, but"),
        *(
            ("drawn", number, f"`drawn` is {float(number):g}, but must be a whole number")
            for number in ("1.5", "-3", "1e30")
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(reason)):
            labels_from_csv(f"id,target,{column}\nu0,yes,{value}\n", TONE, UNITS, "Ann")


def test_repeated_csv_errors_share_one_line_and_conflicting_targets_are_an_error() -> None:
    rows = "".join(f"u{number % 4},yes\n" for number in range(9))
    with pytest.raises(UsageError, match=r"\n  lines 2, 3, 4, 5, 6 and 4 more: the row has no reader[^\n]*$"):
        labels_from_csv(f"id,target\n{rows}", TONE, UNITS, None)
    with pytest.raises(UsageError, match="line 4: Ann has another target for u0 in line 2"):
        labels_from_csv("id,target\nu0,yes\nu1,no\nu0,no\n", TONE, UNITS, "Ann")
    labels = labels_from_csv("id,target\nu0,yes\nu1,\nu0,true\n", TONE, UNITS, "Ann")
    assert [(read_label.unit_id, read_label.answer) for read_label in labels] == [("u0", "yes"), ("u1", None)]
    assert labels_from_csv("id,target\nu0,\n", TONE, UNITS, None) == []


def test_long_text_column_is_accepted() -> None:
    text = 'id,target,text\nu0,yes,"' + "long\n" * 40_000 + '"\n'
    assert [read_label.unit_id for read_label in labels_from_csv(text, TONE, UNITS, "Ann")] == ["u0"]
