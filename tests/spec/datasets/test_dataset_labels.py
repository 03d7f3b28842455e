"""The tests of each shipped code-validation problem confirm the labels of its solutions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tokenize
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import json_lines
from tests.support.hang_guard import HANG_SECONDS

DATA = Path(__file__).resolve().parents[3] / "specs" / "data"

RUN_TESTS = """
import json, sys
solution, tests = json.load(sys.stdin)
code, results = compile(solution, "solution.py", "exec"), []
for test in tests:
    names = {"__name__": "solution"}
    exec(code, names)
    try:
        exec(test, names)
        results.append(True)
    except Exception:
        results.append(False)
print(json.dumps(results))
"""
"""Runs each test on a freshly loaded solution; a solution that cannot be loaded raises an error."""


ROWS = json_lines(DATA / "code_validation.jsonl")
TESTS = {row["problem"]: row["tests"] for row in json_lines(DATA / "code_validation.tests.jsonl")}
PROBLEMS = sorted({row["problem"] for row in ROWS})


def _run_tests(row: dict[str, Any]) -> list[bool]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", RUN_TESTS],
        input=json.dumps([row["solution"], TESTS[row["problem"]]]),
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{row['id']}: {done.stderr[-500:]}"
    passed: list[bool] = json.loads(done.stdout)
    return passed


@pytest.fixture(scope="module")
def passed() -> dict[str, list[bool]]:
    """Return the results of each datapoint's tests."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip((row["id"] for row in ROWS), pool.map(_run_tests, ROWS), strict=True))


def test_dataset_has_at_least_sixty_problems_of_graded_difficulty() -> None:
    assert len(PROBLEMS) >= 60
    assert set(TESTS) == set(PROBLEMS)
    assert {row["difficulty"] for row in ROWS} >= {"easy", "medium", "hard"}
    assert len({row["question"] for row in ROWS}) == len(PROBLEMS)


@pytest.mark.full
def test_right_solutions_pass_every_test(passed: dict[str, list[bool]]) -> None:
    wrong = [row["id"] for row in ROWS if row["label"] == 1 and not all(passed[row["id"]])]
    assert not wrong


@pytest.mark.full
def test_wrong_solutions_pass_some_tests_and_fail_at_least_one(passed: dict[str, list[bool]]) -> None:
    for row in ROWS:
        if row["label"] == 0:
            assert any(passed[row["id"]]), f"{row['id']} passes nothing: it is not subtly wrong"
            assert not all(passed[row["id"]]), f"{row['id']} passes every test: nothing shows that it is wrong"


def test_each_problem_has_one_solution_of_each_label_in_one_split() -> None:
    for problem in PROBLEMS:
        rows = [row for row in ROWS if row["problem"] == problem]
        assert sorted(row["label"] for row in rows) == [0, 1], problem
        assert len({row["split"] for row in rows}) == 1, problem
        assert len({row["question"] for row in rows}) == 1, problem
        assert rows[0]["solution"] != rows[1]["solution"], problem


def test_solutions_have_no_comments_docstrings_or_revealing_words() -> None:
    for row in ROWS:
        kinds = [token.type for token in tokenize.generate_tokens(StringIO(row["solution"]).readline)]
        assert tokenize.COMMENT not in kinds, row["id"]
        assert '"""' not in row["solution"], row["id"]
        assert not re.search(r"\b(bug|wrong|incorrect|fixme|todo|buggy|broken)\b", row["solution"], re.IGNORECASE)


def test_ids_do_not_reveal_the_label() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        problem, _, tail = row["id"].partition("/")
        assert problem == row["problem"]
        assert re.fullmatch(r"[0-9a-f]{4}", tail)
    first = [min(r["id"] for r in ROWS if r["problem"] == p) for p in PROBLEMS]
    label_of = {row["id"]: row["label"] for row in ROWS}
    assert 0.3 < sum(label_of[name] for name in first) / len(first) < 0.7


def test_order_and_length_do_not_reveal_the_label() -> None:
    first, longer = [], []
    for problem in PROBLEMS:
        rows = [row for row in ROWS if row["problem"] == problem]
        first.append(rows[0]["label"])
        longer.append(max(rows, key=lambda row: len(row["solution"]))["label"])
    assert 0.3 < sum(first) / len(first) < 0.7
    assert 0.2 < sum(longer) / len(longer) < 0.8


def test_each_split_is_balanced_over_labels() -> None:
    for split in {row["split"] for row in ROWS}:
        labels = [row["label"] for row in ROWS if row["split"] == split]
        assert sum(labels) * 2 == len(labels)
