"""Resolves the spec saved in a run's folder to that run, so that it can be resumed or shown by its saved spec.

A saved spec refers to the copies in `inputs/`, which would give it another identity. With `again`, in a copy of the
folder or with other results, it really is another run. In the run's own folder, the dataset's source and selection are
taken from the manifest if the copies are unchanged. The same holds for a fetched run, whose spec also refers to copies:
if it is unedited, it has the identity of the published run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from runner.base.errors import RunError, UsageError
from runner.base.text import comma_join
from runner.documents.dataclass_schema import from_plain, to_plain
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest
from runner.results.provenance.input_files import resolved_spec
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import RunPlan
from runner.runs.finished.selection import WhichRun
from runner.spec.chat_formats import default_chat_format
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.experiment import SAVED_SPEC
from runner.spec.loader import Spec, load_spec
from runner.spec.origin import DATA

P = TypeVar("P", bound=RunPlan)


def resolve_saved_spec(
    plan: P, results: Results, plan_of: Callable[[Spec], P], which: WhichRun
) -> tuple[P, str | None] | None:
    """Return the plan of the run whose folder has this saved spec, and a note on it; None if it is another run.

    Overrides that change the identity make it another run. If the folder's files were changed, the plan is still
    that of the run, and opening the run fails.

    Raises:
        UsageError: the spec selects other datapoints than the folder has.
        RunError: the run's manifest is missing or damaged.
    """
    folder, run_id = _saved_in(plan.spec), which.run_id
    if which.again or folder is None or run_id not in (None, folder.run_id) or (which.replay and run_id is None):
        return None
    run_folder = results.run(folder.run_id)
    if run_folder.path.resolve() != folder.path:
        return None if run_id is not None else _in_other_results(plan, folder, results)
    manifest = _read_manifest(run_folder)
    if manifest.run_id != folder.run_id:
        return None  # a copy of another run's folder
    _check_limit(plan.spec, manifest)
    own_plan = _own_plan(plan.spec, run_folder, manifest, plan_of)
    if own_plan.identity == manifest.identity:
        return own_plan, _note(own_plan.spec, manifest)
    if not _is_changed(run_folder, manifest, plan_of):  # overrides make another run
        return None if run_id is None else (plan_of(replace(own_plan.spec, resumed_run_id=None)), None)
    note = f"run {manifest.run_id} cannot be resumed: its {SAVED_SPEC} or inputs/ have changed since it started"
    return own_plan, note


def _saved_in(spec: Spec) -> RunFolder | None:
    """Return the run folder that a spec was saved in, as a resolved path; None if it was not saved in one."""
    if spec.path is None or spec.path.name != SAVED_SPEC:
        return None
    folder = RunFolder(spec.path.parent.resolve())
    began = (folder.manifest_path, folder.journal, folder.stage_log)
    return folder if any(path.is_file() for path in began) else None


def _in_other_results(plan: P, folder: RunFolder, results: Results) -> tuple[P, str] | None:
    """Return the plan with a note that it is a new run, if a saved spec is played with other results than its run's."""
    own_results = Results.of(folder)
    if plan.spec.groups_with_default_format or own_results.run(folder.run_id) != folder or folder.identity() is None:
        return None
    return plan, f"a new run in {results.path}; to resume {folder.run_id} itself: --results {own_results.path}"


def _read_manifest(folder: RunFolder) -> Manifest:
    if not folder.manifest_path.is_file():
        raise RunError(
            f"{folder.path} has no {folder.manifest_path.name}, which identifies its run; resume it with its original "
            f"spec, or play {folder.spec} as a new run with --again"
        )
    return folder.manifest()


def _check_limit(spec: Spec, manifest: Manifest) -> None:
    if spec.experiment.dataset.limit != manifest.dataset_selection.get("limit"):
        raise UsageError(
            f"dataset.limit: the folder of run {manifest.run_id} has only the datapoints that it plays; to play more "
            "or fewer, use its original spec, or play these as a new run with --again"
        )


def _with_recorded_selection(spec: Spec, manifest: Manifest) -> Spec:
    """Return a saved spec with the selection of datapoints and the dataset's file from the manifest."""
    settings = to_plain(spec.experiment.dataset)
    if settings != resolved_spec(Plan(spec))["dataset"]:
        return spec  # overrides change the selection
    selection = {**settings, **manifest.dataset_selection, "limits": settings["limits"]}
    spec = replace(spec, experiment=replace(spec.experiment, dataset=from_plain(DatasetSettings, selection)))
    if spec.dataset.sha256 != manifest.dataset_sha256:
        return spec
    source = manifest.dataset_source_sha256
    test = None if spec.test is None else replace(spec.test, source_sha256=source)
    return replace(spec, dataset=replace(spec.dataset, source_sha256=source), test=test)


def _with_cache(spec: Spec, folder: RunFolder, manifest: Manifest) -> Spec:
    """Return a saved spec with the run id, the sweep point, the shard and the cache of its run."""
    if "cache" not in spec.overridden and manifest.cache is not None:
        spec = replace(spec, cache=Path(os.path.normpath(folder.path / manifest.cache)))
    return replace(spec, resumed_run_id=manifest.run_id, point=manifest.point, shard=manifest.shard)


def recorded_plan(spec: Spec, folder: RunFolder, plan_of: Callable[[Spec], P]) -> P:
    """Return the plan of a saved spec with values from the manifest; it is the run's plan if nothing was changed.

    Raises:
        RunError: the manifest is missing or damaged.
    """
    return _own_plan(spec, folder, _read_manifest(folder), plan_of)


def _is_changed(folder: RunFolder, manifest: Manifest, plan_of: Callable[[Spec], RunPlan]) -> bool:
    """Return whether the identity of the folder's files, without overrides, differs from the manifest."""
    return _own_plan(load_spec(folder.spec), folder, manifest, plan_of).identity != manifest.identity


def _own_plan(spec: Spec, folder: RunFolder, manifest: Manifest, plan_of: Callable[[Spec], P]) -> P:
    """Return the plan of a saved spec in its run's folder."""
    recorded = _with_cache(spec, folder, manifest)
    plan = plan_of(_with_recorded_selection(replace(recorded, recorded_fields={}), manifest))
    if plan.identity != manifest.identity:
        # A run that was started from a copy of another run's folder has the identity of the copied inputs.
        copied_plan = plan_of(recorded)
        plan = copied_plan if copied_plan.identity == manifest.identity else plan
    return plan


def with_published_identity(plan: P) -> P:
    """Return the plan of a fetched run with the identity of the published run, if it is unedited.

    If it was edited, it is another run and its plan is returned unchanged.
    """
    folder = _fetched_folder(plan.spec)
    if folder is None or not folder.manifest_path.is_file() or folder.damage() is not None:
        return plan
    manifest = folder.manifest()
    published_plan = plan.with_spec(_with_recorded_selection(plan.spec, manifest))
    return published_plan if published_plan.identity == manifest.identity else plan


def _fetched_folder(spec: Spec) -> RunFolder | None:
    """Return the folder of the published run that a fetched spec plays: the release's, or the one saved with a run."""
    if spec.path is None or spec.path.name != SAVED_SPEC or spec.got_from is None or spec.fetched is None:
        return None
    data = spec.fetched.resolve() / DATA
    return RunFolder(data) if spec.path.parent.resolve() in (data.parent, data) else None


def with_recorded_dataset(spec: Spec) -> Spec:
    """Return a spec saved in a run's folder with the manifest's facts on its dataset file.

    The copies of the protocol and the prompts have the original hashes, but the dataset's copy has only the selected
    rows. If the copy has changed since the run was played, it counts as a dataset of its own.
    """
    folder = _saved_in(spec) or _fetched_folder(spec)
    if folder is None or not folder.manifest_path.is_file() or folder.damage() is not None:
        return spec
    manifest, settings = folder.manifest(), to_plain(spec.experiment.dataset)
    if settings != resolved_spec(Plan(spec))["dataset"] or spec.dataset.sha256 != manifest.dataset_sha256:
        return spec
    recorded: dict[str, Any] = {"dataset_source_sha256": manifest.dataset_source_sha256}
    if spec.experiment.training is None:  # the tests of a training run have another selection
        recorded["dataset_selection"] = {**manifest.dataset_selection, "limit": spec.experiment.dataset.limit}
    return replace(spec, recorded_fields=recorded)


def _note(spec: Spec, manifest: Manifest) -> str | None:
    """Return a note if a run of 0.1.0, which had one chat format, keeps it although the address has another default."""
    models = spec.experiment.models if manifest.format == 0 else {}
    differing = [
        f"models.{group}.chat_format={settings.chat_format}"
        for group, settings in models.items()
        if settings.traits.remote and settings.chat_format != default_chat_format(settings)
    ]
    return f"run {manifest.run_id} began with {comma_join(differing)} and keeps it" if differing else None
