"""Compare a run's recorded metrics and counts with those recomputed from its journal, for `verify` and `reproduce`.

A difference is an error if this version of nip-run recorded the number. If another version recorded it, the difference
is only a note, because that version may have computed the number differently. If version 0.1.0 recorded it, the
difference is an error only if 0.1.0 computed the number in the same way as this version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from runner.base.storage.format_versions import RUN_FOLDER
from runner.base.storage.strict_json import is_same
from runner.base.text import shortened
from runner.results.manifest import Manifest
from runner.version import __version__

MAX_SHOWN = 60
"""Maximum number of characters that a message shows of a name, or of a value that is not a number."""

_UNCHANGED_METRICS = re.compile(r"accuracy\w*|decided|decision|precision|recall|episode_length|rounds_played|reward")
"""Matches metrics whose `_UNCHANGED_FIELDS` 0.1.0 computed in the same way as this version."""
_UNCHANGED_FIELDS = ("value", "stderr", "n", "clusters")

_CHANGED_KEYS = ("methods", "original_statistics", "variance", "vote_curve")
"""Keys of metrics.json that 0.1.0 wrote differently."""


@dataclass(frozen=True)
class MetricDifferences:
    """The differences between a recorded and a recomputed metrics.json."""

    errors: tuple[str, ...]
    version_notes: tuple[str, ...] = ()
    """Differences that are only notes, because another version of nip-run recorded the run."""


def is_from_0_1(manifest: Manifest) -> bool:
    """Return whether nip-run 0.1 recorded a run. Later versions write the key `format` into manifests."""
    return manifest.format < RUN_FOLDER and manifest.version.startswith("0.1.")


def is_from_other_version(manifest: Manifest) -> bool:
    """Return whether a version other than this one recorded a run."""
    return is_from_0_1(manifest) or manifest.version != __version__


def describe_versions(manifest: Manifest) -> str:
    """Return a text with the version that recomputes a run and the version that recorded the run."""
    recorded = f"recorded by an earlier version ({manifest.version})"
    return f"recomputed with {__version__}, {recorded if is_from_0_1(manifest) else f'played with {manifest.version}'}"


def compare_counts(manifest: Manifest, recomputed: Mapping[str, object]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, recorded value and recomputed value of each count that differs.

    Counts that 0.1.0 did not record are skipped.
    """
    for name, value in recomputed.items():
        recorded = getattr(manifest, name)
        is_missing = recorded is None and is_from_0_1(manifest)
        if not is_missing and not is_same(recorded, value):
            yield name, recorded, value


class _Kind(Enum):
    CHANGED = auto()
    """Recorded with another value."""
    NOT_COMPUTED = auto()
    """Recorded, but not recomputed."""
    NOT_RECORDED = auto()
    """Recomputed, but not recorded."""
    REORDERED = auto()
    MALFORMED = auto()
    """Cannot be read, or is ambiguous."""


@dataclass(frozen=True)
class _Difference:
    kind: _Kind
    line: str
    """The message; empty if differences of this kind share a message with all names."""
    name: str = "metrics.json"
    """The metric with its agent, or the key of metrics.json."""
    metric: str | None = None
    field: str = ""

    @property
    def sort_key(self) -> int:
        """The place of the difference in a list: first values of metrics, then fields as in 0.1.0, then others."""
        if self.kind != _Kind.CHANGED:
            return 3
        return (self.field != "value") + (self.field not in _UNCHANGED_FIELDS)

    @property
    def is_error_in_0_1(self) -> bool:
        """Whether the difference is an error if 0.1.0 recorded it: 0.1.0 computed the number as this version does."""
        if self.metric is None:
            return self.kind == _Kind.CHANGED and self.name not in _CHANGED_KEYS
        is_unchanged = _UNCHANGED_METRICS.fullmatch(self.metric) is not None
        return is_unchanged and (self.kind == _Kind.NOT_COMPUTED or self.field in _UNCHANGED_FIELDS)


def compare_metrics(
    recorded: Mapping[str, object], recomputed: Mapping[str, object], manifest: Manifest
) -> MetricDifferences:
    """Return the differences between a recorded and a recomputed metrics.json. Differences in values come first."""
    is_old, is_other = is_from_0_1(manifest), is_from_other_version(manifest)
    errors: list[str] = []
    notes: list[str] = []
    changed_intervals: list[str] = []
    not_recorded: list[str] = []
    for difference in sorted(_compare(recorded, recomputed), key=lambda item: item.sort_key):
        if difference.kind == _Kind.MALFORMED:
            errors.append(difference.line)
        elif difference.kind == _Kind.NOT_RECORDED:
            not_recorded.append(difference.name)
        elif difference.kind == _Kind.REORDERED:
            (notes if is_other else errors).append(difference.line)
        elif not is_old or difference.is_error_in_0_1:
            errors.append(difference.line)
        elif difference.kind == _Kind.CHANGED and difference.field not in _UNCHANGED_FIELDS:
            changed_intervals.append(difference.name)
        else:
            notes.append(difference.line)
    if changed_intervals:
        notes.append(f"different intervals, or none now: {_join_unique(changed_intervals)}")
    if not_recorded:
        reason = "not computed by that version" if is_other else "not recorded"
        (notes if is_other else errors).append(f"{reason}: {_join_unique(not_recorded)}")
    return MetricDifferences(tuple(errors), tuple(notes))


def _join_unique(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _compare(recorded: Mapping[str, object], recomputed: Mapping[str, object]) -> Iterator[_Difference]:
    for name in sorted((recorded.keys() | recomputed.keys()) - {"run_id"}):
        if name == "metrics" and name in recorded and name in recomputed:
            yield from _compare_rows(recorded[name], recomputed[name])
        elif name not in recorded:
            yield _Difference(_Kind.NOT_RECORDED, "", name)
        elif not is_same(recorded[name], recomputed.get(name)):
            line = f"metrics.json, {name}: {_describe_both(recorded[name], recomputed.get(name))}"
            yield _Difference(_Kind.CHANGED, line, name)


_Row = Mapping[str, Any]
_Key = tuple[str | None, str]
"""The agent of a metric (None if it is a metric of the game) and the metric's name."""


def _compare_rows(recorded: Any, recomputed: Any) -> Iterator[_Difference]:
    recorded_rows, problems = _rows_by_key(recorded)
    recomputed_rows, _ = _rows_by_key(recomputed)
    for line in dict.fromkeys(problems):
        yield _Difference(_Kind.MALFORMED, line)
    for key, row in recomputed_rows.items():
        if key in recorded_rows:
            yield from _compare_fields(key, recorded_rows[key], row)
        else:
            yield _Difference(_Kind.NOT_RECORDED, "", _metric_name(key), key[1])
    for key in recorded_rows.keys() - recomputed_rows.keys():
        line = f"metric {_metric_name(key)}: recorded, but the journal gives no such metric"
        yield _Difference(_Kind.NOT_COMPUTED, line, _metric_name(key), key[1])
    shared = recorded_rows.keys() & recomputed_rows.keys()
    if [key for key in recorded_rows if key in shared] != [key for key in recomputed_rows if key in shared]:
        yield _Difference(_Kind.REORDERED, "metrics.json: the metrics are in a different order")


def _compare_fields(key: _Key, recorded: _Row, recomputed: _Row) -> Iterator[_Difference]:
    for field in dict.fromkeys((*recorded, *recomputed)):
        if field not in recorded:
            yield _Difference(_Kind.NOT_RECORDED, "", _metric_name(key), key[1], field)
        elif not is_same(recorded[field], recomputed.get(field)):
            line = f"metric {_metric_name(key)}, {field}: {_describe_both(recorded[field], recomputed.get(field))}"
            yield _Difference(_Kind.CHANGED, line, _metric_name(key), key[1], field)


def _rows_by_key(rows: Any) -> tuple[dict[_Key, _Row], list[str]]:
    """Return the first row of each metric, and messages about malformed and repeated rows."""
    if not isinstance(rows, list):
        return {}, ["metrics.json: `metrics` is not a list"]
    by_key: dict[_Key, _Row] = {}
    problems: list[str] = []
    for row in rows:
        agent, metric = (row.get("agent"), row.get("metric")) if isinstance(row, Mapping) else (None, None)
        if not isinstance(metric, str) or not isinstance(agent, str | None):
            problems.append("metrics.json: a metric has no name")
        elif (agent, metric) in by_key:
            problems.append(f"metric {_metric_name((agent, metric))}: recorded twice")
        else:
            by_key[agent, metric] = row
    return by_key, problems


def _metric_name(key: _Key) -> str:
    agent, metric = key
    return shortened(metric if agent is None else f"{metric} of {agent}", MAX_SHOWN)


def _describe_both(recorded: Any, recomputed: Any) -> str:
    first, second = format_both(recorded, recomputed)
    return f"recorded {first}, recomputed {second}"


def format_both(first: Any, second: Any) -> Sequence[str]:
    """Return two different values as texts, with 6 digits, or with all digits if they differ only in later ones."""
    if isinstance(first, (dict, list)) and type(first) is type(second):
        return "one value", "another"
    short = [_format(value, "{:.6g}".format) for value in (first, second)]
    return short if short[0] != short[1] else [_format(value, repr) for value in (first, second)]


def _format(value: Any, format_float: Callable[[float], str]) -> str:
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        return str(value)
    if isinstance(value, (dict, list)):
        return "one" if value else "none"
    return "none" if value is None else shortened(json.dumps(value, default=str), MAX_SHOWN)
