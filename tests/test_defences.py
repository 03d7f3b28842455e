"""The tables in `tests/defences` fit the code; `.ci/tools/defences.py` switches each defence off, for minutes."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.support.paths import ROOT

FILES = sorted((ROOT / "tests" / "defences").glob("*.toml"))


def rows() -> list[dict[str, Any]]:
    return [row for file in FILES for row in tomllib.loads(file.read_text("utf-8"))["defence"]]


def test_every_edit_finds_its_text_once_and_changes_it() -> None:
    wrong = {
        row["name"]: found
        for row in rows()
        if (found := (ROOT / row["file"]).read_text("utf-8").count(row["find"])) != 1 or row["find"] == row["replace"]
    }
    assert wrong == {}


def test_the_tests_that_must_notice_are_there() -> None:
    for row in rows():
        for name in row["tests"]:
            file, _, function = name.partition("::")
            assert (ROOT / file).exists(), name
            assert not function or f"def {function.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), name
