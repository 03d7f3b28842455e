"""The tests of the shipped code problems confirm all labels."""

from __future__ import annotations

import pytest

from runner.base.package_data import root
from runner.curation.benchmark_formats import parse_assertions
from runner.curation.program_tester import ProgramTester
from runner.curation.program_tests import Program, is_correct
from runner.curation.sandbox.mechanisms import Mechanism
from tests.support.files import json_lines

pytestmark = pytest.mark.full


def test_labels_of_the_shipped_programs_are_confirmed_in_the_sandbox(mechanism: Mechanism) -> None:
    data = root() / "specs" / "data"
    tests = {row["problem"]: parse_assertions(row["tests"]) for row in json_lines(data / "code_validation.tests.jsonl")}
    rows = json_lines(data / "code_validation.jsonl")
    with ProgramTester(mechanism) as tester:
        results = list(tester.test((Program(row["solution"]), tests[row["problem"]]) for row in rows))
    assert [is_correct(result) for result in results] == [row["label"] == 1 for row in rows]
