"""Resolve `training.from`, the run or model that a training continues, into `from_run` or `use` of model groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.base import package_data
from runner.base.errors import NipRunError, UsageError
from runner.base.problems import Problem
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release
from runner.documents.releases.reference import Kind, is_reference, parse_reference
from runner.spec.components import FindComponent
from runner.spec.model_sources import FROM_GROUP, FROM_RUN, FindRun, ModelError, find_model_source, parse_model_name

USE = "use"
"""Key of a model group that names an installed model."""

_START: KeyPath = ("training", "from")


def resolve_training_start(layered: LayeredData, find_run: FindRun, find_component: FindComponent) -> Iterator[Problem]:
    """Replace `training.from` by the key `from_run` or `use` of each trained model group. Yield problems."""
    training, models = layered.data.get("training"), layered.data.get("models")
    start = training.pop("from", None) if isinstance(training, dict) else None
    if start is None or not isinstance(training, dict) or not isinstance(models, dict):
        return
    if layered.data.get("kind") != "training":
        return  # Another check reports a section `training` in a benchmark.
    key_path = _START
    trainers = training.get("trainers")
    groups = [name for name in models if isinstance(trainers, dict) and name in trainers]
    try:
        if not isinstance(start, str):
            raise ModelError("training.from must be text: a run or an installed model")
        if _is_release(layered, key_path, start):
            key, continued = USE, _groups_of_release(start, groups, find_component)
        else:
            key, continued = FROM_RUN, _groups_of_run(layered, start, groups, find_run)
        for name in continued:
            if not isinstance(models[name], dict):
                continue  # The schema check reports the wrong type.
            if models[name].get(key) is not None:
                raise ModelError(f"models.{name}.{key} also sets what the group continues from; remove one of the two")
            if key == USE and models[name].get("model") is not None:
                raise ModelError(f"models.{name}.model also sets the model; remove it, or set it to null")
            models[name][key] = start
            layered.places["models", name, key] = layered.place(key_path)
    except ModelError as error:
        yield layered.problem_at(key_path, str(error))


def _groups_of_run(layered: LayeredData, start: str, groups: Sequence[str], find_run: FindRun) -> list[str]:
    """Return the groups of this spec that the run `start` has trained.

    Raises:
        ModelError: the run has trained none of them, or cannot be found.
    """
    source = find_model_source(layered, _START, parse_model_name(start)["run"], find_run)
    trained = {name for states in source.iteration_models for name in states}
    continued = [name for name in groups if name in trained]
    if not continued:
        history = f"trained {comma_join(sorted(trained))}" if trained else "has trained no model"
        raise ModelError(
            f"run {source.path.name} {history}, and this spec trains {comma_join(groups) or 'none'}; "
            f"set models.GROUP.{FROM_RUN} and {FROM_GROUP} instead"
        )
    return continued


def _groups_of_release(start: str, groups: Sequence[str], find_component: FindComponent) -> Sequence[str]:
    """Return the group of this spec that continues from an installed model.

    Raises:
        ModelError: the spec trains several groups, and the release does not tell which one this is.
    """
    if len(groups) == 1:
        return groups
    group = _group_of(start, find_component)
    if group not in groups:
        raise ModelError(
            f"the model's group is unclear: this spec trains {comma_join(groups)}; set models.GROUP.use instead"
        )
    return [str(group)]


def _group_of(name: str, find_component: FindComponent) -> object:
    """Return the group that an installed model was trained as, according to its release; None if unknown."""
    try:
        release_use = find_component(Kind.MODEL, name)
        return Release.from_bytes(read_bounded(release_use.folder / MANIFEST, MAX_MANIFEST)).facts.get("group")
    except (NipRunError, OSError):
        return None  # The error is reported later, when the release of the model is looked up.


def _is_release(layered: LayeredData, key_path: KeyPath, text: str) -> bool:
    """Return whether the text names a model's release, and not a run's folder or id.

    Raises:
        ModelError: the text names a release of another kind.
    """
    folder = layered.folder(key_path)
    if not is_reference(text) or any(package_data.is_folder(folder / name) for name in (text, text.rpartition("@")[0])):
        return False
    try:
        parse_reference(text, Kind.MODEL)
    except UsageError as error:
        message = f"{error}; to continue a published run: nip-run get {text} DIR, and then training.from: DIR"
        raise ModelError(message) from error
    return True
