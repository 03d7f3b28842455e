"""A file that is not there gets a name that is like it, and none that is like it in its suffix alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import SpecError
from runner.spec.load import load_specs
from runner.text import csv_text, did_you_mean_file
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file

SPECS = ("nip.yaml", "debate.yaml", "quickstart.yaml", "merlin_arthur.yaml")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nipp.yaml", "nip.yaml"),
        ("debat.yml", "debate.yaml"),
        ("quickstart", "quickstart.yaml"),
        ("merlin-arthur.yaml", "merlin_arthur.yaml"),
    ],
)
def test_a_misspelt_file_gets_the_one_that_was_meant(name: str, meant: str) -> None:
    assert did_you_mean_file(name, SPECS) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("name", ["gone.yaml", "mine.yaml", "x.yaml", ".yaml", "yaml"])
def test_a_file_that_is_like_no_other_but_in_its_suffix_gets_no_name(name: str) -> None:
    assert did_you_mean_file(name, SPECS) == ""


def test_a_spec_that_is_not_there_is_not_taken_for_a_built_in_one(tmp_path: Path) -> None:
    for name in ("gone.yaml", "specs/gone.yaml"):
        done = nip_run_here(name, cwd=tmp_path)
        assert done.returncode == 2
        assert "no such spec file" in done.stderr
        assert "did you mean" not in done.stderr


def test_a_misspelt_command_is_still_known_for_one(tmp_path: Path) -> None:
    assert "did you mean 'leaderboard'?" in nip_run_here("leaderbord", cwd=tmp_path).stderr


def test_a_template_that_is_not_there_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "judge.jinja").write_text("Judge.")
    path = spec_file(tmp_path, prompts="prompts")
    with pytest.raises(SpecError) as caught:
        load_specs(path)
    missing = [problem.message for problem in caught.value.problems if "no template" in problem.message]
    assert len(missing) == 3  # prover, verifier, and what the verifier is told in the last round
    for message in missing:
        assert "did you mean" not in message
        assert "there are judge.jinja" in message


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", " =1", "\t=1", "\x00=1", "\r=1", "\n-1"])
def test_a_formula_is_a_text_in_csv(text: str) -> None:
    assert csv_text(text) == f"'{text}"
    assert csv_text(f"a{text}") == f"a{text}"
