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
    """A folder with specs and two runs, which is the current one."""
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
    ask = """source ./script; while read -r line; do
        eval "COMP_WORDS=(nip-run $line)"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        _shtab_nip_run nip-run "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; (IFS='|'; echo "${COMPREPLY[*]}")
    done"""
    done = subprocess.run(
        ["bash", "-c", ask], env=environment(PATH="/usr/bin:/bin"), cwd=project, input="\n".join(CASES) + "\n",
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {line: set(words.split("|")) for line, words in zip(CASES, done.stdout.splitlines(), strict=True)}
    assert found == CASES


def test_bash_takes_run_ids_from_the_results_folder_of_the_environment(project: Path) -> None:
    (project / "script").write_text(nip_run_here("completion", "bash", cwd=project).stdout)
    ask = 'source ./script; COMP_WORDS=(nip-run show g); COMP_CWORD=2; _shtab_nip_run nip-run g show; echo "$COMPREPLY"'
    for variables, expected in (({}, ""), ({"NIP_RUN_RESULTS": "other"}, "gamma-3")):
        done = subprocess.run(
            ["bash", "-c", ask], env=environment(PATH="/usr/bin:/bin", **variables), cwd=project, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == expected


@pytest.mark.full
def test_fish_completes(project: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    (project / "script").write_text(nip_run_here("completion", "fish", cwd=project).stdout)
    ask = "source ./script; for line in 'show al' 'check mi' 'schema p'; complete -C \"nip-run $line\"; end"
    done = subprocess.run(
        ["fish", "-c", ask], env=environment(), cwd=project, capture_output=True, text=True, check=True
    )
    words = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert [word for word in words if word] == ["alpha-1", "mine.yaml", "protocol"]


@pytest.mark.full
def test_zsh_loads_the_script(project: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    (project / "script").write_text(nip_run_here("completion", "zsh", cwd=project).stdout)
    ask = 'autoload -Uz compinit; compinit -u -D; eval "$(cat script)"; print ${_comps[nip-run]}'
    done = subprocess.run(
        ["zsh", "-fc", ask], env=environment(), cwd=project, capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("_shtab_nip_run", "")


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(one, marks=pytest.mark.full) for one in ("zsh", "fish"))])
def test_the_script_is_one_of_its_shell(project: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = project / "script"
    script.write_text(nip_run_here("completion", shell, cwd=project).stdout)
    done = subprocess.run([shell, "-n", script], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_quotes_what_it_completes(project: Path) -> None:
    """What bash hands to the command, as typed with Tab at a terminal: the names of the files, and none is run."""
    names = ["x$(touch pwned).yaml", "a b.yaml", "q'u\"o`t`e;&.yaml", "dir/in it.yaml"]
    for name in names:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    (project / "line\nbreak.yaml").touch()
    (project / "bin").mkdir()
    program = project / "bin" / "nip-run"
    ask = f'exec {sys.executable} -m runner "$@"'
    program.write_text(f'#!/bin/sh\nif [ "$1" = completion ]; then {ask}; fi\nprintf "%s\\n" "$2" >> got\n')
    program.chmod(0o755)
    typed = ["x\t", "a\t", "q\t", "dir\tin\t", "a\\ \t", '"a \t', "line\t"]
    (project / "script").write_text(nip_run_here("completion", "bash", cwd=project).stdout)
    terminal, shells_end = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-i"], stdin=shells_end, stdout=shells_end, stderr=shells_end,
        env=environment(PATH=f"{program.parent}:/usr/bin:/bin", TERM="dumb"), cwd=project, start_new_session=True,
    )  # fmt: skip
    os.close(shells_end)
    for line in ("source ./script", *(f"nip-run check {word}" for word in typed), "exit"):
        os.write(terminal, f"{line}\n".encode())
    with suppress(OSError):  # as a terminal ends whose shell has gone
        while os.read(terminal, 4096):
            pass
    assert shell.wait(HANG_SECONDS) == 0
    os.close(terminal)
    assert (project / "got").read_text().splitlines() == [*names, "a b.yaml", "a b.yaml", "line"]
    assert not (project / "pwned").exists()


# The results folder


def test_the_results_folder_is_the_options_else_the_variables_else_results(project: Path) -> None:
    assert json.loads(nip_run_here("runs", "--json", cwd=project, NIP_RUN_RESULTS="other").stdout) == []
    for variables, words, said in (
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
        assert said in nip_run_here("show", "x", *words, cwd=project, **variables).stderr


def test_every_help_names_the_variable_and_shows_examples(project: Path) -> None:
    for name in COMMANDS:
        said = nip_run_here(name, "--help", cwd=project).stdout
        assert "$NIP_RUN_RESULTS" in said
        assert said.count("\n  nip-run ") >= 2, name
