"""Every test belongs to one tier: contributor, gate or full."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests import conftest
from tests.support.paths import ROOT

pytest_plugins = ["pytester"]

MARKED_TESTS = """
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


def list_tiers(item: pytest.Item) -> list[str]:
    return [mark.name for mark in item.iter_markers() if mark.name in ("gate", "full")]


def test_marks_put_each_case_into_one_tier(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  gate\n  full\n  sample\n")
    items = pytester.getitems(MARKED_TESTS)
    conftest.pytest_collection_modifyitems(items)
    assert [(item.name, list_tiers(item)) for item in items] == [
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


FILES = {
    "test_plain": "def test(): ...",
    "test_mixed": "@pytest.mark.full\ndef test_full(): ...\n@pytest.mark.gate\ndef test_gate(): ...\ndef test(): ...",
    "test_cases": "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.gate)])\ndef test(n): ...",
    "test_gate": "@pytest.mark.gate\ndef test(): ...",
    "test_others": "pytestmark = [pytest.mark.sample(1)]  # pytest.mark.full\ndef test(): ...",
    "test_full": "pytestmark = pytest.mark.full\ndef test(): ...",
    "test_full_list": "pytestmark = [\n    pytest.mark.full,\n    pytest.mark.sample(1),\n]\ndef test(): ...",
}


@pytest.mark.parametrize("tier", ["not gate and not full", "gate"])
def test_skipped_files_contain_no_test_of_the_selected_tier(pytester: pytest.Pytester, tier: str) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  gate\n  full\n  sample\n")
    pytester.makepyfile(**{name: f"import pytest\n{text}" for name, text in FILES.items()})
    output_with_skips, all_files = (
        pytester.runpytest_inprocess("--collect-only", "-qq", "-p", "tests.conftest", "-m", marks).outlines
        for marks in (tier, f"({tier})")  # files are skipped only for the exact expressions
    )
    assert output_with_skips == all_files != []
    config = pytester.parseconfig("-m", tier)
    skipped = {name for name in FILES if conftest.pytest_ignore_collect(pytester.path / f"{name}.py", config)}
    unmarked = {"test_plain", "test_others"} if tier == "gate" else set()
    assert skipped == {"test_full", "test_full_list"} | unmarked


def test_tier_marks_are_in_the_files_that_they_select(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("-m", "not gate and not full")
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text("utf-8")
        if not path.name.startswith("test_"):
            assert "mark.gate" not in text.replace('b"mark.gate" not in text', ""), path
        elif conftest.pytest_ignore_collect(path, config):
            marks = [line for line in map(ast.unparse, ast.parse(text).body) if line.startswith("pytestmark = ")]
            assert any("pytest.mark.full" in line for line in marks), path


@pytest.mark.full
@pytest.mark.parametrize("tier", ["not gate and not full", "gate"])
def test_no_selected_test_of_the_project_is_in_a_skipped_file(tier: str) -> None:
    # Hypothesis, where it is installed, would create a folder in the checkout, where tests may not write.
    options = ["-n0", "--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    output_with_skips, all_files = (
        subprocess.check_output([sys.executable, "-m", "pytest", *options, "-m", marks], cwd=ROOT, text=True)
        for marks in (tier, f"({tier})")
    )
    assert output_with_skips == all_files != ""
