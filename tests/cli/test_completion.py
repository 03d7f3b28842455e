"""Completion in a real shell: commands, options, choices, specs and runs; and where the results folder comes from."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from runner.cli.commands import COMMANDS
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment, nip_run_here


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with specs and two runs, and make it the current folder."""
    for name in ("runs/alpha-1", "runs/beta-2"):
        (tmp_path / "results" / name).mkdir(parents=True)
    (tmp_path / "other" / "runs" / "gamma-3").mkdir(parents=True)
    (tmp_path / "specs").mkdir()
    for name in ("mine.yaml", "specs/a spec.yaml", "notes.txt", "q.sql", ".hidden.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = {
    "sh": {"show"},
    "show ''": {"last", "alpha-1", "beta-2"},
    "show --wrong a": {"alpha-1"},
    "report beta-2 a": {"alpha-1"},
    "notes b": {"beta-2"},
    "check m": {"mine.yaml"},
    "check specs/": {"specs/a spec.yaml"},
    "gauge m": {"mine.yaml"},
    "run mine.yaml --re": {"--replay", "--results"},
    "run mine.yaml --replay a": {"alpha-1"},
    "show last --pro": {"--prompt"},
    "plot acc": {"accuracy_by_protocol"},
    "export alpha-1 --format t": {"trl"},
    "sql --format ''": {"table", "csv", "json", "markdown", "parquet"},
    "sql --file q": {"q.sql"},
    "schema ''": {"experiment", "protocol", "recipe"},
    "completion z": {"zsh"},
    "init --protocol d": {"debate"},
    "runs --status d": {"done"},
}


def test_bash_completes_commands_options_choices_files_and_runs(project: Path) -> None:
    (project / "script").write_text(nip_run_here("completion", "bash", cwd=project).stdout)
    commands = """source ./script; while read -r line; do
        eval "COMP_WORDS=(nip-run $line)"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        _shtab_nip_run nip-run "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; (IFS='|'; echo "${COMPREPLY[*]}")
    done"""
    process = subprocess.run(
        ["bash", "-c", commands], env=environment(PATH="/usr/bin:/bin"), cwd=project, input="\n".join(CASES) + "\n",
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    completions = {
        line: set(suggestions.split("|")) for line, suggestions in zip(CASES, process.stdout.splitlines(), strict=True)
    }
    assert completions == CASES


def test_bash_completes_run_ids_from_the_results_folder_of_the_environment(project: Path) -> None:
    (project / "script").write_text(nip_run_here("completion", "bash", cwd=project).stdout)
    commands = (
        'source ./script; COMP_WORDS=(nip-run show g); COMP_CWORD=2; _shtab_nip_run nip-run g show; echo "$COMPREPLY"'
    )
    for variables, expected in (({}, ""), ({"NIP_RUN_RESULTS": "other"}, "gamma-3")):
        process = subprocess.run(
            ["bash", "-c", commands], env=environment(PATH="/usr/bin:/bin", **variables), cwd=project,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert process.stdout.strip() == expected


@pytest.mark.full
def test_fish_completes(project: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    (project / "script").write_text(nip_run_here("completion", "fish", cwd=project).stdout)
    commands = "source ./script; for line in 'show al' 'check mi' 'schema p'; complete -C \"nip-run $line\"; end"
    process = subprocess.run(
        ["fish", "-c", commands], env=environment(), cwd=project, capture_output=True, text=True, check=True
    )
    suggestions = [line.partition("\t")[0] for line in process.stdout.splitlines()]
    assert [suggestion for suggestion in suggestions if suggestion] == ["alpha-1", "mine.yaml", "protocol"]


@pytest.mark.full
def test_zsh_loads_the_script(project: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    (project / "script").write_text(nip_run_here("completion", "zsh", cwd=project).stdout)
    commands = 'autoload -Uz compinit; compinit -u -D; eval "$(cat script)"; print ${_comps[nip-run]}'
    process = subprocess.run(
        ["zsh", "-fc", commands], env=environment(), cwd=project, capture_output=True, text=True, check=True
    )
    assert (process.stdout.strip(), process.stderr) == ("_shtab_nip_run", "")


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(name, marks=pytest.mark.full) for name in ("zsh", "fish"))])
def test_completion_script_passes_the_syntax_check_of_its_shell(project: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = project / "script"
    script.write_text(nip_run_here("completion", shell, cwd=project).stdout)
    process = subprocess.run([shell, "-n", script], env=environment(), capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_bash_escapes_special_characters_in_completed_file_names(project: Path) -> None:
    """Type commands with Tab in an interactive bash: the command gets the file names, and no name is executed."""
    names = ["x$(touch pwned).yaml", "a b.yaml", "q'u\"o`t`e;&.yaml", "dir/in it.yaml"]
    for name in names:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    (project / "line\nbreak.yaml").touch()
    (project / "bin").mkdir()
    program = project / "bin" / "nip-run"
    runner_command = f'exec {sys.executable} -m runner "$@"'
    program.write_text(f'#!/bin/sh\nif [ "$1" = completion ]; then {runner_command}; fi\nprintf "%s\\n" "$2" >> got\n')
    program.chmod(0o755)
    typed = ["x\t", "a\t", "q\t", "dir\tin\t", "a\\ \t", '"a \t', "line\t"]
    (project / "script").write_text(nip_run_here("completion", "bash", cwd=project).stdout)
    terminal, shells_end = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-i"], stdin=shells_end, stdout=shells_end, stderr=shells_end,
        env=environment(PATH=f"{program.parent}:/usr/bin:/bin", TERM="dumb"), cwd=project, start_new_session=True,
    )  # fmt: skip
    os.close(shells_end)
    for line in ("source ./script", *(f"nip-run check {argument}" for argument in typed), "exit"):
        os.write(terminal, f"{line}\n".encode())
    with suppress(OSError):  # reading fails once the shell has exited
        while os.read(terminal, 4096):
            pass
    assert shell.wait(HANG_SECONDS) == 0
    os.close(terminal)
    assert (project / "got").read_text().splitlines() == [*names, "a b.yaml", "a b.yaml", "line"]
    assert not (project / "pwned").exists()


# The results folder


def test_results_folder_comes_from_the_option_then_the_variable_then_the_default(project: Path) -> None:
    assert json.loads(nip_run_here("runs", "--json", cwd=project, NIP_RUN_RESULTS="other").stdout) == []
    for variables, arguments, message in (
        ({}, (), "no run 'x' in results;"),
        ({"NIP_RUN_RESULTS": ""}, (), "no run 'x' in results;"),
        ({"NIP_RUN_RESULTS": "other"}, (), "no run 'x' in other;"),
        ({"NIP_RUN_RESULTS": "other"}, ("--results", "third"), "no run 'x' in third;"),
        ({"NIP_RUN_RESULTS": "~/other", "HOME": str(project)}, (), f"no run 'x' in {project}/other;"),
        ({}, ("--results", ""), "the folder name is empty;"),
        (
            {"NIP_RUN_RESULTS": "mine.yaml"},
            (),
            "cannot use 'mine.yaml' (from NIP_RUN_RESULTS) as a folder: not a folder",
        ),
    ):
        assert message in nip_run_here("show", "x", *arguments, cwd=project, **variables).stderr


def test_every_help_text_names_the_results_variable_and_has_examples(project: Path) -> None:
    for name in COMMANDS:
        help_text = nip_run_here(name, "--help", cwd=project).stdout
        assert "$NIP_RUN_RESULTS" in help_text
        assert help_text.count("\n  nip-run ") >= 2, name
