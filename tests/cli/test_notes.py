"""`nip-run notes --export`: cells that spreadsheets would read as formulas are escaped."""

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
    root = tmp_path_factory.mktemp("noted")
    run_spec(spec_file(root, size=2), root / "results")
    return root


def test_exported_note_has_no_formula_cells(folder: Path) -> None:
    for text in (*FORMULAS, "plain"):
        arguments = ("--add", text, "--tag", "=tag", "--by", "@me")
        assert nip_run_here("notes", "last", *arguments, cwd=folder).returncode == 0
    assert nip_run_here("notes", "last", "--export", "notes.csv", cwd=folder).returncode == 0
    with (folder / "notes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == [*(f"'{text}" for text in FORMULAS), "plain"]
    assert {(row["tags"], row["by"]) for row in rows} == {("'=tag", "'@me")}
