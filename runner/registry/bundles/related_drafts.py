"""A run into the drafts of all that is published with it: its parts, the models that it made, and itself last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.registry.bundles.runs import ROWS, drafts_of
from runner.registry.draft import Draft, Naming
from runner.registry.fetched_release import PIN
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results


def family_of(folder: RunFolder, naming: Naming) -> Sequence[Draft]:
    """The drafts, each with the rows that stay here, which its checks need.

    Raises:
        RunError, SpecError: a file of the run, or of a part, is gone or damaged.
    """
    results = Results.of(folder)
    return [_with_rows(draft, folder, results) for draft in drafts_of(folder, results, naming)]


def _with_rows(draft: Draft, folder: RunFolder, results: Results) -> Draft:
    if PIN not in draft.contents:
        return draft
    run_id = draft.release.facts["run_id"]
    own = folder if run_id == folder.manifest().run_id else results.run(run_id)
    return replace(draft, kept={ROWS: own.path / "inputs" / "dataset.jsonl"})
