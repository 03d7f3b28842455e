"""Read the saved spec of a run as data, without the checks and the time of `load_saved`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.base.storage.safe_files import read_bounded
from runner.documents.plain_values import MAX_DEPTH
from runner.results.folder import RunFolder

MAX_SPEC = 4 << 20
"""The maximum size in bytes of a resolved spec, which is longer than the written one."""


def saved_value(folder: RunFolder, *names: str) -> Any:
    """Return the value at a path of keys in a run's saved spec, or None."""
    return look_up(read_saved_spec(folder), *names)


def read_saved_spec(folder: RunFolder) -> dict[str, Any]:
    """Return a run's saved spec as data, without the checks and the time of `load_saved`."""
    import yaml

    raw = read_bounded(folder.spec, MAX_SPEC)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = deepest = 0
    for event in yaml.parse(raw, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        deepest = max(deepest, depth)
    # libyaml crashes on deeply nested YAML, while the parser in Python raises an error.
    spec: dict[str, Any] = yaml.load(raw, Loader=loader if deepest <= MAX_DEPTH else yaml.SafeLoader)  # noqa: S506
    return spec


def look_up(data: Mapping[str, object], *names: str) -> Any:
    """Return the value at a path of keys, or None."""
    value: Any = data
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
