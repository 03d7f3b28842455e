"""A file that is not there gets a name that is like it, and none that is like it in its suffix alone."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runner.base.errors import SpecError
from runner.base.text import csv_text, decimal, did_you_mean_file, p_value, with_interval
from runner.spec.loader import load_specs
from tests.support.paths import ROOT
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
        assert "its folder has judge.jinja" in message


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", " =1", "\t=1", "\x00=1", "\r=1", "\n-1"])
def test_a_formula_is_a_text_in_csv(text: str) -> None:
    assert csv_text(text) == f"'{text}"
    assert csv_text(f"a{text}") == f"a{text}"


def test_numbers_are_rounded_by_one_function_and_what_is_infinite_is_not_estimable() -> None:
    assert with_interval(0.7, 0.62, 0.79) == "0.700 [0.620, 0.790]"
    assert with_interval(0.7, None, None) == "0.700"
    assert with_interval(None, None, None) == "-"
    assert with_interval(2.5, 1.25, None) == with_interval(2.5, 1.25, math.inf) == "2.500 [1.250, not estimable]"
    assert with_interval(2.5, -math.inf, 3.0) == "2.500 [not estimable, 3.000]"
    assert decimal(math.nan) == decimal(math.inf) == "not estimable"
    assert (decimal(-0.0001), decimal(None), decimal(None, none="–")) == ("0.000", "-", "–")
    assert (p_value(0.00001), p_value(0.0625), p_value(None)) == ("<0.0001", "0.0625", "-")


def test_scripts_of_pages_round_as_python_does() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    values = [0.5625, 0.0625, 0.1875, -0.0001, 1.0005, 0.7, 1e-5, 123.4565, -0.0625, 0.0, 1 / 3]
    source = (ROOT / "runner" / "pages" / "static" / "10_dom.js").read_text("utf-8")
    function = source[source.index("function formatNumber") :].partition("\n}\n")[0] + "\n}\n"
    script = f"{function} console.log({json.dumps(values)}.map((value) => formatNumber(value, 3)).join(' '))"
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [decimal(value) for value in values]


def test_no_module_rounds_a_result_by_itself() -> None:
    """A number with three decimals is written by `runner.base.text`."""
    own = re.compile(r":z?\.[34]f\}")
    dollars = re.compile(r"\$\{[^{}]*:,?\.4f\}")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "runner").rglob("*.py")
        if own.search(dollars.sub("", path.read_text("utf-8")))
    }
    assert found == set()
