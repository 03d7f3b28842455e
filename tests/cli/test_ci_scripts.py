"""The script of the GitHub Action, and the command of the pre-commit hook, with real specs and runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.processes import environment, nip_run, nip_run_here
from tests.support.specs import spec_file

ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
SCRIPT = ROOT / ".ci" / "check_and_compare"


def run_action(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the step of the action with these inputs, and others at their defaults."""
    (step,) = ACTION["runs"]["steps"]
    values = {name: declared["default"] for name, declared in ACTION["inputs"].items()} | inputs
    variables = {
        name: values[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()
    }
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "nip-run").write_text(f'#!/bin/sh\nexec {sys.executable} -m runner "$@"\n', "utf-8")
    (programs / "nip-run").chmod(0o755)
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    return subprocess.run(
        ["bash", "-c", step["run"]], cwd=folder, capture_output=True, text=True, check=False,
        env=environment(**variables, GITHUB_ACTION_PATH=str(ROOT)) | {"PATH": path},
    )  # fmt: skip


def test_the_action_passes_every_input_to_its_script() -> None:
    (step,) = ACTION["runs"]["steps"]
    assert {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]} == set(step["env"].values())
    assert all(name in SCRIPT.read_text("utf-8") for name in step["env"])
    assert "${{" not in step["run"]


def test_the_action_refuses_inputs_that_do_nothing(tmp_path: Path) -> None:
    for inputs, message in (
        ({}, "nothing to do; set the input specs"),
        ({"runs": "old new"}, "runs need the input assert"),
        ({"runs": "old new", "assert": " \n\t\n"}, "runs need the input assert"),
        ({"assert": "accuracy >= 0.9"}, "the input assert needs the input runs"),
        ({"specs": "spec.yaml", "assert": "accuracy >= 0.9"}, "the input assert needs the input runs"),
        ({"specs": "spec.yaml", "runs": "\n", "assert": "accuracy >= 0.9"}, "the input assert needs the input runs"),
        ({"specs": "spec.yaml", "undecided": "fial"}, "the input undecided is pass or fail, not: fial"),
        ({"specs": "nowhere/*.yaml"}, "no file matches nowhere/*.yaml"),
        ({"specs": " \n\t\n", "runs": "\n"}, "nothing to do; set the input specs"),
        ({"specs": "-h"}, "./-h"),
        ({"runs": "-h new", "assert": "accuracy >= 0"}, "./-h"),
    ):
        process = run_action(tmp_path, **inputs)
        assert (process.returncode, message in process.stderr) == (2, True), process.stderr


@pytest.mark.full
def test_the_action_checks_specs_and_compares_runs(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=12)
    (tmp_path / "bad name.yaml").write_text(spec.read_text("utf-8").replace("max_message_rounds", "max_rounds"))
    assert run_action(tmp_path, specs="spec.yaml\n").returncode == 0
    bad = run_action(tmp_path, specs="spec.yaml bad*.yaml")
    assert bad.returncode == 2
    assert "bad name.yaml:1:" in bad.stderr
    assert "protocol.max_rounds: unknown key" in bad.stderr
    for name, seed in (("old", 1), ("new", 2)):
        assert nip_run_here(spec, f"seed={seed}", "--run-id", name, cwd=tmp_path).returncode == 0
    for assertion, undecided, code in (
        ("accuracy >= base - 1", "pass", 0),
        ("accuracy >= base - 0.01\n\n", "pass", 0),
        ("accuracy >= base - 0.01\n\t\n", " ", 0),
        ("accuracy >= base - 0.01\n\n", "fail", 5),
        ("accuracy >= base - 1\naccuracy >= 0.999", "pass", 1),
    ):
        process = run_action(tmp_path, runs="old new", undecided=undecided, **{"assert": assertion})
        assert process.returncode == code, process.stdout + process.stderr
    both = run_action(tmp_path, specs="bad*.yaml", runs="old new", **{"assert": "accuracy >= base - 1"})
    assert both.returncode == 2


@pytest.mark.gate
def test_the_hook_checks_the_files_that_pre_commit_names(tmp_path: Path) -> None:
    name, *arguments = HOOK["entry"].split()
    assert (name, HOOK["language"]) == ("nip-run", "python")
    spec_file(tmp_path)
    good = nip_run(*arguments, "spec.yaml", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    spec = json.loads((tmp_path / "spec.yaml").read_text("utf-8"))
    (tmp_path / "bad.yaml").write_text(json.dumps({**spec, "sead": 3}), "utf-8")
    bad = nip_run(*arguments, "spec.yaml", "bad.yaml", cwd=tmp_path)
    assert bad.returncode == 2
    assert "sead: unknown key; did you mean 'seed'?" in bad.stderr
