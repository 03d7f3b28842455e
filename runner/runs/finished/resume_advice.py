"""Advice on how to resume an unfinished run, for `show` and the pages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.base.text import path_argument
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status


def resume_advice(
    folder: RunFolder, manifest: Manifest, results_options: Sequence[str] = (), *,
    format_path: Callable[[Path], str] = path_argument,
) -> str:  # fmt: skip
    """Return a sentence on how to resume an unfinished run. `results_options` are options for the results folder.

    Raises:
        SpecError: the saved spec is damaged.
    """
    if manifest.status == Status.RUNNING or manifest.replay_of is not None:
        return "run the same command again to resume"
    resumed_run = folder if manifest.parent_run_id is None else folder.sibling(manifest.parent_run_id)
    budget = budget_overrides(folder, manifest)
    command = shlex.join(["nip-run", format_path(resumed_run.path), *budget, *results_options])
    if manifest.status == Status.INTERRUPTED and not budget:
        return f"run the same command again to resume: {command}"
    return f"resume with: {command}"


def budget_overrides(folder: RunFolder, manifest: Manifest) -> list[str]:
    """Return overrides that raise the budget, with a placeholder `N`; empty if the budget did not stop the run."""
    if manifest.status != Status.INTERRUPTED or manifest.why_stopped is None:
        return []
    from runner.runs.finished.reconstruction import saved_plan

    budget = saved_plan(folder).spec.experiment.budget
    return [f"budget.{name}=N" for name, limit in asdict(budget).items() if limit is not None]
