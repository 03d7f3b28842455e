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
    """Return whether a run's saved spec equals the spec of a plan. Files that it names are compared by the identity.

    If the hashes differ, the two specs are compared as this version reads them, since an earlier version may have had
    fewer defaults or other names of keys.
    """
    rejudged, source = plan.spec.rejudged, manifest.rejudge_of
    if rejudged is not None and source is not None and source.journal_sha256 != rejudged.journal_sha256:
        return False  # the judged run has changed, so there may be more debates to judge
    if manifest.spec_sha256 == spec_hash(plan):
        return True
    try:
        saved = Plan(load_saved(folder.spec))
    except SpecError:
        return False
    current, recorded = resolved_spec(plan), resolved_spec(saved)
    _replace_replayed_paths(current, plan.spec.replayed_sha256)
    _replace_replayed_paths(recorded, manifest.replayed_sha256 or {})
    return current == recorded


@dataclass(frozen=True)
class SizeChange:
    """The size of a finished run, and its differences from a plan of the same run."""

    datapoints: int
    per_datapoint: int
    is_smaller: bool
    """Whether the plan lacks datapoints or repeats that the run has played."""
    is_regrouped: bool
    """Whether the plan groups datapoints differently than the run, whose intervals depend on the groups."""
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
    """Return whether the plan's stopping rule may stop before the last game of a finished run.

    The end of a run depends on the rule, the datapoints and the groups. A narrower interval never needs fewer games.
    """
    saved_rule, rule = saved.experiment.until, spec.experiment.until
    if rule is None:
        return False  # everything is played
    if saved_rule is None or saved_rule.compare != rule.compare:
        return True
    saved_games, games = (
        ([(point.id, point.group) for point in each.dataset.datapoints], each.experiment.rollouts.per_datapoint)
        for each in (saved, spec)
    )
    is_wider = saved_rule.width is not None and rule.width is not None and rule.width > saved_rule.width
    return is_wider or saved_games != games


def changed_keys(folder: RunFolder, manifest: Manifest, plan: Plan, free: Sequence[str] = ()) -> list[str]:
    """Return the keys whose values differ between a saved spec and a plan, except those below `free`."""
    try:
        saved = Plan(load_saved(folder.spec))
    except SpecError as error:
        return [f"the saved spec cannot be read ({error.problems[0]})"]
    current, recorded = resolved_spec(plan), resolved_spec(saved)
    if current["kind"] != recorded["kind"]:
        return ["kind"]
    current["dataset"].update(dataset_selection(plan))
    recorded["dataset"].update(manifest.dataset_selection)
    _replace_replayed_paths(current, plan.spec.replayed_sha256)
    _replace_replayed_paths(recorded, manifest.replayed_sha256 or {})
    current, recorded = dict(_flatten(current)), dict(_flatten(recorded))
    return sorted(
        key
        for key in current.keys() | recorded.keys()
        if current.get(key) != recorded.get(key) and not any(_is_below(key, name) for name in free)
    )


def flatten_spec(saved: dict[str, Any], replayed: Mapping[str, str], free: Sequence[str]) -> dict[str, Any]:
    """Return a resolved spec by dotted keys, without keys below `free`, and with hashes in place of replayed runs."""
    _replace_replayed_paths(saved, replayed)
    return {key: value for key, value in _flatten(saved) if not any(_is_below(key, name) for name in free)}


def _replace_replayed_paths(saved: dict[str, Any], replayed: Mapping[str, str]) -> None:
    """Replace the path of the run that a model group replays by the hash of its content."""
    for group, settings in saved["models"].items():
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
