"""The tables in `tests/defences` match the code. `.ci/tools/defences.py` switches off each defence, in minutes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import environment

FILES = sorted((ROOT / "tests" / "defences").glob("*.toml"))


def load_rows() -> list[dict[str, Any]]:
    return [row for file in FILES for row in tomllib.loads(file.read_text("utf-8"))["defence"]]


def test_every_defence_finds_its_text_once_and_changes_it() -> None:
    problems = {
        row["name"]: count
        for row in load_rows()
        if (count := (ROOT / row["file"]).read_text("utf-8").count(row["find"])) != 1 or row["find"] == row["replace"]
    }
    assert problems == {}


def test_tests_of_every_defence_exist() -> None:
    for row in load_rows():
        for name in row["tests"]:
            file, _, function = name.partition("::")
            assert (ROOT / file).exists(), name
            assert not function or f"def {function.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), name


def test_code_without_a_defence_uses_only_names_that_exist(tmp_path: Path) -> None:
    """With an undefined name, a defence's test would fail although it does not test the defence."""
    for number, row in enumerate(load_rows()):
        if row["file"].endswith(".py"):
            source = (ROOT / row["file"]).read_text("utf-8").replace(row["find"], row["replace"])
            (tmp_path / f"{number}.py").write_text(f"# {row['name']}\n{source}", "utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F821,F823", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout[:5000]


@pytest.mark.gate
def test_pytest_finds_the_tests_of_every_defence() -> None:
    """Names in brackets change with the parameters of a test, and pytest-xdist hides that a test was not found."""
    names = sorted({name for row in load_rows() for name in row["tests"]})
    options = ("-q", "--collect-only", "--numprocesses=0", "--dist=no", "-m", "", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *names], cwd=ROOT, env=environment(), capture_output=True, text=True,
        check=False, timeout=HANG_SECONDS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
