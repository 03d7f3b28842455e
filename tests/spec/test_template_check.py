"""Templates are rendered for every datapoint before the first call."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner import SpecError, check, load_spec, run
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file


def copy_prompts_and_write_spec(folder: Path) -> Path:
    shutil.copytree(ROOT / "prompts/code_validation/nip", folder / "prompts")
    return spec_file(folder, prompts="prompts")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec whose prover template always fails on line 2, and the verifier template when no question is left."""
    path = copy_prompts_and_write_spec(tmp_path)
    prompts = tmp_path / "prompts"
    (prompts / "prover.jinja").write_text("You argue.\n{{ headers[7] }}\n")
    verifier = prompts / "verifier.jinja"
    verifier.write_text("{% if questions_left == 0 %}{{ headers[8] }}{% endif %}" + verifier.read_text("utf-8"))
    return path


@pytest.mark.parametrize("command", [("check",), ("run",), ("plan", "--detect", "0.1")])
def test_every_failing_template_is_reported_with_its_file_and_line(spec: Path, command: tuple[str, ...]) -> None:
    done = nip_run_here(command[0], spec.name, *command[1:], cwd=spec.parent)
    assert done.returncode == 2
    assert "prompts/prover.jinja:2:1: the template fails: list object has no element 7" in done.stderr
    assert "prompts/verifier.jinja:1:1: the template fails: list object has no element 8" in done.stderr
    assert "no errors" not in done.stdout
    assert not (spec.parent / "results").exists()


def test_template_error_names_the_datapoint(tmp_path: Path) -> None:
    spec = copy_prompts_and_write_spec(tmp_path)
    first, second, *_ = load_spec(spec).dataset.datapoints
    template = f'{{% if question == "{second.columns["question"]}" %}}{{{{ question + 1 }}}}{{% endif %}}'
    (tmp_path / "prompts" / "prover.jinja").write_text(template)
    with pytest.raises(SpecError) as error:
        check(spec)
    (problem,) = error.value.problems
    assert (Path(problem.place.file).name, problem.place.line) == ("prover.jinja", 1)
    assert problem.message.endswith(f"rendered for datapoint {second.id!r}")
    assert first.id not in problem.message


def test_run_in_python_creates_no_folder_if_a_template_fails(spec: Path) -> None:
    with pytest.raises(SpecError):
        run(load_spec(spec), results=spec.parent / "results")
    assert not (spec.parent / "results" / "runs").exists()


def test_syntax_error_of_a_template_ends_with_the_next_step(spec: Path) -> None:
    (spec.parent / "prompts" / "prover.jinja").write_text("{{ question")
    with pytest.raises(SpecError, match=r"expected 'end of print statement'; write \{\{ name \}\} for a variable"):
        load_spec(spec)
