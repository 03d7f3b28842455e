"""The public function that judges a run's debates again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.api.arguments import open_results
from runner.api.display import RunResult
from runner.api.runs import run_sweep
from runner.registry.components.lookup import make_finder
from runner.runs.finished import result as played
from runner.runs.planning.rejudging import WhichVerdicts, plan_rejudging
from runner.spec.loader import Overrides


def rejudge(
    run: played.FinishedRun | str | Path,
    overrides: Overrides = (),
    *,
    verdict: WhichVerdicts = "last",
    results: str | Path | None = None,
    again: bool = False,
    allow_keys: str | Sequence[str] = (),
    allow_commands: str | Sequence[str] = (),
    allow_hosts: str | Sequence[str] = (),
) -> list[RunResult]:
    """Judge the debates of a run again with another judge, and return the new runs. Only the judge's model is called.

    `run` is a run's result, id or folder. `overrides` configure the judge: its model, templates, decision format,
    `votes`, or a sweep over any of these, which makes a run for each point; the results are in the order of the points.
    `verdict` selects whether the judge decides only at the end of each debate, or at every turn that allows a decision.
    All other arguments are as in `run`.

        >>> from runner import load_spec, rejudge, run
        >>> debated = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2}))
        >>> (judged,) = rejudge(debated, {"votes": 3})
        >>> judged.manifest.rejudge_of.run_id == debated.run_id, judged.metrics["outcomes"]["decided"]
        (True, 2)

    Raises:
        SpecError, UsageError, BudgetExhausted, ProviderRefusal, Interrupted, RunError: as in `run`; also if an override
            would change the debates; the message names this override.
    """
    results_folder = open_results(results)
    folder = run.folder if isinstance(run, played.FinishedRun) else results_folder.find(str(run))
    plans = plan_rejudging(folder, overrides, verdict, results_folder.path_of, make_finder())
    specs = [plan.spec for plan in plans]
    return run_sweep(
        specs, results, again=again, allow_keys=allow_keys, allow_commands=allow_commands, allow_hosts=allow_hosts
    )
