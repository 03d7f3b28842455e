"""What the public functions share: a spec however it is given, and the results folder that is meant."""

from __future__ import annotations

from pathlib import Path

from runner.base.errors import UsageError
from runner.registry.components.lookup import finder_of
from runner.results.default_folder import default_results, no_folder
from runner.results.leaderboard.results_folder import Results
from runner.spec import loader as specs
from runner.spec.loader import Spec, SpecSource


def loaded(spec: Spec | SpecSource, results: Results | None = None) -> Spec:
    if isinstance(spec, Spec):
        return spec
    return specs.load_spec(spec, (), (results or results_at(None)).path_of, finder_of(spec))


def results_at(given: str | Path | None) -> Results:
    """The results folder that is meant; where nothing is said, that of the command line.

    Raises:
        UsageError: no folder can be there.
    """
    path = default_results() if given is None else str(given)
    wrong = no_folder(path)
    if wrong is not None:
        raise UsageError(wrong)
    return Results(Path(path))
