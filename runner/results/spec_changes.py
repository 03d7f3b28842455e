"""Differences between a plan and the spec that was saved with a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.errors import SpecError
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.provenance.input_files import dataset_selection, resolved_spec, spec_hash
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec, load_saved


def has_same_spec(folder: RunFolder, manifest: Manifest, plan: Plan) -> bool:
    """Return whether a run's saved spec equals the spec of a plan. The files that a spec names are not compared.

    If the hashes differ, the two specs are compared as this version reads them, since an earlier version may have had
    fewer defaults or other names of keys.
    """
    rejudged, source = plan.spec.rejudged, manifest.rejudge_of
    if rejudged is not None and source is not None and source.journal_sha256 != rejudged.journal_sha256:
        return False  # the judged run has changed, so there may be more debates to judge
    if (manifest.plugins or {}) != plan.spec.plugins:
        return False  # metrics of another version of a plugin are computed again
    if manifest.spec_sha256 == spec_hash(plan):
        return True
    try:
        current, saved = _resolved_specs(folder, manifest, plan)
    except SpecError:
        return False
    return current == saved


def _resolved_specs(folder: RunFolder, manifest: Manifest, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec of a plan and the saved spec of a run, with hashes instead of the paths of replayed runs.

    Raises:
        SpecError: the saved spec cannot be read.
    """
    current, saved = resolved_spec(plan), resolved_spec(Plan(load_saved(folder.spec)))
    _replace_replayed_paths(current, plan.spec.replayed_sha256)
    _replace_replayed_paths(saved, manifest.replayed_sha256 or {})
    return current, saved


@dataclass(frozen=True)
class SizeChange:
    """The size of a finished run, and how a plan of the same run differs."""

    datapoints: int
    per_datapoint: int
    is_smaller: bool
    """Whether the plan lacks datapoints or repeats that the run has played."""
    is_regrouped: bool
    """Whether the plan groups datapoints differently, which changes the intervals."""
    stops_sooner: bool
    """Whether the plan's stopping rule may stop before the last game that the run has played."""


def compare_sizes(folder: RunFolder, plan: Plan) -> SizeChange | None:
    """Return the differences in size between a finished run and a plan; None if the saved spec cannot be read.

    Datapoints, repeats and groups are not part of a run's identity, so that a run can be extended.
    """
    try:
        saved = load_saved(folder.spec)
    except SpecError:
        return None
    points, shard = plan.points, plan.shard
    saved_points = saved.dataset.datapoints if shard is None else shard.points(saved.dataset.datapoints)
    repeats = saved.experiment.rollouts.per_datapoint
    return SizeChange(
        len(saved_points),
        repeats,
        is_smaller=plan.spec.experiment.rollouts.per_datapoint < repeats
        or not {point.id for point in saved_points} <= {point.id for point in points},
        is_regrouped=saved.dataset.group_by != plan.spec.dataset.group_by,
        stops_sooner=_stops_sooner(saved, plan.spec),
    )


def _stops_sooner(saved: Spec, spec: Spec) -> bool:
    """Return whether the stopping rule of a new spec may stop before the last game of a run with the saved spec.

    The end of a run depends on the rule, the datapoints and the groups. A narrower interval never needs fewer games.
    """
    saved_rule, rule = saved.experiment.until, spec.experiment.until
    if rule is None:
        return False  # without a rule, all games are played
    if saved_rule is None or saved_rule.compare != rule.compare:
        return True
    is_wider = saved_rule.width is not None and rule.width is not None and rule.width > saved_rule.width
    return is_wider or _planned_games(saved) != _planned_games(spec)


def _planned_games(spec: Spec) -> tuple[list[tuple[str, str]], int]:
    """Return the datapoints of a spec with their groups, and the number of games about each."""
    return [(point.id, point.group) for point in spec.dataset.datapoints], spec.experiment.rollouts.per_datapoint


def changed_keys(folder: RunFolder, manifest: Manifest, plan: Plan, ignored_keys: Sequence[str] = ()) -> list[str]:
    """Return the dotted keys whose values differ between a saved spec and a plan. `ignored_keys` ignores keys below."""
    try:
        current, saved = _resolved_specs(folder, manifest, plan)
    except SpecError as error:
        return [f"the saved spec cannot be read ({error.problems[0]})"]
    if current["kind"] != saved["kind"]:
        return ["kind"]
    current["dataset"].update(dataset_selection(plan))
    saved["dataset"].update(manifest.dataset_selection)
    current, saved = dict(_flatten(current)), dict(_flatten(saved))
    return sorted(
        key
        for key in current.keys() | saved.keys()
        if current.get(key) != saved.get(key) and not any(_is_below(key, name) for name in ignored_keys)
    )


def flatten_spec(spec: dict[str, Any], replayed: Mapping[str, str], ignored_keys: Sequence[str]) -> dict[str, object]:
    """Return the values of a resolved spec by dotted key, without `ignored_keys` and the keys below them.

    The paths of replayed runs are replaced by `replayed`, the hash for each model group.
    """
    _replace_replayed_paths(spec, replayed)
    return {key: value for key, value in _flatten(spec) if not any(_is_below(key, name) for name in ignored_keys)}


def _replace_replayed_paths(spec: dict[str, Any], replayed: Mapping[str, str]) -> None:
    """Replace the path of the run that a model group replays by the hash of its content."""
    for group, settings in spec["models"].items():
        settings["run"] = replayed.get(group)


def _is_below(key: str, name: str) -> bool:
    """Return whether a dotted key equals `name` or is below it; `*` in `name` matches any part."""
    parts, pattern = key.split("."), name.split(".")
    return len(parts) >= len(pattern) and all(p in ("*", part) for part, p in zip(parts, pattern, strict=False))


def _flatten(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _flatten(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, data
