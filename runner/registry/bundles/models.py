"""Drafts of model releases: the last model that a training run made in each model group.

A draft has the model's settings, lineage and training effort, and its weights if they are small.
`runner.registry.bundles.runs` publishes these drafts together with the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from runner.base.hashing import SHA256
from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.paths import path_problem
from runner.documents.releases.reference import Kind
from runner.documents.yaml_writer import dump
from runner.models.provider_traits import ProviderName, traits_of
from runner.models.retirements import model_shutdown_facts
from runner.models.settings import ModelSettings
from runner.registry.bundles.run_facts import replace_sources, sources_of_manifest
from runner.registry.draft import Draft, PublisherChoices
from runner.registry.lineage.links import (
    EFFORT,
    collect_public_group_facts,
    collect_training_facts,
    complete_step,
    model_identity,
    model_reference,
    run_reference,
)
from runner.registry.markdown import as_code
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.spec.model_sources import ModelSource
from runner.training.stage_log import read_stages
from runner.training.stages import ModelSwitch
from runner.training.weights import Weights, is_path, public_model_name, weights_at

MAX_WEIGHTS_BYTES = 64 << 20
"""Maximum size of published weights in bytes. If weights are larger, only their hash is published."""
MAX_WEIGHT_FILES = 200

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TRAINING_FIELDS = ("iteration", "model", "from_model", "method", "dataset_sha256", "examples", "trained_tokens")
_REQUEST_SETTINGS = ("chat_format", "system_role", "send_name")
"""Settings of a model group that stay correct if users run the model on another server."""


def build_model_drafts(folder: RunFolder, choices: PublisherChoices) -> list[Draft]:
    """Return a draft for the last model that a training run made in each model group; empty for other runs.

    Specs name the models of earlier iterations by the run's release and the iteration, such as `RUN@i3`.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    manifest = replace_sources(folder.manifest(), choices.sources)
    if not manifest.is_training_run:
        return []
    groups = zip(collect_training_facts(folder), _links(folder, manifest, choices), strict=True)  # both sorted by name
    records = read_stages(folder.path, manifest.identity).find_all(ModelSwitch)
    final_settings = {name: settings for record in records for name, settings in record.models.items()}
    return [
        _model_draft(folder, manifest, choices, group, final_settings[group["group"]], links=links)
        for group, links in groups
        if group["made"]
    ]


def _model_draft(
    folder: RunFolder,
    manifest: Manifest,
    choices: PublisherChoices,
    group: Mapping[str, Any],
    final_settings: Mapping[str, Any],
    *,
    links: tuple[ReleaseLink, ...],
) -> Draft:
    """Return the draft of one model. `group` is a fact of `collect_training_facts`. Names are redacted later."""
    name, last_model, model = group["group"], group["made"][-1], final_settings["model"]
    weights, notes = _find_weights(model, last_model["weights_sha256"])
    files, omitted = _weight_files(weights, model, choices) if weights is not None else ({}, [])
    start_settings = ModelSource(folder.path).groups[name]
    location = "weights/" if files else _find_public_location(start_settings, model)
    entry = _spec_entry(start_settings, final_settings)
    entry |= _weights_entry(model, weights, last_model["weights_sha256"], location)
    effort = _effort_of(group)
    release = Release(
        kind=Kind.MODEL,
        owner=choices.owner,
        name=model_reference(manifest.run_id, name, choices.owner).name,
        version=choices.version,
        description=choices.description or _describe(name, manifest.run_id, entry["base_model"], effort["continues"]),
        licence=choices.licence,
        visibility=choices.visibility,
        identity=_identity(manifest, last_model, weights),
        sources=sources_of_manifest(manifest),
        links=links,
        facts={
            **_model_facts(manifest, group, effort, entry["base_model"], location),
            **_shutdown_fact(group["provider"], last_model["model"], start_settings.get("base_url")),
        },
    )
    texts = {
        "model.yaml": dump(entry).encode(),
        "training.yaml": dump(effort).encode(),
        "README.md": _readme(release, entry, effort).encode(),
    }
    return Draft(release, {**texts, **files}, (*notes, *omitted))


def _model_facts(
    manifest: Manifest, group: Mapping[str, Any], effort: Mapping[str, Any], base_model: str, location: str | None
) -> dict[str, Any]:
    last_model = group["made"][-1]
    return {
        **{name: getattr(manifest, name) for name in ("run_id", "name", "started_at", "finished_at")},
        "group": group["group"],
        "provider": group["provider"],
        "model": last_model["model"],
        "base_model": base_model,
        "iteration": last_model["iteration"],
        "address": location,
        "effort": effort["own"],
        "continues": effort["continues"],
        "trained": [dict(group)],
    }


def _weights_entry(model: str, weights: Weights | None, recorded_sha256: str | None, location: str | None) -> Any:
    """Return the entry `weights` of `model.yaml`; empty if a server has the weights."""
    if weights is not None:
        size = {"sha256": weights.sha256, "bytes": weights.size, "files": len(weights.files)}
    elif is_path(model):
        size = {"sha256": recorded_sha256, "bytes": None, "files": None}
    else:
        return {}
    return {"weights": {**size, "address": location}}


def _shutdown_fact(provider: str | None, model: str, base_url: object) -> dict[str, Any]:
    """Return the fact with the date when OpenAI shuts down a model; empty for models on other servers."""
    if provider is None or base_url is not None:
        return {}
    return model_shutdown_facts([ModelSettings(provider=cast("ProviderName", provider), model=model)])


def _spec_entry(start_settings: Mapping[str, Any], final_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry for the `models` section of a spec. The URL of a server is replaced by `???`."""
    steps = [complete_step(step) for step in final_settings["lineage"]]
    return {
        "provider": start_settings.get("provider"),
        "model": final_settings["model"],
        "base_model": final_settings["base_model"],
        **({"base_url": "???"} if start_settings.get("base_url") is not None else {}),
        **{name: start_settings[name] for name in _REQUEST_SETTINGS if start_settings.get(name) is not None},
        "lineage": [{name: value for name, value in step.items() if value is not None} for step in steps],
    }


def _find_weights(model: str, recorded_sha256: str | None) -> tuple[Weights | None, list[str]]:
    """Return a model's weights, or None and a note why they cannot be published.

    Both are empty if the weights are on a server.
    """
    name = public_model_name(model)
    try:
        weights = weights_at(model)
    except OSError as error:
        return None, [f"the weights {name} cannot be read: {error.strerror}; only their hash is published"]
    if weights is not None and recorded_sha256 not in (None, weights.sha256):
        return None, [f"the weights {name} were changed after the training and are not published"]
    if weights is None and is_path(model):
        return None, [f"the weights {name} are not on this machine and are not published"]
    return weights, []


def _weight_files(weights: Weights, model: str, choices: PublisherChoices) -> tuple[dict[str, Content], list[str]]:
    """Return the weight files to publish, or a note with the reason why they are not published."""
    root, model_name = Path(model).expanduser(), public_model_name(model)
    paths = {name: root / name if name else root for name, _, _ in weights.files}  # "" if the weights are one file
    names = {name: f"weights/{name or root.name}" for name in paths}
    if choices.licence is None:
        reason = "no license was given (--license)"
    elif weights.size > MAX_WEIGHTS_BYTES or len(paths) > MAX_WEIGHT_FILES:
        limit = f"at most {MAX_WEIGHTS_BYTES:,} bytes in {MAX_WEIGHT_FILES} files are published"
        reason = f"{weights.size:,} bytes in {len(paths)} files; {limit}"
    elif any(path.is_symlink() for path in paths.values()):
        reason = "they include symbolic links"
    elif invalid := next((name for name in names.values() if path_problem(name)), None):
        reason = f"{invalid} is not a valid path in a release"
    else:
        return {names[name]: path for name, path in paths.items()}, []
    return {}, [f"the weights {model_name} are not published, only their hash: {reason}"]


def _find_public_location(start_settings: Mapping[str, object], model: str) -> str | None:
    """Return a model's location (stored as `address`): `PROVIDER:MODEL` or `hf:MODEL`; None if its name has none."""
    if is_path(model) or not traits_of(start_settings.get("provider")).trains:
        return None
    if start_settings.get("base_url") is None:
        return f"{start_settings['provider']}:{model}"
    return f"hf:{model}" if _HUB_NAME.fullmatch(model) else None


def _effort_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `training.yaml`: the effort of each training in a run (`steps`), and their sum (`own`).

    If the start model was trained before, `continues` names the release or run that trained it. The effort of all
    training (`in all`) is then None, because other releases have a part of it; `nip-run history` adds it up.
    """
    games = {row["iteration"]: row for row in group["games"]}
    steps = [
        {
            **{name: model[name] for name in _TRAINING_FIELDS},
            "games": [games[iteration] for iteration in model["trained_on"] if iteration in games],
        }
        for model in group["made"]
    ]
    iterations = _training_iterations(group)
    used_games = [games.get(iteration, {}) for iteration in sorted(iterations)]
    total = {name: _sum([row.get(name) for row in used_games]) for name in EFFORT}
    ancestor = _ancestor_of(group)
    return {"steps": steps, "continues": ancestor, "own": total, "in all": total if ancestor is None else None}


def _ancestor_of(group: Mapping[str, Any]) -> str | None:
    """Return the release (or run id) that made the start model; None if the start model was not trained."""
    step = group["lineage"][-1] if group["lineage"] else None
    return None if step is None else step["release"] or step["run_id"]


def _describe(group: str, run_id: str, base: str, continues: str | None) -> str:
    """Return a one-line description of a model."""
    origin = f"trained from {base}" if continues is None else f"continues {continues}, its base is {base}"
    return f"Model group {group} of {run_id}, {origin}"


def _training_iterations(group: Mapping[str, Any]) -> set[int]:
    """Return the iterations whose games were used to train the last model, or the models that it continues."""
    models = {model["iteration"]: model for model in group["made"]}
    model, iterations = group["made"][-1], set()
    while model is not None:
        iterations |= set(model["trained_on"])
        model = models.get(model["from_iteration"])
    return iterations


def _sum(values: list[Any]) -> Any:
    return None if None in values else round(sum(values), 9)


def _identity(manifest: Manifest, last_model: Mapping[str, Any], weights: Weights | None) -> dict[str, str]:
    hashes = {
        "run": manifest.identity,
        "training_data": last_model["dataset_sha256"],
        "weights": last_model["weights_sha256"] if weights is None else weights.sha256,
    }
    return {name: value for name, value in hashes.items() if value is not None and SHA256.fullmatch(value)}


def _links(folder: RunFolder, manifest: Manifest, choices: PublisherChoices) -> Iterator[tuple[ReleaseLink, ...]]:
    """Yield the links of each model group's release: to the run, and to the start model if it was trained."""
    parent = ReleaseLink(
        role="parent",
        release=choices.references.get(manifest.run_id)
        or str(run_reference(manifest.run_id, choices.owner, choices.version)),
        identity=manifest.identity,
    )
    for group in collect_public_group_facts(folder):
        step = group["lineage"][-1] if group["lineage"] else None
        identity = model_identity(group["provider"], group["model"], group["weights_sha256"])
        if step is None:
            yield (parent,)
        else:
            start = ReleaseLink(role="input", release=step["release"], sha256=step["release_sha256"], identity=identity)
            yield parent, start


def _readme(release: Release, entry: Mapping[str, Any], effort: Mapping[str, Any]) -> str:
    total, continues = effort["own"], effort["continues"]
    totals = ", ".join(
        f"{name.replace('_', ' ')}: {'unknown' if number is None else f'{number:,}'}" for name, number in total.items()
    )
    weights = entry.get("weights")
    weights_line = (
        "" if weights is None else f"\nWeights: sha256:{weights['sha256']}, {weights['address'] or 'not published'}.\n"
    )
    continues_line = (
        ""
        if continues is None
        else f"\nIt continues {as_code(continues)}, whose training is not counted here: `nip-run history` adds it up.\n"
    )
    base_url_line = "\nSet `base_url` in `model.yaml` to the address of your server.\n" if "base_url" in entry else ""
    return f"""# {release.reference}

A model that a training run made: {len(entry["lineage"])} trainings from {entry["base_model"]}. `model.yaml`
lists all of them, and `training.yaml` has the effort of each.

Effort of this run's own trainings: {totals}.
{continues_line}{weights_line}{base_url_line}
In a spec:

```yaml
models:
  mine: {{use: {release.reference.owner}/{release.name}@{release.version}}}
```
"""
