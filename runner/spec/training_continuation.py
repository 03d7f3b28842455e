"""`training.from`: what a training goes on from, written as where each of its model groups is taken from."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base import package_data
from runner.base.errors import NipRunError, Problem, UsageError
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release
from runner.documents.releases.reference import Kind, is_reference, parse
from runner.spec.components import FindComponent
from runner.spec.model_sources import FROM_GROUP, FROM_RUN, FindRun, WrongModel, named_model, source_at

USE = "use"
"""In a model group: an installed model."""


def take_start(layered: LayeredData, find_run: FindRun, find_component: FindComponent) -> Iterator[Problem]:
    """Put what a training goes on from into its model groups, before releases and runs are looked up for them."""
    training, models = layered.data.get("training"), layered.data.get("models")
    said = training.pop("from", None) if isinstance(training, dict) else None
    if said is None or not isinstance(training, dict) or not isinstance(models, dict):
        return
    if layered.data.get("kind") != "training":
        return  # for which the section itself is wrong
    at: KeyPath = ("training", "from")
    trainers = training.get("trainers")
    groups = [name for name in models if isinstance(trainers, dict) and name in trainers]
    try:
        if not isinstance(said, str):
            raise WrongModel("a run or an installed model belongs here, as a text")
        key, named = (USE, groups) if _is_release(layered, at, said) else (FROM_RUN, [])
        if key == FROM_RUN:
            source = source_at(layered, at, named_model(said)["run"], find_run)
            trained = {name for states in source.switched for name in states}
            named = [name for name in groups if name in trained]
            if not named:
                there = f"trained {comma_join(sorted(trained))}" if trained else "has trained no model"
                raise WrongModel(
                    f"run {source.path.name} {there}, and this spec trains {comma_join(groups) or 'none'}; "
                    f"say models.GROUP.{FROM_RUN} and {FROM_GROUP} instead"
                )
        elif len(groups) != 1 and (group := _group_of(said, find_component)) in groups:
            named = [str(group)]
        elif len(groups) != 1:
            raise WrongModel(
                f"of which group is it the model? This spec trains {comma_join(groups)}; say models.GROUP.use"
            )
        for name in named:
            if not isinstance(models[name], dict):
                continue  # which the schema finds
            if models[name].get(key) is not None:
                raise WrongModel(f"models.{name}.{key} says what it goes on from, too; leave one out")
            if key == USE and models[name].get("model") is not None:
                raise WrongModel(f"models.{name}.model says which model it is, too; leave it out, or set it to null")
            models[name][key] = said
            layered.places["models", name, key] = layered.place(at)
    except WrongModel as wrong:
        yield Problem(layered.place(at), ".".join(map(str, at)), str(wrong))


def _group_of(said: str, find_component: FindComponent) -> object:
    """The group that an installed model was trained as, as its release says; None where that is not known."""
    try:
        found = find_component(Kind.MODEL, said)
        return Release.from_bytes(read_bounded(found.folder / MANIFEST, MAX_MANIFEST)).facts.get("group")
    except (NipRunError, OSError):
        return None  # which is told where the group's model is looked up


def _is_release(layered: LayeredData, at: KeyPath, said: str) -> bool:
    """Whether a model's release is meant, and no run's folder or id.

    Raises:
        WrongModel: a release of another kind is.
    """
    folder = layered.folder(at)
    if not is_reference(said) or any(package_data.is_folder(folder / name) for name in (said, said.rpartition("@")[0])):
        return False
    try:
        parse(said, Kind.MODEL)
    except UsageError as error:
        got = f"{error}; a published run is got first: nip-run get {said} DIR, and then training.from: DIR"
        raise WrongModel(got) from error
    return True
