"""A plan and the spec that a run was saved with: in which keys they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.errors import SpecError
from runner.results.folder import RunFolder
from runner.results.inputs import dataset_selection, resolved_spec, spec_hash
from runner.results.manifest import Manifest
from runner.rollouts.plan import Plan
from runner.spec.load import load_saved


def is_unchanged(folder: RunFolder, manifest: Manifest, plan: Plan) -> bool:
    """Whether a run's saved spec says what this one does; the content of its files is part of the run's identity.

    Where only the hash differs, an earlier version may have known fewer defaults or other names of keys: then the
    saved spec is read as this version reads it.
    """
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
