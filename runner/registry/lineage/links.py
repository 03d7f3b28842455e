"""Collect the links from a run's release to other releases, and the facts about its models, from the run's folder.

`runner.registry.bundles` writes both into the manifest of a release. `runner.registry.lineage.nodes` collects the facts
of local runs with the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import open_to_read
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind, Reference
from runner.models.provider_traits import DEFAULT_PROVIDER
from runner.models.settings import FineTuneStep
from runner.registry.redaction.rules import MODEL_KEYS, choose_public_names, strings_in
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest
from runner.spec.model_sources import ModelSource
from runner.training.plan import part_run_id
from runner.training.stage_log import read_stages
from runner.training.stages import GroupResult, ModelSwitch, Stages
from runner.training.weights import is_path

_STEP_FIELDS = tuple(FineTuneStep.__dataclass_fields__)
EFFORT = ("datapoints", "rollouts", "completions", "prompt_tokens", "completion_tokens", "cost_usd")
"""The fields that measure training effort. Tokens and cost are those of the games, because trainers report none."""

MAX_NAME = 100
"""Maximum number of characters in the name of a release."""


def release_name(run_id: str) -> str:
    """Return the name of a run's release. If the run id is too long, its end is replaced by a hash."""
    name = re.sub(r"\.\.+", ".", re.sub(r"[^a-z0-9._-]", "-", run_id.lower())).strip("._-")
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 13]}-{tagged_hash('name', run_id)[:12]}"


def run_reference(run_id: str, owner: str, version: str = "1") -> Reference:
    """Return the reference of a run's release."""
    return Reference(Kind.RUN, owner, release_name(run_id), version)


def model_reference(run_id: str, group: str, owner: str, version: str = "1") -> Reference:
    """Return the reference of a model release: the last model that a training run made for a model group."""
    return Reference(Kind.MODEL, owner, release_name(f"{run_id}-{group}"), version)


def model_identity(provider: str | None, model: str | None, weights_sha256: str | None) -> str | None:
    """Return a model's identity: the hash of its weights, or its name at its provider; None if both are unknown."""
    if weights_sha256 is not None:
        return f"weights:{weights_sha256}"
    return None if model is None or is_path(model) else f"{provider or DEFAULT_PROVIDER}:{model}"


def build_links(
    folder: RunFolder, results: Results, owner: str, version: str = "1", *, names: Mapping[str, str] | None = None
) -> tuple[ReleaseLink, ...]:
    """Return links to the releases that a run used, came from or belongs to, and to the models that it made.

    A linked run has the reference in `names`, by its run id. Without one, its reference is made from its id, `owner`
    and `version`. Links to runs that are not in `results` have no reference.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    manifest = folder.manifest()
    groups = collect_public_group_facts(folder)
    return (
        *_family_links(folder, results, manifest, owner, version, names=names or {}),
        *_model_links(folder, manifest.components or {}, groups, owner, version),
        *build_manifest_links(manifest),
        *_component_links(manifest.components or {}),
    )


def _family_links(
    folder: RunFolder, results: Results, manifest: Manifest, owner: str, version: str, *, names: Mapping[str, str]
) -> Iterator[ReleaseLink]:
    """Yield links to a run's parts, its parent and the run that it judges, all in the same results folder."""
    for part in results.parts_of(folder.run_id) if manifest.is_training_run else ():
        yield ReleaseLink(
            role="part",
            release=str(run_reference(part.run_id, owner, version)),
            identity=part.manifest().identity,
        )
    judged_run_id = None if manifest.rejudge_of is None else manifest.rejudge_of.run_id
    for role, run_id in (("parent", manifest.parent_run_id), ("judges", judged_run_id)):
        if run_id is None:
            continue
        run = results.run(run_id)
        is_present = run.manifest_path.is_file()
        reference = names.get(run_id) or str(run_reference(run_id, owner, version))
        yield ReleaseLink(
            role=role,
            release=reference if is_present else None,
            identity=run.manifest().identity if is_present else None,
        )


def _model_links(
    folder: RunFolder, components: Mapping[str, Any], groups: Iterable[Mapping[str, Any]], owner: str, version: str
) -> Iterator[ReleaseLink]:
    """Yield links to the models that a run started from (`input`) and made (`output`)."""
    for group in groups:
        step = group["lineage"][-1] if group["lineage"] else {}
        source = components.get(f"models.{group['group']}") or {
            "release": step.get("release"),
            "sha256": step.get("release_sha256"),
        }
        if step or source["release"]:
            identity = model_identity(group["provider"], group["model"], group["weights_sha256"])
            yield ReleaseLink(role="input", release=source["release"], sha256=source["sha256"], identity=identity)
        if group["made"]:
            last_model = group["made"][-1]
            yield ReleaseLink(
                role="output",
                release=str(model_reference(folder.run_id, group["group"], owner, version)),
                identity=model_identity(group["provider"], last_model["model"], last_model["weights_sha256"]),
            )


def build_manifest_links(manifest: Manifest) -> tuple[ReleaseLink, ...]:
    """Return links to the release that a run reproduces, and to the release that it is based on (`child_of`)."""
    sources = {"reproduces": manifest.reproduces, "child_of": manifest.got_from}
    return tuple(
        ReleaseLink(role=role, release=link.get("release"), sha256=link.get("sha256"), identity=link.get("identity"))
        for role, link in sources.items()
        if link is not None
    )


_ROLES = {"agents": "agent", "training.trainers": "trainer"}
"""The role of the links to the components of a section."""


def _component_links(components: Mapping[str, Any]) -> Iterator[ReleaseLink]:
    """Yield links to components. Their keys say where the spec names them, such as `extends:0` or `agents.verifier`.

    Models are omitted, because `_model_links` yields their links.
    """
    for key, use in sorted(components.items()):
        section, _, name = key.rpartition(".")
        if section == "models":
            continue
        role = f"{_ROLES[section]}:{name}" if section in _ROLES else key.partition(":")[0]
        yield ReleaseLink(role=role, release=use.get("release"), sha256=use.get("sha256"), identity=use.get("identity"))


def collect_public_group_facts(folder: RunFolder, source: ModelSource | None = None) -> list[dict[str, Any]]:
    """Return the result of `collect_training_facts`, with a public name for each model whose name is a path.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    facts = collect_training_facts(folder, source)
    published_names = choose_public_names(name for key, name in strings_in(facts) if key in MODEL_KEYS)
    public_facts: list[dict[str, Any]] = _rename_models(facts, "", published_names)
    return public_facts


def _rename_models(value: Any, key: str, published_names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _rename_models(item, name, published_names) for name, item in value.items()}
    if isinstance(value, list):
        return [_rename_models(item, key, published_names) for item in value]
    return published_names.get(value, value) if key in MODEL_KEYS and isinstance(value, str) else value


def collect_training_facts(folder: RunFolder, source: ModelSource | None = None) -> list[dict[str, Any]]:
    """Return a fact for each model group of a run, as JSON.

    A fact describes the group's start model with its past trainings (`lineage`), the models that the run made (`made`),
    and the effort of each iteration's games (`games`). `made` has an entry for each iteration: `from_iteration` is the
    iteration whose model this training started from (null for the start model), and `trained_on` lists the iterations
    whose games were used. `source` is the saved spec, if the caller has read it.

    Raises:
        RunError: a file of the run is missing or damaged.
    """
    source = source or ModelSource(folder.path)
    stages = read_stages(folder.path, folder.identity()) if source.is_training_run else Stages([])
    games = _games_of_iterations(folder, stages)
    settings = source.spec.get("agents")
    agents = {
        group: sorted(name for name, agent in settings.items() if agent.get("model") == group)
        for group in source.groups
        if isinstance(settings, dict)
    }
    return [
        _group_facts(source, stages, group, agents[group], games)
        for group in sorted(source.groups)
        if agents.get(group)
    ]


def _group_facts(
    source: ModelSource, stages: Stages, group: str, agents: list[str], games: list[dict[str, Any]]
) -> dict[str, Any]:
    settings = source.groups[group]
    provider, model = settings.get("provider"), settings.get("model")
    lineage = [complete_step(step) for step in settings.get("lineage") or []]
    models = _list_output_models(source, stages, group)
    base = settings.get("base_model")
    return {
        "group": group,
        "agents": agents,
        "provider": provider,
        "model": model,
        "base_model": model if base is None else base,
        "weights_sha256": lineage[-1]["weights_sha256"] if lineage else None,  # as recorded, not computed
        "lineage": lineage,
        "made": models,
        "games": games if models else [],
    }


def complete_step(step: Mapping[str, object]) -> dict[str, Any]:
    """Return one step of a lineage with all fields; a field that was not recorded is None."""
    return {name: str(step.get(name)) if name in MODEL_KEYS else step.get(name) for name in _STEP_FIELDS}


def _list_output_models(source: ModelSource, stages: Stages, group: str) -> list[dict[str, Any]]:
    """Return the models that a training run made for a model group, sorted by iteration."""
    training = source.spec.get("training") or {}
    models: list[dict[str, Any]] = []
    iteration_of: dict[str, int] = {}
    for record in sorted(stages.find_all(ModelSwitch), key=lambda record: record.iteration):
        outcome = record.outcomes.get(group) or {}
        if outcome.get("outcome") != GroupResult.TRAINED:
            continue
        step, iteration = record.models[group]["lineage"][-1], record.iteration
        models.append(
            {
                **complete_step(step),
                "iteration": iteration,
                "from_iteration": iteration_of.get(step["from_model"]),
                "trained_on": [*range(iteration + 1)] if training.get("on_all_previous_rollouts") else [iteration],
                "examples": outcome.get("examples"),
                "trained_tokens": outcome.get("trained_tokens"),
            }
        )
        iteration_of[step["model"]] = iteration
    return models


def _games_of_iterations(folder: RunFolder, stages: Stages) -> list[dict[str, object]]:
    """Return the effort of each iteration's games; without numbers if the run of the games is missing."""
    return [
        {
            "iteration": record.iteration,
            **_effort(folder.sibling(part_run_id(folder.run_id, record.iteration, "training"))),
        }
        for record in stages.find_all(ModelSwitch)
    ]


def _effort(part: RunFolder) -> dict[str, object]:
    if not part.manifest_path.is_file():
        return {"run_id": part.run_id, **dict.fromkeys(EFFORT)}
    manifest = part.manifest()
    counts = {name: getattr(manifest, name) for name in EFFORT if name != "datapoints"}
    return {"run_id": part.run_id, "datapoints": _count_datapoints(part), **counts}


def _count_datapoints(part: RunFolder) -> int | None:
    try:
        with open_to_read(part.path / "inputs" / "dataset.jsonl") as file:
            return sum(1 for line in file if line.strip())
    except OSError:
        return None
