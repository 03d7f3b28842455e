"""Build components from one entry of a spec: an agent with its model group, a trainer, or a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from runner.base.errors import ReleaseError, SpecError, UsageError
from runner.base.hashing import SHA256, tagged_hash
from runner.base.problems import Problem
from runner.base.text import comma_join
from runner.documents.dataclass_schema import build_schema, changed_keys, from_plain, to_plain
from runner.documents.layer_loading import load_layers
from runner.documents.releases.bundle import Content
from runner.documents.releases.reference import Kind
from runner.documents.schema_check import check_schema
from runner.documents.yaml_writer import dump
from runner.models.retirements import model_shutdown_facts
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.registry.components.files import UnnamedComponent, remove_nulls
from runner.registry.components.lookup import make_finder_for
from runner.registry.draft import PublisherChoices
from runner.registry.redaction.rules import MODEL_KEYS, choose_public_names
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


def build_agent(path: Path, choices: PublisherChoices, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - same parameters for all builders
    """Return the component with an agent of a spec and the agent's model group."""
    specs = load_specs(path, (), find_component=make_finder_for(path))
    name = _select_part(part, specs[0].protocol.agent_names, "agent", path)
    settings: AgentSettings = _shared_value([spec.experiment.agents[name] for spec in specs], f"agents.{name}", path)
    group = settings.model
    source: ModelSettings = _shared_value([spec.experiment.models[group] for spec in specs], f"models.{group}", path)
    model_data, notes = build_model_entry(source, group)
    content = {"model": group, **_explicit_settings(settings, {"model", "freeze"}), MODEL_GROUP: model_data}
    model = from_plain(ModelSettings, model_data)
    return UnnamedComponent(
        files_by_kind=_spec_files(Kind.AGENT, specs[0]),
        contents={"agent.yaml": dump(content).encode()},
        identity={
            "agent": tagged_hash("agent", agent_content(settings)),
            "model": tagged_hash("model", model_content(model, None)),
        },
        facts={
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


def build_trainer(path: Path, choices: PublisherChoices, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - same parameters for all builders
    """Return the component with the trainer of a model group, from a spec that trains models."""
    specs = load_specs(path, (), find_component=make_finder_for(path))
    sections = [spec.experiment.training for spec in specs if spec.experiment.training is not None]
    if len(sections) < len(specs):
        raise UsageError(f"{path} trains nothing; to publish a trainer, name a spec with kind: training")
    method = sections[0].method
    group = _select_part(part, list(sections[0].trainers), "trainer", path)
    settings = _shared_value([section.trainers[group] for section in sections], f"training.trainers.{group}", path)
    content = _explicit_settings(settings, set())
    stored_scripts, notes_on_missing = collect_trainer_contents({group: settings}, specs[0])
    identity = {name: value for name, value in to_plain(settings).items() if name != "files"}
    folder = f"{FOLDER}/{group}/"
    files = {name.removeprefix(folder): data.hex() for name, data in stored_scripts.items() if name.startswith(folder)}
    identity |= {"stored": files} if files else {}
    return UnnamedComponent(
        files_by_kind=_spec_files(Kind.TRAINER, specs[0]),
        contents={"trainer.yaml": dump(content).encode(), **stored_scripts},
        identity={"trainer": tagged_hash("trainer", identity)},
        facts={
            "backend": settings.backend,
            "format": settings.dataset_format,
            "runs_a_command": settings.command is not None,
            "method": method,
        },
        notes=notes_on_missing,
        description=f"A trainer: {settings.backend}, for {method}",
    )


def collect_trainer_contents(
    trainers: Mapping[str, TrainerSettings], spec: Spec
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the scripts of a release's trainers, and notes about files that are not in the release.

    Raises:
        RunError: a file of a fetched trainer is damaged.
    """
    files = {
        group: collect_files(group, trainer, spec.trainer_files.get(group))
        for group, trainer in trainers.items()
        if trainer.command is not None
    }
    scripts = {f"{FOLDER}/{name}": data for name, data in stored_contents(files).items()} if files else {}
    return scripts, tuple(f"not in the release: {line}" for line in missing_lines(files))


def build_model(path: Path, choices: PublisherChoices, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - same parameters for all builders
    """Return the component with a model group of a spec, or with a model file that a user wrote and its weights."""
    if part is not None:
        specs = load_specs(path, (), find_component=make_finder_for(path))
        group = _select_part(part, list(specs[0].experiment.models), "model group", path)
        settings = _shared_value([spec.experiment.models[group] for spec in specs], f"models.{group}", path)
        return _model_component(settings, group, {}, {}, _spec_files(Kind.MODEL, specs[0]))
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        raise UsageError(
            f"there is no file {file}; name a {MODEL} (provider, model, base_model ...), or a spec with --part GROUP"
        )
    settings, weights = _read_model_file(file)
    files = _weight_files(file.parent) if path.is_dir() else {}
    return _model_component(settings, settings.name, weights, files, {Kind.MODEL: PinnedFiles(file, (file,))})


def _read_model_file(file: Path) -> tuple[ModelSettings, dict[str, object]]:
    """Return the settings of a model file, and the description of its weights.

    Raises:
        SpecError: the file has mistakes; the error lists them all.
    """
    layered = load_layers(file, str(file), (), lambda *_: None)
    if layered.problems:
        raise SpecError(layered.problems)
    weights = layered.data.pop(WEIGHTS, None)
    problems = check_schema(layered, build_schema(ModelSettings, "model"))
    for key in ("run", "from_run", "from_group"):
        if layered.data.get(key) is not None:
            problems.append(
                Problem(layered.place((key,)), key, "a published model cannot name a run of yours; remove it")
            )
    if weights is not None and not isinstance(weights, dict):
        problems.append(
            Problem(layered.place((WEIGHTS,)), WEIGHTS, "must be a mapping with the keys sha256, address, bytes")
        )
    if problems:
        raise SpecError(problems)
    return from_plain(ModelSettings, layered.data), weights or {}


def _model_component(
    settings: ModelSettings,
    group: str,
    weights: dict[str, Any],
    files: Mapping[str, Content],
    files_by_kind: dict[str, PinnedFiles],
) -> UnnamedComponent:
    entry, notes = build_model_entry(settings, group)
    public = from_plain(ModelSettings, entry)
    sha256 = weights.get("sha256")
    is_hash = isinstance(sha256, str) and SHA256.fullmatch(sha256) is not None
    identity = {"model": tagged_hash("model", model_content(public, None))}
    return UnnamedComponent(
        files_by_kind=files_by_kind,
        contents={MODEL: dump({**entry, **({WEIGHTS: weights} if weights else {})}).encode(), **files},
        identity={**identity, WEIGHTS: str(sha256)} if is_hash else identity,
        facts={**_model_facts(public), WEIGHTS: weights or None, "models": {"model": public.name}},
        notes=notes,
        description=f"Model {public.name}, trained from {public.base_model or public.name}",
    )


def build_model_entry(settings: ModelSettings, group: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a model group's settings without its address and paths, and notes about what was removed.

    Raises:
        ReleaseError: the model group replays a run.
    """
    if settings.traits.needs_run:
        raise ReleaseError(
            f"models.{group} replays a run of yours, so others cannot use it as a model; choose another --part"
        )
    data, notes = _explicit_settings(settings, {"from_run", "from_group"}), []
    data = {"provider": settings.provider, **data}
    if settings.base_url is not None:
        data["base_url"] = NOT_PUBLISHED
        notes.append(f"models.{group}.base_url was removed: users set the address of their own server")
    entries = (data, *data.get("lineage", ()))
    published_names = choose_public_names(entry[name] for entry in entries for name in MODEL_KEYS if entry.get(name))
    for name in MODEL_KEYS:
        for entry in (entry for entry in entries if entry.get(name) in published_names):
            entry[name] = published_names[entry[name]]
            if entry is data:
                notes.append(f"models.{group}.{name} was a path; only its last part is published: {data[name]}")
    if settings.base_url is not None:  # the default chat format depends on the address, which is removed
        data["chat_format"] = settings.chat_format or default_chat_format(settings)
    return data, tuple(notes)


def _spec_files(kind: Kind, spec: Spec) -> dict[str, PinnedFiles]:
    """Return the files of a spec, by the kind of the component, so that the release can record their commit."""
    spec_files = parts_of(spec).get("spec")
    return {} if spec_files is None else {kind: spec_files}


def _explicit_settings(settings: Any, excluded: Iterable[str]) -> dict[str, Any]:
    """Return the settings of an entry that are required or differ from the default."""
    required = {item.name for item in fields(settings) if item.default is MISSING and item.default_factory is MISSING}
    names = {*changed_keys(settings), *required} - set(excluded)
    return {name: remove_nulls(value) for name, value in to_plain(settings).items() if name in names}


def _model_facts(settings: ModelSettings) -> dict[str, Any]:
    return {
        "provider": settings.provider,
        "model": settings.name,
        "base_model": settings.base_model or settings.name,
        "trainings": len(settings.lineage),
        **model_shutdown_facts([settings]),
    }


def _weight_files(folder: Path) -> dict[str, Content]:
    """Return the weight files next to a model file, which are published with it."""
    root = folder / WEIGHTS
    if not root.is_dir():
        return {}
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {f"{WEIGHTS}/{path.relative_to(root).as_posix()}": path for path in files}


def _select_part(part: str | None, available: Iterable[str], kind: str, path: Path) -> str:
    names = list(available)
    if part is None and len(names) == 1:
        return names[0]
    if part not in names:
        problem = f"more than one {kind}" if part is None else f"no {kind} {part!r}"
        raise UsageError(f"{path} has {problem}; choose --part from {comma_join(names)}")
    return part


def _shared_value(values: list[Any], key: str, path: Path) -> Any:
    """Return the value that is the same in all points of a sweep. Raises: UsageError: the points differ."""
    if any(value != values[0] for value in values):
        raise UsageError(f"{path} sweeps over {key}, so {key} has several values; publish a spec without this sweep")
    return values[0]
