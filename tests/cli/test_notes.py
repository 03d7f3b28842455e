"""`nip-run notes`: what it writes for others."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.processes import nip_run_here
from tests.support.runs import run_spec
from tests.support.specs import spec_file

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "  =1", "=cmd|' /C calc'!A0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("noted")
    run_spec(spec_file(made, size=2), made / "results")
    return made


def test_no_cell_of_an_exported_note_is_a_formula(folder: Path) -> None:
    for text in (*FORMULAS, "plain"):
        words = ("--add", text, "--tag", "=tag", "--by", "@me")
        assert nip_run_here("notes", "last", *words, cwd=folder).returncode == 0
    assert nip_run_here("notes", "last", "--export", "notes.csv", cwd=folder).returncode == 0
    with (folder / "notes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == [*(f"'{text}" for text in FORMULAS), "plain"]
    assert {(row["tags"], row["by"]) for row in rows} == {("'=tag", "'@me")}
