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
from runner.spec.components import USE, FindComponent
from runner.spec.model_sources import FROM_GROUP, FROM_RUN, FindRun, ModelError, find_model_source, parse_model_name

_START: KeyPath = ("training", "from")


def resolve_training_start(layered: LayeredData, find_run: FindRun, find_component: FindComponent) -> Iterator[Problem]:
    """Replace `training.from` by the key `from_run` or `use` of each trained model group. Yield problems."""
    training, models = layered.data.get("training"), layered.data.get("models")
    start = training.pop("from", None) if isinstance(training, dict) else None
    if start is None or not isinstance(training, dict) or not isinstance(models, dict):
        return
    if layered.data.get("kind") != "training":
        return  # Another check reports a section `training` in a benchmark.
    trainers = training.get("trainers")
    groups = [name for name in models if isinstance(trainers, dict) and name in trainers]
    try:
        if not isinstance(start, str):
            raise ModelError("training.from must be text: a run or an installed model")
        if _is_release(layered, start):
            key, continued_groups = USE, _groups_of_release(start, groups, find_component)
        else:
            key, continued_groups = FROM_RUN, _groups_of_run(layered, start, groups, find_run)
        for name in continued_groups:
            if not isinstance(models[name], dict):
                continue  # The schema check reports the wrong type.
            if models[name].get(key) is not None:
                raise ModelError(f"models.{name}.{key} also sets what the group continues from; remove one of the two")
            if key == USE and models[name].get("model") is not None:
                raise ModelError(f"models.{name}.model also sets the model; remove it, or set it to null")
            models[name][key] = start
            layered.places["models", name, key] = layered.place(_START)
    except ModelError as error:
        yield layered.problem_at(_START, str(error))


def _groups_of_run(layered: LayeredData, start: str, groups: Sequence[str], find_run: FindRun) -> list[str]:
    """Return the groups of this spec that the run `start` has trained.

    Raises:
        ModelError: the run has trained none of them, or cannot be found.
    """
    source = find_model_source(layered, _START, parse_model_name(start)["run"], find_run)
    trained = {name for models in source.models_of_iterations for name in models}
    continued_groups = [name for name in groups if name in trained]
    if not continued_groups:
        history = f"trained {comma_join(sorted(trained))}" if trained else "has trained no model"
        raise ModelError(
            f"run {source.path.name} {history}, and this spec trains {comma_join(groups) or 'none'}; "
            f"set models.GROUP.{FROM_RUN} and {FROM_GROUP} instead"
        )
    return continued_groups


def _groups_of_release(start: str, groups: Sequence[str], find_component: FindComponent) -> Sequence[str]:
    """Return the group of this spec that continues from an installed model, as a sequence.

    Raises:
        ModelError: the spec trains several groups, and the release does not say which one its model belongs to.
    """
    if len(groups) == 1:
        return groups
    group = _trained_group_of(start, find_component)
    if group not in groups:
        raise ModelError(
            f"the model's group is unclear: this spec trains {comma_join(groups)}; set models.GROUP.use instead"
        )
    return [str(group)]


def _trained_group_of(name: str, find_component: FindComponent) -> object:
    """Return the model group of an installed model in its training run; None if unknown."""
    try:
        release_use = find_component(Kind.MODEL, name)
        return Release.from_bytes(read_bounded(release_use.folder / MANIFEST, MAX_MANIFEST)).facts.get("group")
    except (NipRunError, OSError):
        return None  # The error is reported later, when the release of the model is looked up.


def _is_release(layered: LayeredData, text: str) -> bool:
    """Return whether `training.from` names a model's release, and not a run's folder or id.

    Raises:
        ModelError: the text names a release of another kind.
    """
    folder = layered.folder(_START)
    if not is_reference(text) or any(package_data.is_folder(folder / name) for name in (text, text.rpartition("@")[0])):
        return False
    try:
        parse_reference(text, Kind.MODEL)
    except UsageError as error:
        message = f"{error}; to continue a published run: nip-run get {text} DIR, and then training.from: DIR"
        raise ModelError(message) from error
    return True
