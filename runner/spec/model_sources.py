"""Models of other runs, by the run that trained them, into what a spec says of a model: `from_run: RUN@i3`.

What a run's models are is read from its saved spec and the log of its stages. It is written into the spec, so that
what is saved with a run depends on no other run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import JournalError, Problem, RunError, UsageError
from runner.base.storage.format_versions import STAGE_LOG
from runner.base.storage.log_lines import read_journal
from runner.base.text import comma_join, did_you_mean
from runner.documents.layer_merge import load_layers
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS
from runner.models.settings import NOT_PUBLISHED, FineTuneStep
from runner.spec.experiment import RENAMED_KEYS, SAVED_SPEC
from runner.spec.origin import DATA, fetched_folder, read_marker

FROM_RUN, FROM_GROUP = "from_run", "from_group"
_LATER = ("base_url", "api_key_env", "headers", "session_id", "chat_format", "system_role", "send_name", "price")
"""What is that run's, too, where the spec does not say it: where the model is served, and in which form it is asked."""

_STEP = frozenset(field.name for field in fields(FineTuneStep))
_NAMED = re.compile(r"(?P<run>.+?)(?:@(?:i(?P<iteration>[0-9]{1,4})|(?P<last>last)))?")


FindRun = Callable[[str], Path]
"""Looks up a run's folder by its id, or the start of it. Raises `UsageError` where there is none, or several."""


def no_runs(name: str) -> Path:
    """Finds none: for specs that are loaded apart from a results folder."""
    raise UsageError(f"no run folder {name!r}; by an id it is found where a results folder is given")


class WrongModel(Exception):
    """Why no model can be taken, and what to write."""


@dataclass(frozen=True)
class ModelSource:
    """A run whose models are taken."""

    path: Path

    @cached_property
    def fetched(self) -> Path | None:
        """The folder that it was unpacked into, where it came from elsewhere."""
        return fetched_folder([self.path])

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        file = self.path / SAVED_SPEC
        return load_layers(file, str(file), (), package_data.find_file, RENAMED_KEYS).data

    @cached_property
    def groups(self) -> Mapping[str, Mapping[str, Any]]:
        """Its model groups before any training."""
        found = self.spec.get("models")
        return (
            {name: group for name, group in found.items() if isinstance(group, dict)} if isinstance(found, dict) else {}
        )

    @property
    def trains(self) -> bool:
        return bool(self.spec.get("kind") == "training")

    @cached_property
    def switched(self) -> list[Mapping[str, Any]]:
        """The models that each iteration has ended with, by group: those that it trained."""
        log = self.path / STAGE_LOG
        if not package_data.is_file(log):
            return []
        try:
            records = [record for _, record in read_journal(log) if record.get("stage") == "switched"]
        except (JournalError, RunError) as error:
            raise WrongModel(str(error)) from error
        return [record["models"] for record in sorted(records, key=lambda record: record["iteration"])]

    def state(self, group: str, iteration: int) -> dict[str, Any]:
        """The model that an iteration plays with: its name, what it began as, and every training since."""
        untrained = self.groups[group]
        name = untrained.get("model")
        found: Mapping[str, Any] = {
            "model": name,
            "base_model": untrained.get("base_model"),
            "lineage": untrained.get("lineage") or [],
        }
        for models in self.switched[:iteration]:
            found = models.get(group, found)
        lineage = [{key: step[key] for key in step.keys() & _STEP} for step in found["lineage"]]
        release = (None if self.fetched is None else read_marker(self.fetched)) or {}
        if lineage and release and lineage[-1].get("release") is None:
            lineage[-1] |= {"release": release["release"], "release_sha256": release["sha256"]}
        return {**found, "lineage": lineage}

    def iteration(self, named: re.Match[str]) -> int:
        """The number of iterations behind the models that are meant."""
        done = len(self.switched)
        if named["iteration"] is not None:
            asked = int(named["iteration"])
            if not self.trains:
                raise WrongModel(
                    f"run {self.path.name} is a benchmark, whose models have no iterations; leave @i{asked} out"
                )
            if asked > done:
                raise WrongModel(f"no iteration {asked}: {self.there}")
            return asked
        asked = self.spec["training"].get("iterations", 1) if self.trains else 0
        if done < asked:
            raise WrongModel(f"it is not finished, so that it has no last models yet: {self.there}; take one of them")
        return done

    @property
    def there(self) -> str:
        """Which models there are, in words."""
        return f"run {self.path.name} has iterations i0..i{len(self.switched)} of groups {comma_join(self.groups)}"


def take_models(layered: LayeredData, find_run: FindRun) -> Iterator[Problem]:
    """Put the models of other runs into the data of a spec, and take the keys out that name them.

    `find_run` looks a run up by its id.
    """
    models = layered.data.get("models")
    for group, settings in models.items() if isinstance(models, dict) else ():
        if isinstance(settings, dict) and isinstance(settings.get(FROM_RUN), str):
            yield from _take_model(layered, group, settings, find_run)
        elif isinstance(settings, dict) and settings.get(FROM_GROUP) is not None:
            at: KeyPath = ("models", group, FROM_GROUP)
            yield Problem(layered.place(at), ".".join(map(str, at)), "this is for from_run; add it, or leave this out")
    training = layered.data.get("training")
    rerun = training.get("rerun_tests") if isinstance(training, dict) else None
    if isinstance(rerun, dict) and isinstance(rerun.get("run"), str) and not rerun.get("models"):
        yield from _take_all(layered, rerun, find_run)


def _take_model(layered: LayeredData, group: str, settings: dict[str, Any], find_run: FindRun) -> Iterator[Problem]:
    at: KeyPath = ("models", group, FROM_RUN)
    said, name = settings.pop(FROM_RUN), settings.pop(FROM_GROUP, None) or group
    try:
        _refuse_two_models(layered, at, settings)
        found = named_model(said)
        source = source_at(layered, at, found["run"], find_run)
        if name not in source.groups:
            raise WrongModel(f"no model group {name!r}{did_you_mean(str(name), source.groups)}; {source.there}")
        _put(layered, at, settings, source, name, iteration=source.iteration(found))
    except WrongModel as wrong:
        yield Problem(layered.place(at), ".".join(map(str, at)), str(wrong))


def _take_all(layered: LayeredData, rerun: dict[str, Any], find_run: FindRun) -> Iterator[Problem]:
    """The models of all iterations, for `training.rerun_tests`."""
    at: KeyPath = ("training", "rerun_tests", "run")
    try:
        source = source_at(layered, at, rerun["run"], find_run)
        groups = layered.data.get("models")
        mine = [name for name in source.groups if isinstance(groups, dict) and isinstance(groups.get(name), dict)]
        trained = sorted({name for models in source.switched for name in models})
        if not trained:
            raise WrongModel(
                f"run {source.path.name} has finished no iteration, so that there are no models to test again"
            )
        if not set(trained) & set(mine):
            raise WrongModel(f"run {source.path.name} trains {comma_join(trained)}, no model group of this spec")
        for name in mine:
            assert isinstance(groups, dict)
            _put(layered, at, groups[name], source, name, iteration=0)
    except WrongModel as wrong:
        yield Problem(layered.place(at), ".".join(map(str, at)), str(wrong))
        return
    done = len(source.switched)
    kept = [name for name in trained if name in mine]
    rerun |= {
        "run": source.path.name,
        "models": [{name: source.state(name, n + 1) for name in kept} for n in range(done)],
    }
    layered.data["training"]["iterations"] = done


def _refuse_two_models(layered: LayeredData, at: KeyPath, settings: Mapping[str, Any]) -> None:
    """A model that is named beside `from_run`, or above it; that of a base is what it takes the place of."""
    if settings.get("model") is None:
        return
    model, run = (layered.place((*at[:-1], key)).file for key in ("model", at[-1]))
    order = {file: number for number, file in enumerate(layered.files)}  # a base stands behind what extends it
    if model == run or order.get(model, -1) < order.get(run, -1):
        raise WrongModel(
            f"{FROM_RUN} says which model it is, and so does models.{at[1]}.model; leave one out, or set it to null"
        )


def _put(
    layered: LayeredData, at: KeyPath, settings: dict[str, Any], source: ModelSource, group: str, *, iteration: int
) -> None:
    """One model into a group of the spec, with where it is served."""
    theirs = source.groups[group]
    provider = theirs.get("provider", DEFAULT_PROVIDER)
    if PROVIDERS[provider].needs_run:
        raise WrongModel(f"group {group!r} of run {source.path.name} replays a run, and has no model")
    ours = settings.setdefault("provider", provider)
    if ours != provider and ours in PROVIDERS and PROVIDERS[ours].needs_model:
        raise WrongModel(f"{group} of run {source.path.name} is played by provider {provider}, not {ours}; set it so")
    taken = source.state(group, iteration)
    if ours == provider:
        theirs = {"chat_format": "openai", **theirs}  # 0.1.0 knew no other, and wrote none
        if source.fetched is not None:
            theirs = _without_server(theirs)
        taken |= {key: theirs[key] for key in _LATER if key in theirs and key not in settings}
    for key, value in taken.items():
        settings[key] = value
        layered.places[(*at[:2], key)] = layered.place(at)


def _without_server(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run from elsewhere: whom a key is sent to is for whoever plays it to say."""
    kept = {key: value for key, value in theirs.items() if key not in ("base_url", "api_key_env", "headers")}
    return {**kept, "base_url": NOT_PUBLISHED} if theirs.get("base_url") is not None else kept


def named_model(said: str) -> re.Match[str]:
    found = _NAMED.fullmatch(said)
    if found is None or "@" in found["run"]:
        raise WrongModel(f"{said!r} names no model; write RUN, RUN@i3 (what iteration 3 plays with) or RUN@last")
    return found


def source_at(layered: LayeredData, at: KeyPath, run: str, find_run: FindRun) -> ModelSource:
    """The run that is meant: by its folder, from that of the file that says it, or by its id."""
    beside = layered.folder(at) / run
    inside = beside / DATA
    try:
        if package_data.is_file(inside / SAVED_SPEC) and package_data.is_file(inside / "manifest.json"):
            found = inside.resolve()
        else:
            found = beside.resolve() if package_data.is_file(beside / SAVED_SPEC) else find_run(run)
    except UsageError as error:
        raise WrongModel(str(error)) from error
    layered.folders.setdefault(str(found / SAVED_SPEC), found)  # one that was fetched may say who gets which key
    return ModelSource(found)
