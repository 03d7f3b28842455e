"""The spec that was saved in a run's folder means that run, which goes on or is shown as by the spec that began it.

A saved spec names the copies in `inputs/`, by which it would be another run: so it is played with `again`, from a copy
of the folder, and into other results. In its own place the dataset's source and selection are those of the manifest,
if the copies are what was played. So they are of a published run that was got, whose spec names the copies too: played
unedited it is the same run, and has its identity.
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
from runner.spec.chat_formats import default_chat_format
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.experiment import SAVED_SPEC
from runner.spec.loader import Spec, load_spec
from runner.spec.origin import DATA

P = TypeVar("P", bound=RunPlan)


def of_own_folder(
    plan: P,
    results: Results,
    plan_of: Callable[[Spec], P],
    *,
    run_id: str | None = None,
    again: bool = False,
    replaying: bool = False,
) -> tuple[P, str | None] | None:
    """The plan of the run whose folder a spec was saved in, and a note on it; None where it means another run.

    Overrides of what a run is make another run of it. Where the folder's own files were changed it is that run's plan
    still, and refused when the run is opened.

    Raises:
        UsageError: other datapoints are asked for than the folder holds.
        RunError: its manifest is missing or damaged.
    """
    folder = _saved_in(plan.spec)
    if again or folder is None or run_id not in (None, folder.run_id) or (replaying and run_id is None):
        return None
    ours = results.run(folder.run_id)
    if ours.path.resolve() != folder.path:
        return None if run_id is not None else _elsewhere(plan, folder, results)
    manifest = _manifest(ours)
    if manifest.run_id != folder.run_id:
        return None  # a copy of another run's folder
    _check_limit(plan.spec, manifest)
    own = _own_plan(plan.spec, ours, manifest, plan_of)
    if own.identity == manifest.identity:
        return own, _note(own.spec, manifest)
    if not _is_changed(ours, manifest, plan_of):  # overrides make another run
        return None if run_id is None else (plan_of(replace(own.spec, begun_as=None)), None)
    return own, f"run {manifest.run_id} cannot be resumed: its {SAVED_SPEC} or inputs/ were changed since it began"


def _saved_in(spec: Spec) -> RunFolder | None:
    """The run folder that a spec was saved in, by its real path; its records may be gone."""
    if spec.path is None or spec.path.name != SAVED_SPEC:
        return None
    folder = RunFolder(spec.path.parent.resolve())
    began = (folder.manifest_path, folder.journal, folder.stage_log)
    return folder if any(path.is_file() for path in began) else None


def _elsewhere(plan: P, folder: RunFolder, results: Results) -> tuple[P, str] | None:
    """A saved spec that is played into other results than its run's is a new run there, which is said."""
    own = Results.of(folder)
    if plan.spec.by_address or own.run(folder.run_id) != folder or folder.identity() is None:
        return None
    return plan, f"a new run in {results.path}; to resume {folder.run_id} itself: --results {own.path}"


def _manifest(folder: RunFolder) -> Manifest:
    if not folder.manifest_path.is_file():
        raise RunError(
            f"{folder.path} has no {folder.manifest_path.name}, which says what its run is; resume it by the spec "
            f"that began it, or play {folder.spec} as a new run with --again"
        )
    return folder.manifest()


def _check_limit(spec: Spec, manifest: Manifest) -> None:
    if spec.experiment.dataset.limit != manifest.dataset_selection.get("limit"):
        raise UsageError(
            f"dataset.limit: the folder of run {manifest.run_id} holds the datapoints that it plays and no others; to "
            "play more or fewer, give the spec that began it, or play these as a new run with --again"
        )


def _as_begun(spec: Spec, folder: RunFolder, manifest: Manifest) -> Spec:
    """A saved spec with what the manifest knows of the one that began the run."""
    return _as_selected(replace(_with_cache(spec, folder, manifest), as_recorded={}), manifest)


def _as_selected(spec: Spec, manifest: Manifest) -> Spec:
    """A saved spec with the selection of datapoints, and the dataset's file, that its run has by its manifest."""
    settings = to_plain(spec.experiment.dataset)
    if settings != resolved_spec(Plan(spec))["dataset"]:
        return spec  # overrides select otherwise
    selection = {**settings, **manifest.dataset_selection, "limits": settings["limits"]}
    spec = replace(spec, experiment=replace(spec.experiment, dataset=from_plain(DatasetSettings, selection)))
    if spec.dataset.sha256 != manifest.dataset_sha256:
        return spec
    source = manifest.dataset_source_sha256
    test = None if spec.test is None else replace(spec.test, source_sha256=source)
    return replace(spec, dataset=replace(spec.dataset, source_sha256=source), test=test)


def _with_cache(spec: Spec, folder: RunFolder, manifest: Manifest) -> Spec:
    """A saved spec with the name, the sweep point and the cache of its run."""
    if "cache" not in spec.overridden and manifest.cache is not None:
        spec = replace(spec, cache=Path(os.path.normpath(folder.path / manifest.cache)))
    return replace(spec, begun_as=manifest.run_id, point=manifest.point, shard=manifest.shard)


def recorded_plan(spec: Spec, folder: RunFolder, plan_of: Callable[[Spec], P]) -> P:
    """The plan of the spec that was saved in a folder, with what its manifest knows: its run's, if nothing changed.

    Raises:
        RunError: the manifest is missing or damaged.
    """
    return _own_plan(spec, folder, _manifest(folder), plan_of)


def _is_changed(folder: RunFolder, manifest: Manifest, plan_of: Callable[[Spec], RunPlan]) -> bool:
    """Whether the folder's files, without overrides, are another run's than its manifest says."""
    return _own_plan(load_spec(folder.spec), folder, manifest, plan_of).identity != manifest.identity


def _own_plan(spec: Spec, folder: RunFolder, manifest: Manifest, plan_of: Callable[[Spec], P]) -> P:
    """The plan of a saved spec in its own place."""
    own = plan_of(_as_begun(spec, folder, manifest))
    if own.identity != manifest.identity:
        # What was begun from a copy of another run's folder is told apart by that copy, and records what it is one of.
        copied = plan_of(_with_cache(spec, folder, manifest))
        own = copied if copied.identity == manifest.identity else own
    return own


def as_published(plan: P) -> P:
    """The plan of a published run that was got, where what is played is what its manifest says: the same identity.

    What was edited since is another run, of which the manifest says only where the dataset came from.
    """
    folder = _got(plan.spec)
    if folder is None or not folder.manifest_path.is_file() or folder.damage() is not None:
        return plan
    manifest = folder.manifest()
    own = plan.with_spec(_as_selected(plan.spec, manifest))
    return own if own.identity == manifest.identity else plan


def _got(spec: Spec) -> RunFolder | None:
    """The folder of the published run that a got spec plays: that of the release, or the one saved with the run."""
    if spec.path is None or spec.path.name != SAVED_SPEC or spec.got_from is None or spec.fetched is None:
        return None
    data = spec.fetched.resolve() / DATA
    return RunFolder(data) if spec.path.parent.resolve() in (data.parent, data) else None


def with_records(spec: Spec) -> Spec:
    """A spec that was saved in a run's folder, wherever that is now, with what the manifest has of its dataset's file.

    Of the protocol and the prompts the copies have the same hashes; the dataset was written again, and only what was
    selected. Where it is not what was played any more, it is a dataset of its own.
    """
    folder = _saved_in(spec) or _got(spec)
    if folder is None or not folder.manifest_path.is_file() or folder.damage() is not None:
        return spec
    manifest, settings = folder.manifest(), to_plain(spec.experiment.dataset)
    if settings != resolved_spec(Plan(spec))["dataset"] or spec.dataset.sha256 != manifest.dataset_sha256:
        return spec
    recorded: dict[str, Any] = {"dataset_source_sha256": manifest.dataset_source_sha256}
    if spec.experiment.training is None:  # whose tests select otherwise
        recorded["dataset_selection"] = {**manifest.dataset_selection, "limit": spec.experiment.dataset.limit}
    return replace(spec, as_recorded=recorded)


def _note(spec: Spec, manifest: Manifest) -> str | None:
    """That a run of 0.1.0, which knew one chat format, goes on in it, where the address has another."""
    models = spec.experiment.models if manifest.format == 0 else {}
    differ = [
        f"models.{group}.chat_format={settings.chat_format}"
        for group, settings in models.items()
        if settings.traits.remote and settings.chat_format != default_chat_format(settings)
    ]
    return f"run {manifest.run_id} began with {comma_join(differ)} and keeps it" if differ else None
