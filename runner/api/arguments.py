"""Conversion of arguments that the public functions share: a spec in any form, and the results folder."""

from __future__ import annotations

from pathlib import Path

from runner.base.errors import UsageError
from runner.registry.components.lookup import make_finder_for
from runner.results.default_folder import default_results, folder_problem
from runner.results.leaderboard.results_folder import Results
from runner.spec import loader as specs
from runner.spec.loader import Spec, SpecSource


def ensure_loaded(spec: Spec | SpecSource, results: Results | None = None) -> Spec:
    """Load a spec, unless it is loaded already, and return it. The spec may use models of runs in `results`."""
    if isinstance(spec, Spec):
        return spec
    return specs.load_spec(spec, (), (results or open_results(None)).path_of, make_finder_for(spec))


def open_results(folder: str | Path | None) -> Results:
    """Return the results folder at a path. None means the folder that the command line uses by default.

    Raises:
        UsageError: the path cannot be a folder.
    """
    path = default_results() if folder is None else str(folder)
    problem = folder_problem(path)
    if problem is not None:
        raise UsageError(problem)
    return Results(Path(path))
