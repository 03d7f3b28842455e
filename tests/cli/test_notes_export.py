"""`nip-run notes --export`: notes as CSV and as JSON Lines."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

from runner.cli.main import main
from tests.support.paths import ROOT

RUN = "sweep-3942dc58ea"


def test_formula_like_note_is_escaped_in_csv_and_unchanged_in_json(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests/fixtures/v0_1_0/results/runs" / RUN, tmp_path / "results" / "runs" / RUN)
    arguments = ("notes", RUN, "--results", str(tmp_path / "results"))
    formula = '=HYPERLINK("//example.org","see")'
    assert main([*arguments, "--add", formula, "--tag", "@tag", "--by", "+me", "-q"]) == 0
    for name in ("x.csv", "x.jsonl"):
        assert main([*arguments, "--export", str(tmp_path / name), "-q"]) == 0
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert (row["run_id"], row["text"], row["tags"], row["by"]) == (RUN, f"'{formula}", "'@tag", "'+me")
    (note,) = map(json.loads, (tmp_path / "x.jsonl").read_text("utf-8").splitlines())
    assert (note["text"], note["tags"], note["by"]) == (formula, ["@tag"], "+me")
