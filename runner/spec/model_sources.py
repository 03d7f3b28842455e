"""Resolve `from_run: RUN@i3`, which takes a model of another run, into the settings of a model group.

The models of a run are read from its saved spec and its stage log. They are written into the spec, so that a run's
saved spec does not depend on other runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import JournalError, RunError, UsageError
from runner.base.problems import Problem
from runner.base.storage.format_versions import STAGE_LOG
from runner.base.storage.log_lines import read_journal
from runner.base.text import comma_join, did_you_mean
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules, LayeredData
from runner.documents.plain_values import KeyPath
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS
from runner.models.settings import NOT_PUBLISHED, FineTuneStep
from runner.spec.experiment import RENAMED_KEYS
from runner.spec.origin import DATA, fetched_folder, read_marker
from runner.spec.run_names import SAVED_SPEC

FROM_RUN, FROM_GROUP = "from_run", "from_group"
_INHERITED_KEYS = (
    "base_url", "api_key_env", "headers", "session_id", "chat_format", "system_role", "send_name", "price"
)  # fmt: skip
"""Keys of the model's server and chat format. Their values come from the other run, unless the spec sets them."""

STEP_KEYS = frozenset(field.name for field in fields(FineTuneStep))
"""Keys of a fine-tuning step that a spec stores. The stage log has further ones."""
_MODEL_PATTERN = re.compile(r"(?P<run>.+?)(?:@(?:i(?P<iteration>[0-9]{1,4})|(?P<last>last)))?")


FindRun = Callable[[str], Path]
"""Looks up a run's folder by its id or the start of its id; raises `UsageError` if no run or several runs match."""


def reject_run_ids(name: str) -> Path:
    """Raise an error. This function takes the place of `FindRun` if specs are loaded without a results folder.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"no run folder {name!r}; to name a run by its id, load the spec with `runner.load_spec`")


class ModelError(Exception):
    """Raised if a model cannot be taken from a run; the message says why and how to change the spec."""


@dataclass(frozen=True)
class ModelSource:
    """A run that models are taken from."""

    path: Path

    @cached_property
    def fetched(self) -> Path | None:
        """The folder that the run was downloaded into; None for a local run."""
        return fetched_folder([self.path])

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The data of the run's saved spec."""
        file = self.path / SAVED_SPEC
        return load_layers(file, str(file), (), package_data.find_file, KeyRules(renamed=RENAMED_KEYS)).data

    @cached_property
    def groups(self) -> Mapping[str, Mapping[str, Any]]:
        """The run's model groups before any training."""
        models = self.spec.get("models")
        return (
            {name: group for name, group in models.items() if isinstance(group, dict)}
            if isinstance(models, dict)
            else {}
        )

    @property
    def is_training_run(self) -> bool:
        return bool(self.spec.get("kind") == "training")

    @cached_property
    def models_of_iterations(self) -> list[Mapping[str, Any]]:
        """The trained models at the end of each iteration, by group."""
        log = self.path / STAGE_LOG
        if not package_data.is_file(log):
            return []
        try:
            records = [record for _, record in read_journal(log) if record.get("stage") == "switched"]
        except (JournalError, RunError) as error:
            raise ModelError(str(error)) from error
        return [record["models"] for record in sorted(records, key=lambda record: record["iteration"])]

    def model_of(self, group: str, iteration: int) -> dict[str, Any]:
        """Return the model that a group plays with in an iteration: its name, its base model, and its lineage."""
        untrained = self.groups[group]
        name = untrained.get("model")
        model: Mapping[str, Any] = {
            "model": name,
            "base_model": untrained.get("base_model"),
            "lineage": untrained.get("lineage") or [],
        }
        for models in self.models_of_iterations[:iteration]:
            model = models.get(group, model)
        lineage = [{key: step[key] for key in step.keys() & STEP_KEYS} for step in model["lineage"]]
        release = (None if self.fetched is None else read_marker(self.fetched)) or {}
        if lineage and release and lineage[-1].get("release") is None:
            lineage[-1] |= {"release": release["release"], "release_sha256": release["sha256"]}
        return {**model, "lineage": lineage}

    def iteration_of(self, match: re.Match[str]) -> int:
        """Return the iteration that a reference names (see `parse_model_name`). Iteration 0 has the untrained models.

        Raises:
            ModelError: the run has no such iteration.
        """
        finished = len(self.models_of_iterations)
        if match["iteration"] is not None:
            requested = int(match["iteration"])
            if not self.is_training_run:
                raise ModelError(f"run {self.path.name} is a benchmark without iterations; remove @i{requested}")
            if requested > finished:
                raise ModelError(f"no iteration {requested}; {self.description}; choose one of these")
            return requested
        planned = self.spec["training"].get("iterations", 1) if self.is_training_run else 0
        if finished < planned:
            raise ModelError(
                f"the run is not finished, so it has no last models yet: {self.description}; choose one of these"
            )
        return finished

    @property
    def description(self) -> str:
        """A text that lists the iterations and model groups whose models can be used."""
        last = len(self.models_of_iterations)
        return f"run {self.path.name} has iterations i0..i{last} of groups {comma_join(self.groups)}"


def resolve_model_sources(layered: LayeredData, find_run: FindRun) -> Iterator[Problem]:
    """Write the models of other runs into the data of a spec, and remove the keys that name them.

    `find_run` looks up a run by its id.
    """
    models = layered.data.get("models")
    for group, settings in models.items() if isinstance(models, dict) else ():
        if isinstance(settings, dict) and isinstance(settings.get(FROM_RUN), str):
            yield from _take_model(layered, group, settings, find_run)
        elif isinstance(settings, dict) and settings.get(FROM_GROUP) is not None:
            key_path: KeyPath = ("models", group, FROM_GROUP)
            yield layered.problem_at(key_path, "from_group needs from_run; add from_run, or remove from_group")
    training = layered.data.get("training")
    rerun = training.get("rerun_tests") if isinstance(training, dict) else None
    if isinstance(rerun, dict) and isinstance(rerun.get("run"), str) and not rerun.get("models"):
        yield from _take_all_models(layered, rerun, find_run)


def _take_model(layered: LayeredData, group: str, settings: dict[str, Any], find_run: FindRun) -> Iterator[Problem]:
    key_path: KeyPath = ("models", group, FROM_RUN)
    text, group_in_run = settings.pop(FROM_RUN), settings.pop(FROM_GROUP, None) or group
    try:
        _reject_two_models(layered, key_path, settings)
        match = parse_model_name(text)
        source = find_model_source(layered, key_path, match["run"], find_run)
        if group_in_run not in source.groups:
            hint = did_you_mean(str(group_in_run), source.groups) or f"; {source.description}"
            raise ModelError(f"no model group {group_in_run!r}{hint}")
        _set_model(layered, key_path, settings, source, group_in_run, iteration=source.iteration_of(match))
    except ModelError as error:
        yield layered.problem_at(key_path, str(error))


def _take_all_models(layered: LayeredData, rerun: dict[str, Any], find_run: FindRun) -> Iterator[Problem]:
    """Write the models of all iterations into the data, for `training.rerun_tests`."""
    key_path: KeyPath = ("training", "rerun_tests", "run")
    try:
        source = find_model_source(layered, key_path, rerun["run"], find_run)
        groups = layered.data.get("models")
        groups = groups if isinstance(groups, dict) else {}
        shared = [name for name in source.groups if isinstance(groups.get(name), dict)]
        trained = sorted({name for models in source.models_of_iterations for name in models})
        if not trained:
            raise ModelError(
                f"run {source.path.name} has not finished an iteration, so there are no models to test; resume the run"
            )
        if not set(trained) & set(shared):
            raise ModelError(
                f"run {source.path.name} trains {comma_join(trained)}, which are not model groups of this spec; add one"
            )
        for name in shared:
            _set_model(layered, key_path, groups[name], source, name, iteration=0)
    except ModelError as error:
        yield layered.problem_at(key_path, str(error))
        return
    iterations = len(source.models_of_iterations)
    tested = [name for name in trained if name in shared]
    rerun |= {
        "run": source.path.name,
        "models": [{name: source.model_of(name, i) for name in tested} for i in range(1, iterations + 1)],
    }
    layered.data["training"]["iterations"] = iterations


def _reject_two_models(layered: LayeredData, key_path: KeyPath, settings: Mapping[str, object]) -> None:
    """Reject a `model` in the file that sets `from_run`, or in a file that extends this file.

    A `model` in a file that this file extends is allowed: `from_run` replaces it.
    """
    if settings.get("model") is None:
        return
    model_file, run_file = (layered.place((*key_path[:-1], key)).file for key in ("model", key_path[-1]))
    # In layered.files, an extended file comes after the file that extends it.
    order = {file: index for index, file in enumerate(layered.files)}
    if model_file == run_file or order.get(model_file, -1) < order.get(run_file, -1):
        raise ModelError(f"{FROM_RUN} and models.{key_path[1]}.model both set the model; remove one, or set it to null")


def _set_model(
    layered: LayeredData, path: KeyPath, settings: dict[str, Any], source: ModelSource, group: str, *, iteration: int
) -> None:
    """Write the model of a group of the run `source` into a group of the spec, with the keys of its server.

    `settings` has the keys of the spec's group, and `path` is the key that names the run.
    """
    source_group = source.groups[group]
    provider = source_group.get("provider", DEFAULT_PROVIDER)
    if PROVIDERS[provider].needs_run:
        raise ModelError(
            f"group {group!r} of run {source.path.name} replays a run and has no model; name another group"
        )
    own_provider = settings.setdefault("provider", provider)
    if own_provider != provider and own_provider in PROVIDERS and PROVIDERS[own_provider].needs_model:
        raise ModelError(
            f"{group} of run {source.path.name} uses provider {provider}, not {own_provider}; "
            f"set models.{path[1]}.provider={provider}"
        )
    model = source.model_of(group, iteration)
    if own_provider == provider:
        source_group = {"chat_format": "openai", **source_group}  # 0.1.0 had no other format, and did not write it
        if source.fetched is not None:
            source_group = _remove_server(source_group)
        model |= {key: source_group[key] for key in _INHERITED_KEYS if key in source_group and key not in settings}
    for key, value in model.items():
        settings[key] = value
        layered.places[(*path[:2], key)] = layered.place(path)


def _remove_server(settings: Mapping[str, object]) -> dict[str, Any]:
    """Return a model group of a downloaded run without its server, so that the user decides who receives an API key."""
    rest = {key: value for key, value in settings.items() if key not in ("base_url", "api_key_env", "headers")}
    return {**rest, "base_url": NOT_PUBLISHED} if settings.get("base_url") is not None else rest


def parse_model_name(text: str) -> re.Match[str]:
    """Parse a reference such as `RUN@i3`. The match has the groups `run`, `iteration` and `last`.

    Raises:
        ModelError: the text does not have this form.
    """
    match = _MODEL_PATTERN.fullmatch(text)
    if match is None or "@" in match["run"]:
        raise ModelError(f"{text!r} is not a model of a run; write RUN, RUN@i3 (the model in iteration 3) or RUN@last")
    return match


def find_model_source(layered: LayeredData, key_path: KeyPath, run: str, find_run: FindRun) -> ModelSource:
    """Return the run that `run` names: a folder relative to the file with the key, or an id.

    Raises:
        ModelError: there is no such run.
    """
    folder = layered.folder(key_path) / run
    data_folder = folder / DATA
    try:
        if package_data.is_file(data_folder / SAVED_SPEC) and package_data.is_file(data_folder / "manifest.json"):
            run_folder = data_folder.resolve()
        else:
            run_folder = folder.resolve() if package_data.is_file(folder / SAVED_SPEC) else find_run(run)
    except UsageError as error:
        raise ModelError(str(error)) from error
    # If the run was downloaded, its folder among `layered.folders` marks the spec as downloaded, too.
    layered.folders.setdefault(str(run_folder / SAVED_SPEC), run_folder)
    return ModelSource(run_folder)
