"""An entry of a spec, or of a file like one, into a component: an agent with its model group, a trainer, a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from runner.base.errors import Problem, ReleaseError, SpecError, UsageError
from runner.base.hashing import tagged_hash
from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import changed, from_plain, schema, to_plain
from runner.documents.layer_merge import load_layers
from runner.documents.releases.bundle import Content
from runner.documents.releases.reference import Kind
from runner.documents.schema_check import check
from runner.documents.yaml_writer import dump
from runner.models.retirements import shutdown_facts
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.registry.components.files import UnnamedComponent, without_nulls
from runner.registry.components.lookup import finder_of
from runner.registry.draft import Naming
from runner.registry.redaction.rules import MODEL_KEYS, renamed_models
from runner.results.provenance.file_pins import PinnedFiles
from runner.results.provenance.sources_snapshot import parts_of
from runner.rollouts.identity import agent_content, model_content
from runner.spec.chat_formats import default_chat_format
from runner.spec.components import MODEL_GROUP, WEIGHTS
from runner.spec.experiment import AgentSettings
from runner.spec.loader import Spec, load_specs
from runner.spec.trainer_files import FOLDER
from runner.spec.training_settings import TrainerSettings
from runner.training.trainer_files import collect_files, missing_lines, stored_contents

MODEL = "model.yaml"
_HEX = re.compile(r"[0-9a-f]{64}")


def agent(path: Path, naming: Naming, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - as all makers
    """One agent of a spec, with its model group."""
    specs = load_specs(path, (), find_component=finder_of(path))
    name = _part(part, specs[0].protocol.agent_names, "agent", path)
    settings: AgentSettings = _same([spec.experiment.agents[name] for spec in specs], f"agents.{name}", path)
    group = settings.model
    asked: ModelSettings = _same([spec.experiment.models[group] for spec in specs], f"models.{group}", path)
    said, notes = model_entry(asked, group)
    content = {"model": group, **_said(settings, {"model", "freeze"}), MODEL_GROUP: said}
    model = from_plain(ModelSettings, said)
    return UnnamedComponent(
        _written(Kind.AGENT, specs[0]),
        {"agent.yaml": dump(content).encode()},
        {
            "agent": tagged_hash("agent", agent_content(settings)),
            "model": tagged_hash("model", model_content(model, None)),
        },
        {
            "agent": name,
            "role": specs[0].protocol.agent_spec(name).role,
            "protocol": specs[0].protocol.name,
            **_model_facts(model),
            "group": group,
            "models": {name: model.name},
        },
        notes=notes,
        description=f"{name} of {specs[0].protocol.name}, played by {model.name}",
    )


def trainer(path: Path, naming: Naming, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - as all makers
    """The trainer of one model group of a spec that trains."""
    specs = load_specs(path, (), find_component=finder_of(path))
    sections = [spec.experiment.training for spec in specs]
    trainers = [section.trainers for section in sections if section is not None]
    if len(trainers) < len(specs):
        raise UsageError(f"{path} trains nothing; a trainer is cut out of a spec of kind: training")
    group = _part(part, list(trainers[0]), "trainer", path)
    settings = _same([one[group] for one in trainers], f"training.trainers.{group}", path)
    content = _said(settings, set())
    stored, missing = trainer_contents({group: settings}, specs[0])
    identity = {name: value for name, value in to_plain(settings).items() if name != "files"}
    own = f"{FOLDER}/{group}/"
    files = {name.removeprefix(own): data.hex() for name, data in stored.items() if name.startswith(own)}
    identity |= {"stored": files} if files else {}
    return UnnamedComponent(
        _written(Kind.TRAINER, specs[0]),
        {"trainer.yaml": dump(content).encode(), **stored},
        {"trainer": tagged_hash("trainer", identity)},
        {
            "backend": settings.backend,
            "format": settings.dataset_format,
            "runs_a_command": settings.command is not None,
            "method": None if sections[0] is None else sections[0].method,
        },
        notes=missing,
        description=f"A trainer: {settings.backend}, for {'' if sections[0] is None else sections[0].method}",
    )


def trainer_contents(trainers: Mapping[str, TrainerSettings], spec: Spec) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files of a release that store its trainers' scripts, and notes on what is not in it.

    Raises:
        RunError: a file of a fetched trainer is damaged.
    """
    found = {
        group: collect_files(group, trainer, spec.trainer_files.get(group))
        for group, trainer in trainers.items()
        if trainer.command is not None
    }
    stored = {f"{FOLDER}/{name}": data for name, data in stored_contents(found).items()} if found else {}
    return stored, tuple(f"not in the release: {line}" for line in missing_lines(found))


def model(path: Path, naming: Naming, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - as all makers
    """A model group of a spec; or a model that somebody describes by hand, with what is known of its weights."""
    if part is not None:
        specs = load_specs(path, (), find_component=finder_of(path))
        group = _part(part, list(specs[0].experiment.models), "model group", path)
        settings = _same([spec.experiment.models[group] for spec in specs], f"models.{group}", path)
        return _model(settings, group, {}, {}, _written(Kind.MODEL, specs[0]))
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"there is no file {file}; a model is described by a {MODEL}: provider, model, base_model ...")
    settings, weights = _described(file)
    files = _weights(file.parent) if path.is_dir() else {}
    return _model(settings, settings.name, weights, files, {Kind.MODEL: PinnedFiles(file, (file,))})


def _described(file: Path) -> tuple[ModelSettings, dict[str, Any]]:
    """What a model's file says, and of its weights.

    Raises:
        SpecError: with everything that is wrong.
    """
    layered = load_layers(file, str(file), (), lambda *_: None)
    if layered.problems:
        raise SpecError(layered.problems)
    weights = layered.data.pop(WEIGHTS, None)
    problems = check(layered, schema(ModelSettings, "model"))
    for key in ("run", "from_run", "from_group"):
        if layered.data.get(key) is not None:
            problems.append(
                Problem(layered.place((key,)), key, "a published model names no run of yours; leave it out")
            )
    if weights is not None and not isinstance(weights, dict):
        problems.append(Problem(layered.place((WEIGHTS,)), WEIGHTS, "a mapping belongs here: sha256, address, bytes"))
    if problems:
        raise SpecError(problems)
    return from_plain(ModelSettings, layered.data), weights or {}


def _model(
    settings: ModelSettings,
    group: str,
    weights: dict[str, Any],
    files: Mapping[str, Content],
    parts: dict[str, PinnedFiles],
) -> UnnamedComponent:
    said, notes = model_entry(settings, group)
    known = from_plain(ModelSettings, said)
    sha256 = weights.get("sha256")
    is_hash = isinstance(sha256, str) and _HEX.fullmatch(sha256) is not None
    identity = {"model": tagged_hash("model", model_content(known, None))}
    return UnnamedComponent(
        parts,
        {MODEL: dump({**said, **({WEIGHTS: weights} if weights else {})}).encode(), **files},
        {**identity, WEIGHTS: str(sha256)} if is_hash else identity,
        {**_model_facts(known), WEIGHTS: weights or None, "models": {"model": known.name}},
        notes=notes,
        description=f"Model {known.name}, trained from {known.base_model or known.name}",
    )


def model_entry(settings: ModelSettings, group: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A model group as others may have it, and what was taken out: where it is served, and paths.

    Raises:
        ReleaseError: it replays a run.
    """
    if settings.traits.needs_run:
        raise ReleaseError(f"models.{group} replays a run of yours, and is no model that others can ask")
    data, notes = _said(settings, {"from_run", "from_group"}), []
    data = {"provider": settings.provider, **data}
    if settings.base_url is not None:
        data["base_url"] = NOT_PUBLISHED
        notes.append(f"models.{group}.base_url was taken out: where a model is served is for whoever plays it to say")
    entries = (data, *data.get("lineage", ()))
    called = renamed_models(entry[name] for entry in entries for name in MODEL_KEYS if entry.get(name))
    for name in MODEL_KEYS:
        for entry in (entry for entry in entries if entry.get(name) in called):
            entry[name] = called[entry[name]]
            if entry is data:
                notes.append(f"models.{group}.{name} was a path; its last part stands there, {data[name]}")
    if settings.base_url is not None:  # by which it is known how the model is asked
        data["chat_format"] = settings.chat_format or default_chat_format(settings)
    return data, tuple(notes)


def _written(kind: Kind, spec: Spec) -> dict[str, PinnedFiles]:
    """The files of the spec that something was cut out of."""
    found = parts_of(spec).get("spec")
    return {} if found is None else {kind: found}


def _said(settings: Any, without: Iterable[str]) -> dict[str, Any]:
    """What an entry says that is not as by default."""
    required = {one.name for one in fields(settings) if one.default is MISSING and one.default_factory is MISSING}
    said = {*changed(settings), *required} - set(without)
    return {name: without_nulls(value) for name, value in to_plain(settings).items() if name in said}


def _model_facts(settings: ModelSettings) -> dict[str, Any]:
    return {
        "provider": settings.provider,
        "model": settings.name,
        "base_model": settings.base_model or settings.name,
        "trainings": len(settings.lineage),
        **shutdown_facts([settings]),
    }


def _weights(folder: Path) -> dict[str, Content]:
    """The files of weights that stand beside a model's file, which are published with it."""
    root = folder / WEIGHTS
    if not root.is_dir():
        return {}
    found = sorted(path for path in root.rglob("*") if path.is_file())
    return {f"{WEIGHTS}/{path.relative_to(root).as_posix()}": path for path in found}


def _part(part: str | None, there: Iterable[str], what: str, path: Path) -> str:
    names = list(there)
    if part is None and len(names) == 1:
        return names[0]
    if part not in names:
        hint = "" if part is None else did_you_mean(part, names)
        said = f"which {what} of {path}?" if part is None else f"{path} has no {what} {part!r}{hint};"
        raise UsageError(f"{said} --part with one of {comma_join(names)}")
    return part


def _same(found: list[Any], key: str, path: Path) -> Any:
    """What all points of a sweep have alike."""
    if any(one != found[0] for one in found):
        raise UsageError(f"{path} sweeps over {key}, so that it is several things; publish a spec without that")
    return found[0]
