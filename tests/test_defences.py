"""The tables in `tests/defences` match the code. `.ci/tools/defences.py` switches off each defence, in minutes."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.support.paths import ROOT

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
