"""The commands of the tutorial about making a dataset, with a server that returns planted programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documentation import blocks, pages
from tests.support.hang_guard import HANG_SECONDS
from tests.support.made_datasets import planted_rules, read_lines, run_author
from tests.support.paths import ROOT
from tests.support.processes import environment

PAGE = pages()["docs/tutorials/make-a-dataset-of-bugs.md"]


@pytest.mark.full
def test_the_tutorial_leads_from_problems_to_a_game_and_a_release(tmp_path: Path) -> None:
    planted = {row["problem"]: row for row in read_lines(ROOT / "tests" / "support" / "planted_programs.jsonl")}
    rules = [
        rule
        for problem in read_lines(ROOT / "specs" / "data" / "problems.jsonl")
        for edits in [planted[problem["id"]]]
        for rule in planted_rules(problem["question"], [edits["bug"]], [edits["refactored"]])
    ]
    folder = tmp_path / "empty"
    folder.mkdir()
    with run_author(tmp_path, rules) as server:
        bin_folder = tmp_path / "bin"
        bin_folder.mkdir()
        (bin_folder / "nip-run").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m runner "$@"\n', "utf-8")
        (bin_folder / "nip-run").chmod(0o755)
        variables = environment(OPENAI_API_KEY="a-key", PYTHONPATH=str(ROOT))
        # The only difference from a reader with an OpenAI key:
        address = f"model.base_url={server.base_url} 'model.price={{input: 1, output: 4}}'"
        variables["PATH"] = f"{bin_folder}:{variables['PATH']}"
        for block in blocks(PAGE):
            if block.mark == "file":
                (folder / block.value).write_text(block.text, "utf-8")
            elif block.language == "sh":
                command = block.text.replace("make-dataset recipe.yaml", f"make-dataset recipe.yaml {address}")
                done = subprocess.run(
                    ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True,
                    timeout=HANG_SECONDS, check=False,
                )  # fmt: skip
                # The audit fails, because many of the planted refactorings have one more name.
                assert done.returncode == (1 if "audit" in block.text else 0), done.stdout + done.stderr
        assert server.requests == 8 * len(rules) // 2
    rows = read_lines(folder / "bugs" / "data.jsonl")
    assert len(rows) > 50
    assert sorted({row["label"] for row in rows}) == [0, 1]
    card = json.loads(next((folder / "board").rglob("croissant.json")).read_text("utf-8"))
    assert card["rai:dataCollectionType"] == "Synthetic data"
