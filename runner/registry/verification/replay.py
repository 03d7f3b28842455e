"""Replay a fetched run from its own journal, without calls to models, for `nip-run reproduce`.

The replay tests whether the published results follow from the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from runner.base.errors import RunError
from runner.base.storage.atomic_files import read_json
from runner.registry.check_notes import CheckNote, limit_messages
from runner.registry.fetched_release import FetchedRelease
from runner.registry.metric_differences import (
    compare_counts,
    compare_metrics,
    describe_versions,
    is_from_0_1,
    is_from_other_version,
)
from runner.registry.recomputed_run import check_claims
from runner.registry.verification.reproducibility import add_suffix, build_link, check_reproducible
from runner.registry.verification.row_differences import find_published_differences
from runner.registry.verification.verify import find_run_problems
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import COUNTED
from runner.runs.execution.accounting import OnProgress
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import ReplayOf, RunSelection
from runner.runs.session.original_settings import with_original_settings
from runner.runs.session.run import RunOptions
from runner.spec.loader import load_spec
from runner.training.dispatch import run_plan
from runner.training.plan import plan_of
from runner.training.sweep_budgets import PlannedRun
from runner.version import __version__


@dataclass(frozen=True)
class ReplayResult:
    """The result of replaying a published run from its journal."""

    fetched: FetchedRelease
    run_id: str
    """The id of the replay in the results folder."""
    errors: tuple[str, ...]
    """Descriptions of published results that do not follow from the journal."""
    version_notes: tuple[str, ...] = ()
    """Descriptions of results that may differ only because another version of nip-run computed them."""
    is_from_0_1: bool = False
    """Whether nip-run 0.1 played the run."""

    @property
    def recorded_version(self) -> str:
        """The version of nip-run that played the run."""
        return str(self.fetched.release.facts.get("version"))

    @property
    def versions_text(self) -> str:
        """A text with the version that recomputed the run and the version that recorded it."""
        assert self.fetched.run is not None
        return describe_versions(self.fetched.run.manifest())

    @property
    def is_same_version(self) -> bool:
        """Whether this version of nip-run played the run."""
        return self.recorded_version == __version__ and not self.is_from_0_1


def replay_run(fetched: FetchedRelease, results: Results, on_progress: OnProgress | None = None) -> ReplayResult:
    """Replay a fetched run from its journal as a new run, and compare all published results with the new run.

    Raises:
        UsageError: the run is a training run.
        ReleaseError: a file of the run was changed.
        RunError, SpecError: the run plans more games than its journal has, or its files cannot be read.
    """
    run = check_reproducible(fetched)
    plan = played_plan(run)
    with closing(Reconstructor(run, plan)) as reconstructor:
        check_claims(run, plan, len(reconstructor))
    source = ReplayOf(run.path)
    name = results.name_for(add_suffix(run.run_id, "-reproduced"), again=True)
    selection = RunSelection(run_id=name, replay=source)
    replay_plan, _ = with_original_settings(plan_of(load_spec(run.spec)), results, selection)
    options = RunOptions(replay=source, on_progress=on_progress, reproduces=build_link(fetched))
    is_old = is_from_0_1(run.manifest())
    try:
        result = run_plan(PlannedRun(replay_plan, name, options), results)
    except RunError as error:  # an answer is missing, or belongs to another request
        if errors := [line for line in find_run_problems(run) if not isinstance(line, CheckNote)]:
            return ReplayResult(fetched, name, (str(error), *errors), is_from_0_1=is_old)
        raise
    errors, version_notes = _find_differences(run, result)
    return ReplayResult(fetched, result.run_id, tuple(errors), tuple(version_notes), is_old)


def _find_differences(run: RunFolder, result: FinishedRun) -> tuple[list[str], list[str]]:
    """Return the differences between a run and its replay: `errors` and `version_notes`, see `ReplayResult`."""
    manifest = run.manifest()
    metrics = compare_metrics(read_json(run.metrics), result.metrics, manifest)
    counts = {name: getattr(result.manifest, name) for name in COUNTED}
    errors = [
        *limit_messages(metrics.errors, unit="numbers"),
        *limit_messages(_find_row_differences(run, result, is_from_other_version(manifest)), unit="rows"),
        *(
            f"{name}: published {published!r}, recomputed {recomputed!r}"
            for name, published, recomputed in compare_counts(manifest, counts)
        ),
    ]
    return errors, list(limit_messages(metrics.version_notes, unit="numbers"))


def _find_row_differences(run: RunFolder, result: FinishedRun, allow_missing: bool) -> Iterator[str]:
    try:
        yield from find_published_differences(run, result.folder, allow_missing=allow_missing)
    except RunError as error:  # the published rows are damaged or missing
        yield str(error)


def replay_json(result: ReplayResult) -> Mapping[str, object]:
    """Return the result of a replay for `--json`."""
    return {
        "release": str(result.fetched.release.reference),
        "run_id": result.run_id,
        "follows": not result.errors,
        "different": list(result.errors),
        "otherwise": list(result.version_notes),
        "version": result.recorded_version,
        "nip_run": __version__,
        "same_version": result.is_same_version,
    }
