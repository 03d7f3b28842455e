"""Every test belongs to one tier: contributor, gate or full."""

from __future__ import annotations

import pytest

from tests import conftest

pytest_plugins = ["pytester"]

MARKED = """
import pytest

def test_plain(): ...

@pytest.mark.gate
def test_gate(): ...

@pytest.mark.gate
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.full)])
def test_gate_and_full(n): ...

@pytest.mark.sample(2)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_sample(n): ...

@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize("n", [1, 2])
def test_gate_sample(n): ...
"""


def tiers(item: pytest.Item) -> list[str]:
    return [mark.name for mark in item.iter_markers() if mark.name in ("gate", "full")]


def test_marks_put_each_case_into_one_tier(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  gate\n  full\n  sample\n")
    items = pytester.getitems(MARKED)
    conftest.pytest_collection_modifyitems(items)
    assert [(item.name, tiers(item)) for item in items] == [
        ("test_plain", []),
        ("test_gate", ["gate"]),
        ("test_gate_and_full[1]", ["gate"]),
        ("test_gate_and_full[2]", ["full"]),
        ("test_sample[1]", []),
        ("test_sample[2]", []),
        ("test_sample[3]", ["full"]),
        ("test_sample[4]", ["full"]),
        ("test_gate_sample[1]", ["gate"]),
        ("test_gate_sample[2]", ["full"]),
    ]
