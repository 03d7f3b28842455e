"""The exception tree in the docs equals the classes and their exit codes."""

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
"""A class, its parent and its exit code."""


def parse_error_tree() -> list[TreeLine]:
    """Return the tree in the docstring of `runner.base.errors`."""
    tree: list[TreeLine] = []
    ancestors: list[tuple[str, ExitCode]] = []
    for line in (errors.__doc__ or "").splitlines():
        parts = re.fullmatch(r" {4}((?:│   |    )*(?:[├└]── )?)([A-Z]\w+)( +(?:exit (\d+))?.*)?", line)
        if parts is None:
            continue
        depth = len(parts[1]) // 4
        parent, code = ancestors[depth - 1] if depth else (None, ExitCode.FAILED)
        code = next(exit_code for exit_code in ExitCode if exit_code == int(parts[4])) if parts[4] else code
        ancestors[depth:] = [(parts[2], code)]
        tree.append((parts[2], parent, code))
    return tree


def walk_error_classes(cls: type[NipRunError] = NipRunError, parent: str | None = None) -> Iterator[TreeLine]:
    """Yield the error classes in the order of their definition, parents first."""
    yield cls.__name__, parent, cls.exit_code
    for subclass in cls.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield from walk_error_classes(subclass, cls.__name__)


def test_documented_exception_tree_equals_the_classes() -> None:
    assert parse_error_tree() == list(walk_error_classes())


def test_agents_package_exports_the_errors_of_its_agents() -> None:
    raised = ["AgentNotActiveInChannelError", *(name for name, _, _ in walk_error_classes(GenerationError))]
    assert all(getattr(agents, name) is getattr(errors, name) for name in raised)
    assert set(raised) == {name for name in agents.__all__ if name.endswith("Error")}


def test_help_lists_every_exit_code_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.DONE
    lines = capsys.readouterr().out.partition("exit codes:\n")[2].splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[str(int(code)), code.meaning] for code in ExitCode]


def test_spec_error_lists_every_problem_and_then_its_notes() -> None:
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
def test_error_after_retries_keeps_its_class(kind: type[GenerationError]) -> None:
    error = kind("neither yes nor no").after(3)
    assert (type(error), str(error), error.num_retries) == (kind, "neither yes nor no", 3)
