"""The public function that asks questions about the transcripts of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.analysis.analyzer import load_analyzer
from runner.analysis.collection import collect_results
from runner.analysis.planning import AnalysisOptions, Structured, plan_analysis
from runner.analysis.results import AnalysisTable, write_analysis
from runner.api.arguments import open_results
from runner.api.runs import run_sweep
from runner.models.api_keys import all_allowed
from runner.registry.components.lookup import make_finder
from runner.results.manifest import PLAYED
from runner.runs.finished import result as played
from runner.spec.loader import Overrides


def analyze(
    runs: played.FinishedRun | str | Path | Sequence[played.FinishedRun | str | Path],
    analyzers: str | Path | Sequence[str | Path],
    *,
    model: str | None = None,
    overrides: Overrides = (),
    structured: Structured = "auto",
    results: str | Path | None = None,
    again: bool = False,
    allow_keys: str | Sequence[str] = (),
    allow_commands: str | Sequence[str] = (),
    allow_hosts: str | Sequence[str] = (),
) -> list[AnalysisTable]:
    """Ask the questions of analyzers about the games of runs, and return a table for each run and analyzer, in order.

    `runs` are results, ids or folders. `analyzers` are names of built-in analyzers, or paths of their files. A model
    answers, or code where it can; `model` and `overrides` configure this model, for example with
    `{"models.analyst.temperature": 0}`. `structured` makes the server answer in JSON. The tables are also files in the
    folders of the runs. All other arguments are as in `run`.

        >>> from runner import analyze, load_spec, run
        >>> played = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 4, "name": "to-analyze"}))
        >>> (table,) = analyze(played, "follow_up", overrides={"models.analyst.provider": "dummy"})
        >>> {result.status for result in table.results} <= {"answered", "not_applicable"}
        True

    Raises:
        SpecError, UsageError, BudgetExhausted, ProviderRefusal, Interrupted, RunError: as in `run`; also if an analyzer
            has errors, its function fails, or no model is named.
    """
    folder = open_results(results)
    run_list = [runs] if isinstance(runs, (played.FinishedRun, str, Path)) else runs
    names = [analyzers] if isinstance(analyzers, (str, Path)) else analyzers
    options = AnalysisOptions(
        model=model, overrides=overrides, structured=structured,
        allowed=all_allowed(allow_keys, allow_commands, allow_hosts), find_run=folder.path_of,
        find_component=make_finder(),
    )  # fmt: skip
    loaded = [load_analyzer(str(name)) for name in names]
    folders = [run.folder if isinstance(run, played.FinishedRun) else folder.find(str(run)) for run in run_list]
    planned = [plan_analysis(run_folder, analyzer, options) for run_folder in folders for analyzer in loaded]
    specs = [analysis.plan.spec for analysis in planned if analysis.plan is not None]
    finished = run_sweep(
        specs, results, again=again, allow_keys=allow_keys, allow_commands=allow_commands, allow_hosts=allow_hosts
    )
    by_source = {result.manifest.identity: result for result in finished}
    tables = []
    for analysis in planned:
        result = None if analysis.plan is None else by_source[analysis.plan.identity]
        table = collect_results(analysis, None if result is None else result.folder)
        if result is None or result.manifest.status in PLAYED:
            write_analysis(analysis.folder, table)
        tables.append(table)
    return tables
