"""The exceptions: the tree that is drawn is the tree there is, with the exit code of each."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from runner.base import errors
from runner.base.errors import GenerationError, InvalidDecisionError, NipRunError, SpecError
from runner.base.exit_codes import ExitCode
from runner.base.problems import Place, Problem
from runner.cli.main import main
from runner.rollouts import agents

TreeLine = tuple[str, str | None, ExitCode]
"""A class, the one above it, its exit code."""


def parse_error_tree() -> list[TreeLine]:
    """The tree in the docstring of `runner.base.errors`."""
    found: list[TreeLine] = []
    above: list[tuple[str, ExitCode]] = []
    for line in (errors.__doc__ or "").splitlines():
        parts = re.fullmatch(r" {4}((?:│   |    )*(?:[├└]── )?)([A-Z]\w+)( +(?:exit (\d+))?.*)?", line)
        if parts is None:
            continue
        depth = len(parts[1]) // 4
        parent, code = above[depth - 1] if depth else (None, ExitCode.FAILED)
        code = next(one for one in ExitCode if one == int(parts[4])) if parts[4] else code
        above[depth:] = [(parts[2], code)]
        found.append((parts[2], parent, code))
    return found


def real(cls: type[NipRunError] = NipRunError, parent: str | None = None) -> Iterator[TreeLine]:
    """The classes there are, each before those below it, in the order of their definition."""
    yield cls.__name__, parent, cls.exit_code
    for below in cls.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from real(below, cls.__name__)


def test_the_drawn_exception_tree_is_the_one_there_is() -> None:
    assert parse_error_tree() == list(real())


def test_the_agents_package_hands_on_what_its_agents_raise() -> None:
    raised = ["AgentNotActiveInChannelError", *(name for name, _, _ in real(GenerationError))]
    assert all(getattr(agents, name) is getattr(errors, name) for name in raised)
    assert set(raised) == {name for name in agents.__all__ if name.endswith("Error")}


def test_help_names_every_exit_code_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.DONE
    said = capsys.readouterr().out.partition("exit codes:\n")[2].splitlines()
    assert [line.split(maxsplit=1) for line in said] == [[str(int(code)), code.meaning] for code in ExitCode]


def test_a_spec_error_says_every_problem_and_then_its_notes() -> None:
    place = Place("spec.yaml", 3, 1)
    error = SpecError([Problem(place, "seed", "wrong"), Problem(place, "name", "missing")])
    error.add_note("Resume with: nip-run spec.yaml")
    assert error.lines() == [
        "spec.yaml:3:1: name: missing",
        "spec.yaml:3:1: seed: wrong",
        "Resume with: nip-run spec.yaml",
    ]
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


@pytest.mark.parametrize("kind", [GenerationError, InvalidDecisionError])
def test_a_failure_after_retries_is_of_its_kind(kind: type[GenerationError]) -> None:
    error = kind("neither yes nor no").after(3)
    assert (type(error), str(error), error.num_retries) == (kind, "neither yes nor no", 3)
