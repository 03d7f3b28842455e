"""Finds the run that a saved spec belongs to, so that a run can be resumed or shown by the spec in its folder.

A saved spec refers to copies of files in the folder `inputs/`. The identity of a run is a hash of everything that
determines its games. The dataset's copy has only the selected rows, so the plan of the saved spec has a different
identity than the run. If the copies are unchanged, this module takes the dataset's source and selection from the
manifest, which restores the run's identity. It does the same for the spec of a downloaded run.

A saved spec starts another run if `again` is set, if the spec is in a copy of the folder, or if the command names
another results folder.
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
from runner.runs.finished.selection import RunSelection
from runner.spec.chat_formats import default_chat_format
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.loader import Spec, load_spec
from runner.spec.origin import DATA
from runner.spec.run_names import SAVED_SPEC

P = TypeVar("P", bound=RunPlan)


def resolve_saved_spec(
    plan: P, results: Results, build_plan: Callable[[Spec], P], selection: RunSelection
) -> tuple[P, str | None] | None:
    """Return the plan of the run whose folder has this saved spec, with a note or None; None for any other spec.

    If overrides change the identity, the saved spec describes another run, and the result is None. If files in the
    run's folder were edited, the result is still the plan of this run; opening the run then fails.

    Raises:
        UsageError: the spec selects other datapoints than the folder has.
        RunError: the run's manifest is missing or damaged.
    """
    folder, run_id = _folder_of_saved_spec(plan.spec), selection.run_id
    if folder is None or selection.again or (selection.replay and run_id is None):
        return None
    if run_id not in (None, folder.run_id):
        return None
    run_folder = results.run(folder.run_id)
    if run_folder.path.resolve() != folder.path:
        return _new_run_in_other_results(plan, folder, results) if run_id is None else None
    manifest = _read_manifest(run_folder)
    if manifest.run_id != folder.run_id:
        return None  # the folder is a copy of another run's folder
    _check_limit(plan.spec, manifest)
    run_plan = _plan_of_run(plan.spec, run_folder, manifest, build_plan)
    if run_plan.identity == manifest.identity:
        return run_plan, _note_on_chat_formats(run_plan.spec, manifest)
    have_overrides_changed_identity = not _was_edited(run_folder, manifest, build_plan)
    if have_overrides_changed_identity:
        return None if run_id is None else (build_plan(replace(run_plan.spec, resumed_run_id=None)), None)
    note = (
        f"run {manifest.run_id} cannot be resumed: its {SAVED_SPEC} or inputs/ were edited after the run started; "
        "restore them, or add --again to play a new run"
    )
    return run_plan, note


def _folder_of_saved_spec(spec: Spec) -> RunFolder | None:
    """Return the folder of the run that saved a spec, with a resolved path; None if the spec is not a saved one."""
    if spec.path is None or spec.path.name != SAVED_SPEC:
        return None
    folder = RunFolder(spec.path.parent.resolve())
    run_files = (folder.manifest_path, folder.journal, folder.stage_log)
    return folder if any(path.is_file() for path in run_files) else None


def _new_run_in_other_results(plan: P, folder: RunFolder, results: Results) -> tuple[P, str] | None:
    """Return the plan and a note for a saved spec that starts a new run in other results; None if no note is needed."""
    own_results = Results.of(folder)
    if plan.spec.groups_with_default_format or own_results.run(folder.run_id) != folder or folder.identity() is None:
        return None
    return plan, (
        f"this command plays a new run in {results.path}; to resume {folder.run_id} itself, add --results "
        f"{own_results.path}"
    )


def _read_manifest(folder: RunFolder) -> Manifest:
    """Return the manifest of the run that saved a spec.

    Raises:
        RunError: the manifest is missing or damaged.
    """
    if not folder.manifest_path.is_file():
        raise RunError(
            f"{folder.path} has no {folder.manifest_path.name}, so its run cannot be identified; resume the run with "
            f"its original spec, or add --again to play {folder.spec} as a new run"
        )
    return folder.manifest()


def _check_limit(spec: Spec, manifest: Manifest) -> None:
    if spec.experiment.dataset.limit != manifest.dataset_selection.get("limit"):
        raise UsageError(
            f"dataset.limit: the folder of run {manifest.run_id} has only the datapoints that this run plays; to play "
            "more or fewer, use the run's original spec, or add --again to play these datapoints as a new run"
        )


def _with_recorded_selection(spec: Spec, manifest: Manifest) -> Spec:
    """Return a saved spec with the selection of datapoints and the hash of the dataset's file from the manifest.

    Return the spec unchanged if overrides change the selection, or if the datapoints differ.
    """
    settings = to_plain(spec.experiment.dataset)
    if settings != resolved_spec(Plan(spec))["dataset"]:
        return spec  # overrides changed the selection
    selection = {**settings, **manifest.dataset_selection, "limits": settings["limits"]}
    spec = replace(spec, experiment=replace(spec.experiment, dataset=from_plain(DatasetSettings, selection)))
    if spec.dataset.sha256 != manifest.dataset_sha256:
        return spec
    source = manifest.dataset_source_sha256
    test = None if spec.test is None else replace(spec.test, source_sha256=source)
    return replace(spec, dataset=replace(spec.dataset, source_sha256=source), test=test)


def _with_run_facts(spec: Spec, folder: RunFolder, manifest: Manifest) -> Spec:
    """Return a saved spec with the run id, the sweep point, the shard and the cache of its run."""
    if "cache" not in spec.overridden and manifest.cache is not None:
        spec = replace(spec, cache=Path(os.path.normpath(folder.path / manifest.cache)))
    return replace(spec, resumed_run_id=manifest.run_id, point=manifest.point, shard=manifest.shard)


def recorded_plan(spec: Spec, folder: RunFolder, build_plan: Callable[[Spec], P]) -> P:
    """Return the plan of a saved spec, with values from the manifest. If nothing was edited, this is the run's plan.

    Raises:
        RunError: the manifest is missing or damaged.
    """
    return _plan_of_run(spec, folder, _read_manifest(folder), build_plan)


def _was_edited(folder: RunFolder, manifest: Manifest, build_plan: Callable[[Spec], RunPlan]) -> bool:
    """Return whether the saved spec or inputs of a run were edited: their identity differs from the manifest's."""
    return _plan_of_run(load_spec(folder.spec), folder, manifest, build_plan).identity != manifest.identity


def _plan_of_run(spec: Spec, folder: RunFolder, manifest: Manifest, build_plan: Callable[[Spec], P]) -> P:
    """Return the plan of a saved spec with the values that the manifest of its run has recorded."""
    recorded = _with_run_facts(spec, folder, manifest)
    plan = build_plan(_with_recorded_selection(replace(recorded, recorded_fields={}), manifest))
    if plan.identity != manifest.identity:
        # A run that was started from a copy of another run's folder has the identity of the copied inputs.
        copied_plan = build_plan(recorded)
        plan = copied_plan if copied_plan.identity == manifest.identity else plan
    return plan


def with_published_identity(plan: P) -> P:
    """Return the plan of a downloaded run with the identity of the published run.

    Return any other plan unchanged, and also the plan of a downloaded run that was edited, which is another run.
    """
    folder = _fetched_folder(plan.spec)
    if folder is None or not folder.manifest_path.is_file() or folder.damage() is not None:
        return plan
    manifest = folder.manifest()
    published_plan = plan.with_spec(_with_recorded_selection(plan.spec, manifest))
    return published_plan if published_plan.identity == manifest.identity else plan


def _fetched_folder(spec: Spec) -> RunFolder | None:
    """Return the folder of the published run if a spec was downloaded with it; None for other specs.

    This folder is in the downloaded release, or in the folder of a run that played the downloaded spec.
    """
    if spec.path is None or spec.path.name != SAVED_SPEC or spec.got_from is None or spec.fetched is None:
        return None
    data = spec.fetched.resolve() / DATA
    return RunFolder(data) if spec.path.parent.resolve() in (data.parent, data) else None


def with_recorded_dataset(spec: Spec) -> Spec:
    """Return a saved spec with the facts about its dataset file from the manifest; other specs unchanged.

    These facts are the hash of the original file and the selection of its rows, because the copy has only the selected
    rows. If the copy was edited after the run was played, it is another dataset, and the spec is returned unchanged.
    """
    folder = _folder_of_saved_spec(spec) or _fetched_folder(spec)
    if folder is None or not folder.manifest_path.is_file() or folder.damage() is not None:
        return spec
    manifest, settings = folder.manifest(), to_plain(spec.experiment.dataset)
    if settings != resolved_spec(Plan(spec))["dataset"] or spec.dataset.sha256 != manifest.dataset_sha256:
        return spec
    recorded: dict[str, Any] = {"dataset_source_sha256": manifest.dataset_source_sha256}
    if spec.experiment.training is None:  # the tests of a training run have another selection
        recorded["dataset_selection"] = {**manifest.dataset_selection, "limit": spec.experiment.dataset.limit}
    return replace(spec, recorded_fields=recorded)


def _note_on_chat_formats(spec: Spec, manifest: Manifest) -> str | None:
    """Return a note if a run of 0.1.0 resumes with the chat format of 0.1.0 although the default is another one."""
    models = spec.experiment.models if manifest.format == 0 else {}
    differing = [
        f"models.{group}.chat_format={settings.chat_format}"
        for group, settings in models.items()
        if settings.traits.remote and settings.chat_format != default_chat_format(settings)
    ]
    if not differing:
        return None
    return f"run {manifest.run_id} started with {comma_join(differing)} and resumes with this value"
