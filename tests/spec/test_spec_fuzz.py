"""Some of the examples of `benchmarks/proofs/spec_fuzz.py`, the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.support.spec_fuzz import Example, Reached, examples, try_example


@pytest.mark.full
def test_no_spec_is_a_fault_of_the_program(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    reached = Reached()
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))

    @settings(
        max_examples=12, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(examples())
    def one(example: Example) -> None:
        try_example(example, tmp_path, reached)

    one()
    assert reached.examples >= 8
    assert reached.steps["yaml"] > reached.examples // 2, reached.lines()
    assert reached.steps["planned"] >= reached.examples // 20, reached.lines()
