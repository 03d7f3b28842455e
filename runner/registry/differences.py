"""What was recorded of a run and what follows from its journal today, and what an earlier version could not know.

A difference is wrong where this version recorded it. What an earlier one recorded, which had fewer numbers and other
intervals, is told and is no fault, but for what it counted as this one does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from runner.results.manifest import Manifest
from runner.storage.formats import RUN_FOLDER
from runner.text import shortened
from runner.version import __version__

MAX_TOLD = 20
"""So many differences of one kind are told by name; of the others how many there are."""

MOST_SHOWN = 60
"""Characters of a value that is no number."""

_COUNTED_AS_EVER = re.compile(
    r"(?:accuracy\w*|decided|decision|precision|recall|episode_length|rounds_played|reward)(?: of \S+)?"
)
_FIELDS_AS_EVER = ("value", "stderr", "n", "clusters")
"""What 0.1.0 counted as this version does: there a difference is one."""

_SINCE = ("methods", "original_statistics", "variance", "vote_curve")
"""What metrics.json has beside the metrics, and 0.1.0 told otherwise."""


class Note(str):
    """What a check has to say that is no failure."""

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
    """Whether what stands in a run's folder was recorded by an earlier version, whatever that calls itself."""
    return manifest.format < RUN_FOLDER


def recomputed_by(manifest: Manifest) -> str:
    """With which version it was recomputed, and which one recorded it."""
    played = f"recorded by an earlier version ({manifest.version})"
    return f"recomputed with {__version__}, {played if by_earlier(manifest) else f'played with {manifest.version}'}"


@dataclass(frozen=True)
class _Difference:
    what: str
    field: str
    recorded: Any
    recomputed: Any

    @property
    def order(self) -> int:
        return (self.field != "value") + (self.field not in _FIELDS_AS_EVER)

    @property
    def as_ever(self) -> bool:
        name = self.what.removeprefix("metric ")
        if name == self.what:
            return self.field not in _SINCE
        return self.field in _FIELDS_AS_EVER and _COUNTED_AS_EVER.fullmatch(name) is not None

    def __str__(self) -> str:
        ours, theirs = shown_both(self.recorded, self.recomputed)
        return f"{self.what}, {self.field}: recorded {ours}, recomputed {theirs}"


def different_metrics(recorded: Mapping[str, Any], again: Mapping[str, Any], manifest: Manifest) -> Differences:
    """Metrics and other numbers that differ, by name, with both values; those that differ in value first."""
    earlier, other = by_earlier(manifest), manifest.version != __version__
    found, missing, odd = _compared(recorded, again)
    then = f"{'not computed then' if earlier or other else 'not recorded'}: {', '.join(dict.fromkeys(missing))}"
    told = (then,) if missing else ()
    if not earlier:
        return Differences((*map(str, found), *odd, *(() if other else told)), told if other else ())
    rest = [one for one in found if not one.as_ever]
    ends = dict.fromkeys(one.what.removeprefix("metric ") for one in rest if one.field not in _FIELDS_AS_EVER)
    return Differences(
        (*(str(one) for one in found if one.as_ever), *(line for line in odd if _is_as_ever(line))),
        (
            *(str(one) for one in rest if one.field in _FIELDS_AS_EVER),
            *(line for line in odd if not _is_as_ever(line)),
            *((f"other intervals, or none now: {', '.join(ends)}",) if ends else ()),
            *told,
        ),
    )


def _compared(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> tuple[list[_Difference], list[str], list[str]]:
    """What differs, the names of what was not recorded, and what else is odd."""
    found: list[_Difference] = []
    missing: list[str] = []
    odd: list[str] = []
    for name in sorted((recorded.keys() | again.keys()) - {"run_id"}):
        ours, theirs = recorded.get(name), again.get(name)
        if ours == theirs:
            continue
        if name != "metrics":
            if name in recorded:
                found.append(_Difference("metrics.json", name, ours, theirs))
            else:
                missing.append(name)
            continue
        one, other = _by_name(ours), _by_name(theirs)
        before = len(found), len(missing), len(odd)
        for metric in dict.fromkeys((*other, *one)):
            if metric not in one:
                missing.append(metric)
            elif metric not in other:
                odd.append(f"metric {metric}: recorded, and follows from nothing")
            else:
                before_it, now = one[metric], other[metric]
                missing.extend(key for key in now if now[key] is not None and key not in before_it)
                found.extend(
                    _Difference(f"metric {metric}", key, value, now.get(key))
                    for key, value in before_it.items()
                    if value != now.get(key)
                )
        if before == (len(found), len(missing), len(odd)):
            odd.append("metrics.json: its metrics are in another order, or some stand there twice")
    found.sort(key=lambda one: one.order)
    return found, missing, odd


def _is_as_ever(line: str) -> bool:
    """Whether what is odd is so of a metric that 0.1.0 counted as this version does."""
    return _COUNTED_AS_EVER.fullmatch(line.removeprefix("metric ").partition(":")[0]) is not None


def _by_name(rows: Any) -> dict[str, Mapping[str, Any]]:
    """Metrics by name; of what is no list of them nothing."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and isinstance(row.get("metric"), str):
            agent = row.get("agent")
            found[row["metric"] if agent is None else f"{row['metric']} of {agent}"] = row
    return found


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
