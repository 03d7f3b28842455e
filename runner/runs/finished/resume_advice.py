"""How a run that is not done goes on, in words for people."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict

from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status
from runner.runs.finished.reconstruction import saved_plan


def how_it_goes_on(folder: RunFolder, manifest: Manifest, where: Sequence[str] = ()) -> str:
    """What to do with a run that is not done; `where` are the words that say which results folder is meant.

    Raises:
        SpecError: its saved spec is damaged.
    """
    if manifest.status == Status.RUNNING or manifest.replay_of is not None:
        return "run the same command again to resume"
    whole = folder if manifest.parent_run_id is None else folder.beside(manifest.parent_run_id)
    budget = larger_budget(folder, manifest)
    same = "" if budget or manifest.status != Status.INTERRUPTED else "run the same command again to "
    return f"{same}resume{'' if same else ' with'}: {shlex.join(['nip-run', str(whole.path), *budget, *where])}"


def larger_budget(folder: RunFolder, manifest: Manifest) -> list[str]:
    """The overrides without which a run that its budget stopped would be stopped again: `N` is the user's to choose."""
    if manifest.status != Status.INTERRUPTED or manifest.why_stopped is None:
        return []
    budget = saved_plan(folder).spec.experiment.budget
    return [f"budget.{name}=N" for name, most in asdict(budget).items() if most is not None]
