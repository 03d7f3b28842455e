"""Drafts of the models that a training run made: settings, lineage, effort, and small weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.paths import path_problem
from runner.documents.releases.reference import Kind
from runner.documents.yaml_writer import dump
from runner.models.provider_traits import DEFAULT_PROVIDER, traits_of
from runner.models.retirements import shutdown_facts
from runner.models.settings import ModelSettings
from runner.registry.bundles.run_facts import sources_of_manifest, with_sources
from runner.registry.draft import Draft, Naming
from runner.registry.lineage.links import (
    EFFORT,
    model_identity,
    model_reference,
    run_reference,
    shown_step,
    trained_as_recorded,
    trained_facts,
)
from runner.registry.markdown import code
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.spec.model_sources import ModelSource
from runner.training.stage_log import read_stages
from runner.training.stages import Switched
from runner.training.weights import Weights, is_path, public_model_name, weights_at

MAX_WEIGHTS = 64 << 20
"""Larger weights are not published, only their hash."""
MAX_WEIGHT_FILES = 200

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REQUEST_SETTINGS = ("chat_format", "system_role", "send_name")
"""Settings of requests, which do not depend on the server."""


def model_drafts(folder: RunFolder, naming: Naming) -> list[Draft]:
    """Return drafts for the last model of each group that a training run made; other runs have none.

    Models of earlier iterations are in the release of the run (`RUN@i3`).

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    manifest = with_sources(folder.manifest(), naming.sources)
    if not manifest.is_training_run:
        return []
    groups = zip(trained_as_recorded(folder), _links(folder, manifest, naming), strict=True)
    switched = read_stages(folder.path, manifest.identity).all(Switched)
    return [
        _draft(folder, manifest, naming, group, _last_state(switched, group["group"]), links=links)
        for group, links in groups
        if group["made"]
    ]


def _last_state(switched: list[Switched], group: str) -> Mapping[str, Any]:
    """Return a group's model after all iterations, by its original name."""
    return [record.models[group] for record in switched if group in record.models][-1]


def _draft(
    folder: RunFolder,
    manifest: Manifest,
    naming: Naming,
    group: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    links: tuple[ReleaseLink, ...],
) -> Draft:
    """Return the draft of one model, with original names: it is redacted together with its run."""
    name, last = group["group"], group["made"][-1]
    weights, notes = _find_weights(state["model"], last["weights_sha256"])
    files, omitted = _weight_files(weights, state["model"], naming) if weights is not None else ({}, [])
    began = ModelSource(folder.path).groups[name]
    entry = _settings(began, state)
    address = "weights/" if files else _address(began, state["model"])
    if is_path(state["model"]) or weights is not None:
        sha256 = last["weights_sha256"] if weights is None else weights.sha256
        entry["weights"] = {
            "sha256": sha256,
            "bytes": None if weights is None else weights.size,
            "files": None if weights is None else len(weights.files),
            "address": address,
        }
    effort = _effort_of(group)
    reference = model_reference(manifest.run_id, name, naming.owner, naming.version)
    release = Release(
        kind=Kind.MODEL,
        owner=naming.owner,
        name=reference.name,
        version=naming.version,
        description=naming.description or _describe(name, manifest.run_id, entry["base_model"], effort["continues"]),
        licence=naming.licence,
        visibility=naming.visibility,
        identity=_identity(manifest, last, weights),
        sources=sources_of_manifest(manifest),
        links=links,
        facts={
            "run_id": manifest.run_id,
            "name": manifest.name,
            "started_at": manifest.started_at,
            "finished_at": manifest.finished_at,
            "group": name,
            "provider": group["provider"],
            "model": last["model"],
            "base_model": entry["base_model"],
            "iteration": last["iteration"],
            "address": address,
            "effort": effort["own"],
            "continues": effort["continues"],
            "trained": [dict(group)],
            **_shutdown(group["provider"], last["model"], began.get("base_url")),
        },
    )
    texts = {
        "model.yaml": dump(entry).encode(),
        "training.yaml": dump(effort).encode(),
        "README.md": _readme(release, entry, effort).encode(),
    }
    return Draft(release, {**texts, **files}, (*notes, *omitted))


def _shutdown(provider: str, model: str, address: object) -> dict[str, Any]:
    """Return the fact of the model's shutdown date, if it is asked at OpenAI itself."""
    is_at_openai = provider == DEFAULT_PROVIDER and address is None
    return shutdown_facts([ModelSettings(model=model)] if is_at_openai else [])


def _settings(group: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of `models`, without the server's address."""
    steps = [shown_step(step) for step in state["lineage"]]
    address = {"base_url": "???"} if group.get("base_url") is not None else {}
    return {
        "provider": group.get("provider"),
        "model": state["model"],
        "base_model": state["base_model"],
        **address,
        **{name: group[name] for name in _REQUEST_SETTINGS if group.get(name) is not None},
        "lineage": [{name: value for name, value in step.items() if value is not None} for step in steps],
    }


def _find_weights(model: str, recorded: str | None) -> tuple[Weights | None, list[str]]:
    """Return the weights, or None with a note if they are not here or have changed."""
    name = public_model_name(model)
    try:
        weights = weights_at(model)
    except OSError as error:
        return None, [f"the weights {name} cannot be read: {error.strerror}; only their hash is published"]
    if weights is not None and recorded not in (None, weights.sha256):
        return None, [f"the weights {name} were changed after the training and are not published"]
    if weights is None and is_path(model):
        return None, [f"the weights {name} are not on this machine and are not published"]
    return weights, []


def _weight_files(weights: Weights, model: str, naming: Naming) -> tuple[dict[str, Content], list[str]]:
    """Return the weight files to publish, or a note with the reason why they are not published."""
    root, name = Path(model).expanduser(), public_model_name(model)
    paths = {name: root / name if name else root for name, _, _ in weights.files}
    names = {name: f"weights/{name or root.name}" for name in paths}
    if naming.licence is None:
        reason = "no license was given"
    elif weights.size > MAX_WEIGHTS or len(paths) > MAX_WEIGHT_FILES:
        reason = f"{weights.size:,} bytes in {len(paths)} files; at most {MAX_WEIGHTS:,} in {MAX_WEIGHT_FILES} are sent"
    elif any(path.is_symlink() for path in paths.values()):
        reason = "they include symbolic links"
    elif invalid := next((name for name in names.values() if path_problem(name)), None):
        reason = f"{invalid} is not a valid path in a release"
    else:
        return {names[name]: path for name, path in paths.items()}, []
    return {}, [f"the weights {name} are not published, only their hash: {reason}"]


def _address(began: Mapping[str, Any], model: str) -> str | None:
    """Return the address of a model if its name identifies one; never a path on this machine."""
    if is_path(model) or not traits_of(began.get("provider")).trains:
        return None
    if began.get("base_url") is None:
        return f"{began['provider']}:{model}"
    return f"hf:{model}" if _HUB_NAME.fullmatch(model) else None


def _effort_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effort of each training of a run, and their sum; `in all` is null if the run has ancestors.

    The effort of ancestors is in their releases, and `nip-run history` adds it up.
    """
    games = {row["iteration"]: row for row in group["games"]}
    steps = [
        {
            "iteration": model["iteration"],
            "model": model["model"],
            "from_model": model["from_model"],
            "method": model["method"],
            "dataset_sha256": model["dataset_sha256"],
            "examples": model["examples"],
            "trained_tokens": model["trained_tokens"],
            "games": [games[iteration] for iteration in model["trained_on"] if iteration in games],
        }
        for model in group["made"]
    ]
    iterations = _training_iterations(group)
    rows = [games.get(iteration, {}) for iteration in sorted(iterations)]
    total = {name: _sum([row.get(name) for row in rows]) for name in EFFORT}
    continued = _continued(group)
    return {"steps": steps, "continues": continued, "own": total, "in all": total if continued is None else None}


def _continued(group: Mapping[str, Any]) -> str | None:
    """Return the release, or else the run, that made the model at the start; None if it was not trained."""
    step = group["lineage"][-1] if group["lineage"] else None
    return None if step is None else step["release"] or step["run_id"]


def _describe(group: str, run_id: str, base: str, continues: str | None) -> str:
    """Describe a model in one line."""
    past = f"trained from {base}" if continues is None else f"continues {continues}, its base is {base}"
    return f"Model group {group} of {run_id}, {past}"


def _training_iterations(group: Mapping[str, Any]) -> set[int]:
    """Return the iterations whose games the last model or its predecessors were trained on."""
    models = {model_["iteration"]: model_ for model_ in group["made"]}
    model, iterations = group["made"][-1], set()
    while model is not None:
        iterations |= set(model["trained_on"])
        model = models.get(model["from_iteration"])
    return iterations


def _sum(values: list[Any]) -> Any:
    return None if None in values else round(sum(values), 9)


def _identity(manifest: Manifest, last: Mapping[str, Any], weights: Weights | None) -> dict[str, str]:
    hashes = {
        "run": manifest.identity,
        "training_data": last["dataset_sha256"],
        "weights": last["weights_sha256"] if weights is None else weights.sha256,
    }
    return {name: value for name, value in hashes.items() if value is not None and _SHA256.fullmatch(value)}


def _links(folder: RunFolder, manifest: Manifest, naming: Naming) -> Iterator[tuple[ReleaseLink, ...]]:
    """Yield the links of each model group."""
    parent = ReleaseLink(
        role="parent",
        release=naming.names.get(manifest.run_id) or str(run_reference(manifest.run_id, naming.owner, naming.version)),
        identity=manifest.identity,
    )
    for group in trained_facts(folder):
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
        else f"\nIt continues {code(continues)}, whose training is not counted here: `nip-run history` adds it up.\n"
    )
    address_line = "\nSet `base_url` in `model.yaml` to the address of your server.\n" if "base_url" in entry else ""
    return f"""# {release.reference}

A model that a training run made: {len(entry["lineage"])} trainings from {entry["base_model"]}. `model.yaml`
lists all of them, and `training.yaml` has the effort of each.

Effort of this run's own trainings: {totals}.
{continues_line}{weights_line}{address_line}
In a spec:

```yaml
models:
  mine: {{use: {release.reference.owner}/{release.name}@{release.version}}}
```
"""
