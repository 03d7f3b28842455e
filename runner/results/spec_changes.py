"""A plan and the spec that a run was saved with: in which keys they differ."""

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


def is_unchanged(folder: RunFolder, manifest: Manifest, plan: Plan) -> bool:
    """Whether a run's saved spec says what this one does; the content of its files is part of the run's identity.

    Where only the hash differs, an earlier version may have known fewer defaults or other names of keys: then the
    saved spec is read as this version reads it.
    """
    rejudged, source = plan.spec.rejudged, manifest.rejudge_of
    if rejudged is not None and source is not None and source.journal_sha256 != rejudged.journal_sha256:
        return False  # that run has grown, so that there may be more to judge
    if manifest.spec_sha256 == spec_hash(plan):
        return True
    try:
        saved = Plan(load_saved(folder.spec))
    except SpecError:
        return False
    ours, theirs = resolved_spec(plan), resolved_spec(saved)
    _by_content(ours, plan.spec.replayed)
    _by_content(theirs, manifest.replayed_sha256 or {})
    return ours == theirs


@dataclass(frozen=True)
class Resized:
    """How much a finished run has, and how much the same run has by another plan."""

    datapoints: int
    per_datapoint: int
    is_smaller: bool
    """Whether the plan leaves out something that the run has played."""
    is_regrouped: bool
    """Whether other datapoints belong together than when its intervals were counted."""
    stops_sooner: bool
    """Whether the plan may stop before all that the run has played, since it says otherwise when it is decided."""


def resized(folder: RunFolder, plan: Plan) -> Resized | None:
    """What a plan makes of a run that was finished with other datapoints, repeats or groups; None where none is saved.

    Those are no part of a run's identity, so that a run may grow.
    """
    try:
        saved = load_saved(folder.spec)
    except SpecError:
        return None
    have, shard = plan.points, plan.shard
    had = saved.dataset.datapoints if shard is None else shard.points(saved.dataset.datapoints)
    repeats = saved.experiment.rollouts.per_datapoint
    return Resized(
        len(had),
        repeats,
        is_smaller=plan.spec.experiment.rollouts.per_datapoint < repeats
        or not {point.id for point in had} <= {point.id for point in have},
        is_regrouped=saved.dataset.group_by != plan.spec.dataset.group_by,
        stops_sooner=_stops_sooner(saved, plan.spec),
    )


def _stops_sooner(saved: Spec, spec: Spec) -> bool:
    """Whether a finished run's rule has it lose games: where it stops depends on the rule, the datapoints, the groups.

    A narrower interval needs all the games that a wider one had, and more.
    """
    had, have = saved.experiment.until, spec.experiment.until
    if have is None:
        return False  # all is played
    if had is None or had.compare != have.compare:
        return True
    one, other = (
        ([(p.id, p.group) for p in one.dataset.datapoints], one.experiment.rollouts.per_datapoint)
        for one in (saved, spec)
    )
    return one != other or (had.width is not None and have.width is not None and have.width > had.width)


def changed_keys(folder: RunFolder, manifest: Manifest, plan: Plan, free: Sequence[str] = ()) -> list[str]:
    """The keys in which a saved spec is not this one, those that a run may change left out."""
    try:
        saved = Plan(load_saved(folder.spec))
    except SpecError as error:
        return [f"what was saved cannot be read ({error.problems[0]})"]
    ours, theirs = resolved_spec(plan), resolved_spec(saved)
    if ours["kind"] != theirs["kind"]:
        return ["kind"]
    ours["dataset"].update(dataset_selection(plan))
    theirs["dataset"].update(manifest.dataset_selection)
    _by_content(ours, plan.spec.replayed)
    _by_content(theirs, manifest.replayed_sha256 or {})
    ours, theirs = dict(_leaves(ours)), dict(_leaves(theirs))
    return sorted(
        key
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key) and not any(_is_below(key, name) for name in free)
    )


def spec_leaves(saved: dict[str, Any], replayed: Mapping[str, str], free: Sequence[str]) -> dict[str, Any]:
    """A resolved spec by its dotted keys, those below `free` left out, and what it replays by its content."""
    _by_content(saved, replayed)
    return {key: value for key, value in _leaves(saved) if not any(_is_below(key, name) for name in free)}


def _by_content(saved: dict[str, Any], replayed: Mapping[str, str]) -> None:
    """Put the hash of what a model group replays in the place of its path."""
    for group, settings in saved["models"].items():
        settings["run"] = replayed.get(group)


def _is_below(key: str, name: str) -> bool:
    """Whether a dotted key is this one, or one below it; `*` in it is any one name."""
    parts, wanted = key.split("."), name.split(".")
    return len(parts) >= len(wanted) and all(b in ("*", a) for a, b in zip(parts, wanted, strict=False))


def _leaves(data: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _leaves(value, f"{at}.{name}" if at else str(name))
    else:
        yield at, data
