"""What was recorded of a run and what follows from its journal today, and what an earlier version could not know.

A difference is wrong where this version recorded it. What an earlier one recorded, which had fewer numbers and other
intervals, is told and is no fault, but for what it counted as this one does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Self

from runner.base.storage.format_versions import RUN_FOLDER
from runner.base.storage.strict_json import is_same
from runner.base.text import shortened
from runner.results.manifest import Manifest
from runner.version import __version__

MAX_TOLD = 20
"""So many differences of one kind are told by name; of the others how many there are."""

MOST_SHOWN = 60
"""Characters of a value that is no number."""

_COUNTED_AS_EVER = re.compile(r"accuracy\w*|decided|decision|precision|recall|episode_length|rounds_played|reward")
_FIELDS_AS_EVER = ("value", "stderr", "n", "clusters")
"""What 0.1.0 counted as this version does: there a difference is one."""

_SINCE = ("methods", "original_statistics", "variance", "vote_curve")
"""What metrics.json has beside the metrics, and 0.1.0 told otherwise."""


class CheckNote(str):
    """What a check has to say that is no failure."""

    __slots__ = ()


class Otherwise(CheckNote):
    """What another version told otherwise, or did not compute: of that it cannot be said that it follows."""

    __slots__ = ()


class More(str):
    """A line for differences that are not told by name, and how many they are."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, line: str, number: int) -> Self:
        self = super().__new__(cls, line)
        self.number = number
        return self


def how_many(lines: Iterable[str]) -> int:
    """How many differences lines tell of."""
    return sum(line.number if isinstance(line, More) else 1 for line in lines)


def some_of(lines: Iterable[str], what: str) -> Iterator[str]:
    """Differences by name, and how many more there are."""
    more = 0
    for place, line in enumerate(lines):
        if place < MAX_TOLD:
            yield line
        else:
            more += 1
    if more:
        yield More(f"and {more:,} more {what}", more)


@dataclass(frozen=True)
class Differences:
    """What of metrics.json differs."""

    wrong: tuple[str, ...]
    otherwise: tuple[str, ...] = ()
    """What an earlier version told otherwise, or did not compute, which is no fault of the run."""


def by_earlier(manifest: Manifest) -> bool:
    """Whether 0.1.0 recorded what stands in a run's folder: what every later version writes says its format."""
    return manifest.format < RUN_FOLDER and manifest.version.startswith("0.1.")


def by_other(manifest: Manifest) -> bool:
    """Whether another version than this one says that it recorded what stands in a run's folder."""
    return by_earlier(manifest) or manifest.version != __version__


def recomputed_by(manifest: Manifest) -> str:
    """With which version it was recomputed, and which one recorded it."""
    played = f"recorded by an earlier version ({manifest.version})"
    return f"recomputed with {__version__}, {played if by_earlier(manifest) else f'played with {manifest.version}'}"


def different_counts(manifest: Manifest, again: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What of a manifest is not what follows: which fact, as recorded, and as it follows. 0.1.0 left some out."""
    for name, value in again.items():
        recorded = getattr(manifest, name)
        unknown_then = recorded is None and by_earlier(manifest)
        if not unknown_then and not is_same(recorded, value):
            yield name, recorded, value


class _Kind(Enum):
    CHANGED = auto()
    """Recorded, and another value follows."""
    BASELESS = auto()
    """Recorded, and follows from nothing."""
    NOT_RECORDED = auto()
    REORDERED = auto()
    MALFORMED = auto()
    """It can be read in two ways, or in none: whatever version wrote it."""


@dataclass(frozen=True)
class _Difference:
    kind: _Kind
    line: str
    what: str = "metrics.json"
    """The metric, with its agent, or the key of metrics.json."""
    metric: str | None = None
    field: str = ""

    @property
    def order(self) -> int:
        if self.kind != _Kind.CHANGED:
            return 3
        return (self.field != "value") + (self.field not in _FIELDS_AS_EVER)

    @property
    def is_as_ever(self) -> bool:
        """Whether 0.1.0 counted it as this version does."""
        if self.metric is None:
            return self.kind == _Kind.CHANGED and self.what not in _SINCE
        counted = _COUNTED_AS_EVER.fullmatch(self.metric) is not None
        return counted and (self.kind == _Kind.BASELESS or self.field in _FIELDS_AS_EVER)


def different_metrics(recorded: Mapping[str, Any], again: Mapping[str, Any], manifest: Manifest) -> Differences:
    """Metrics and other numbers that differ, by name, with both values; those that differ in value first."""
    earlier, other = by_earlier(manifest), by_other(manifest)
    wrong: list[str] = []
    otherwise: list[str] = []
    other_intervals: list[str] = []
    not_recorded: list[str] = []
    for one in sorted(_compared(recorded, again), key=lambda one: one.order):
        if one.kind == _Kind.MALFORMED:
            wrong.append(one.line)
        elif one.kind == _Kind.NOT_RECORDED:
            not_recorded.append(one.what)
        elif one.kind == _Kind.REORDERED:
            (otherwise if other else wrong).append(one.line)
        elif not earlier or one.is_as_ever:
            wrong.append(one.line)
        elif one.kind == _Kind.CHANGED and one.field not in _FIELDS_AS_EVER:
            other_intervals.append(one.what)
        else:
            otherwise.append(one.line)
    if other_intervals:
        otherwise.append(f"other intervals, or none now: {', '.join(dict.fromkeys(other_intervals))}")
    if not_recorded:
        names = ", ".join(dict.fromkeys(not_recorded))
        (otherwise if other else wrong).append(f"{'not computed then' if other else 'not recorded'}: {names}")
    return Differences(tuple(wrong), tuple(otherwise))


def _compared(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[_Difference]:
    """All in which a metrics.json is not what follows."""
    for name in sorted((recorded.keys() | again.keys()) - {"run_id"}):
        if name == "metrics" and name in recorded and name in again:
            yield from _compared_metrics(recorded[name], again[name])
        elif name not in recorded:
            yield _Difference(_Kind.NOT_RECORDED, "", name)
        elif not is_same(recorded[name], again.get(name)):
            line = f"metrics.json, {name}: {_both(recorded[name], again.get(name))}"
            yield _Difference(_Kind.CHANGED, line, name)


_Row = Mapping[str, Any]
_Key = tuple[str | None, str]
"""The agent that a metric is of, None: the game; and its name."""


def _compared_metrics(recorded: Any, again: Any) -> Iterator[_Difference]:
    found, twice = _by_key(recorded)
    expected, _ = _by_key(again)
    for line in dict.fromkeys(twice):
        yield _Difference(_Kind.MALFORMED, line)
    for key, row in expected.items():
        if key in found:
            yield from _compared_rows(key, found[key], row)
        else:
            yield _Difference(_Kind.NOT_RECORDED, "", _name(key), key[1])
    for key in found.keys() - expected.keys():
        yield _Difference(
            _Kind.BASELESS, f"metric {_name(key)}: recorded, and follows from nothing", _name(key), key[1]
        )
    if [key for key in found if key in expected] != [key for key in expected if key in found]:
        yield _Difference(_Kind.REORDERED, "metrics.json: its metrics are in another order")


def _compared_rows(key: _Key, recorded: _Row, again: _Row) -> Iterator[_Difference]:
    for field in dict.fromkeys((*recorded, *again)):
        if field not in recorded:
            yield _Difference(_Kind.NOT_RECORDED, "", _name(key), key[1], field)
        elif not is_same(recorded[field], again.get(field)):
            line = f"metric {_name(key)}, {field}: {_both(recorded[field], again.get(field))}"
            yield _Difference(_Kind.CHANGED, line, _name(key), key[1], field)


def _by_key(rows: Any) -> tuple[dict[_Key, _Row], list[str]]:
    """Metrics by agent and name, the first of each; and what is wrong with their list, whatever follows."""
    if not isinstance(rows, list):
        return {}, ["metrics.json: its metrics are no list"]
    found: dict[_Key, _Row] = {}
    wrong: list[str] = []
    for row in rows:
        agent, metric = (row.get("agent"), row.get("metric")) if isinstance(row, Mapping) else (None, None)
        if not isinstance(metric, str) or not isinstance(agent, str | None):
            wrong.append("metrics.json: one of its metrics has no name")
        elif (agent, metric) in found:
            wrong.append(f"metric {_name((agent, metric))}: it stands there twice")
        else:
            found[agent, metric] = row
    return found, wrong


def _name(key: _Key) -> str:
    agent, metric = key
    return shortened(metric if agent is None else f"{metric} of {agent}", MOST_SHOWN)


def _both(recorded: Any, again: Any) -> str:
    ours, theirs = shown_both(recorded, again)
    return f"recorded {ours}, recomputed {theirs}"


def shown_both(one: Any, other: Any) -> Sequence[str]:
    """Two values that differ, numbers with 6 digits; with all of theirs where 6 show no difference."""
    if isinstance(one, (dict, list)) and type(one) is type(other):
        return "one value", "another"
    short = [_shown(value, _six) for value in (one, other)]
    return short if short[0] != short[1] else [_shown(value, repr) for value in (one, other)]


def _six(value: float) -> str:
    return f"{value:.6g}"


def _shown(value: Any, number: Callable[[float], str]) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        return str(value)
    if isinstance(value, (dict, list)):
        return "one" if value else "none"
    return "none" if value is None else shortened(json.dumps(value, default=str), MOST_SHOWN)
