"""Suggestions for misspelled names, and the formats of numbers and CSV text."""

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
    ("name", "suggestion"),
    [
        ("nipp.yaml", "nip.yaml"),
        ("debat.yml", "debate.yaml"),
        ("quickstart", "quickstart.yaml"),
        ("merlin-arthur.yaml", "merlin_arthur.yaml"),
    ],
)
def test_misspelled_file_name_gets_a_suggestion(name: str, suggestion: str) -> None:
    assert did_you_mean_file(name, SPECS) == f"; did you mean {suggestion!r}?"


@pytest.mark.parametrize("name", ["gone.yaml", "mine.yaml", "x.yaml", ".yaml", "yaml"])
def test_file_name_with_only_the_suffix_in_common_gets_no_suggestion(name: str) -> None:
    assert did_you_mean_file(name, SPECS) == ""


def test_missing_spec_gets_no_suggestion_of_a_built_in_spec(tmp_path: Path) -> None:
    for name in ("gone.yaml", "specs/gone.yaml"):
        done = nip_run_here(name, cwd=tmp_path)
        assert done.returncode == 2
        assert "no such spec file" in done.stderr
        assert "did you mean" not in done.stderr


def test_misspelled_command_gets_a_suggestion(tmp_path: Path) -> None:
    assert "did you mean 'leaderboard'?" in nip_run_here("leaderbord", cwd=tmp_path).stderr


def test_missing_template_gets_no_suggestion_of_a_shorter_name(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "judge.jinja").write_text("Judge.")
    path = spec_file(tmp_path, prompts="prompts")
    with pytest.raises(SpecError) as caught:
        load_specs(path)
    missing = [problem.message for problem in caught.value.problems if "no template" in problem.message]
    assert len(missing) == 3  # prover, verifier, and the verifier's template for the last round
    for message in missing:
        assert "did you mean" not in message
        assert "its folder has judge.jinja" in message


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", " =1", "\t=1", "\x00=1", "\r=1", "\n-1"])
def test_csv_formula_is_escaped_as_text(text: str) -> None:
    assert csv_text(text) == f"'{text}"
    assert csv_text(f"a{text}") == f"a{text}"


def test_numbers_are_rounded_and_infinite_ones_are_not_estimable() -> None:
    assert with_interval(0.7, 0.62, 0.79) == "0.700 [0.620, 0.790]"
    assert with_interval(0.7, None, None) == "0.700"
    assert with_interval(None, None, None) == "-"
    assert with_interval(2.5, 1.25, None) == with_interval(2.5, 1.25, math.inf) == "2.500 [1.250, not estimable]"
    assert with_interval(2.5, -math.inf, 3.0) == "2.500 [not estimable, 3.000]"
    assert decimal(math.nan) == decimal(math.inf) == "not estimable"
    assert (decimal(-0.0001), decimal(None), decimal(None, none="–")) == ("0.000", "-", "–")
    assert (p_value(0.00001), p_value(0.0625), p_value(None)) == ("<0.0001", "0.0625", "-")


def test_page_scripts_round_like_python() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    values = [0.5625, 0.0625, 0.1875, -0.0001, 1.0005, 0.7, 1e-5, 123.4565, -0.0625, 0.0, 1 / 3]
    source = (ROOT / "runner" / "pages" / "static" / "10_dom.js").read_text("utf-8")
    function = source[source.index("function formatNumber") :].partition("\n}\n")[0] + "\n}\n"
    script = f"{function} console.log({json.dumps(values)}.map((value) => formatNumber(value, 3)).join(' '))"
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [decimal(value) for value in values]


def test_only_the_text_module_formats_three_decimals() -> None:
    """Numbers with three decimals are formatted in `runner.base.text`."""
    rounding = re.compile(r":z?\.[34]f\}")
    dollar_amounts = re.compile(r"\$\{[^{}]*:,?\.4f\}")
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "runner").rglob("*.py")
        if rounding.search(dollar_amounts.sub("", path.read_text("utf-8")))
    }
    assert files == set()
