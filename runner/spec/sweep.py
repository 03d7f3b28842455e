"""The sweep of a spec into its points: each a list of overrides, at the places where their values stand.

A sweep is a mapping of dotted keys to lists, of which every combination is a point (a grid); under `zip` in it, lists
of one length that advance together; or a list of points, each a mapping of dotted keys to values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from runner.base.errors import Problem, SpecError
from runner.documents.layered_data import LayeredData
from runner.documents.overrides import Override
from runner.documents.plain_values import KeyPath
from runner.documents.renamed_keys import SWEEP, ZIP
from runner.spec.experiment import MAX_SWEEP_POINTS

Step = list[Override]
"""What one step along an axis sets."""


class Sweep:
    """A sweep, as far as it is sound, as axes: every combination of their steps is a point."""

    def __init__(self, layered: LayeredData) -> None:
        self._layered = layered
        sweep = layered.data.get(SWEEP)
        self._zip: Mapping[str, Any] = {}
        self.axes: list[list[Step]] = []
        if isinstance(sweep, list):
            self.axes = [[self._point(point, index) for index, point in enumerate(sweep) if isinstance(point, dict)]]
        elif isinstance(sweep, dict):
            self._zip = sweep[ZIP] if isinstance(sweep.get(ZIP), dict) else {}
            self.axes = [self._zipped() if key == ZIP else self._values(key, sweep[key], (SWEEP, key)) for key in sweep]

    @property
    def size(self) -> int:
        """The number of points; 0: there is no sweep."""
        return math.prod(map(len, self.axes)) if self.axes else 0

    def check_size(self) -> None:
        """Refuse more points than `max_sweep_points`, before any of them is made.

        Raises:
            SpecError: there are.
        """
        most = self._layered.data.get("max_sweep_points", MAX_SWEEP_POINTS)
        if isinstance(most, int) and self.size > most:
            message = (
                f"{self.size:,} combinations are more than max_sweep_points ({most:,}); sweep over fewer, or set it "
                "higher"
            )
            raise SpecError([Problem(self._layered.place((SWEEP,)), SWEEP, message)])

    def points(self) -> Iterator[list[Override]]:
        """The points in order: the first axis varies slowest."""
        for steps in product(*self.axes) if self.size else ():
            yield [override for step in steps for override in step]

    def problems(self) -> Iterator[Problem]:
        """Problems beyond the schema: lists of several lengths in `zip`, a key that is swept over twice."""
        longest = max((len(values) for values in self._zip.values() if isinstance(values, list)), default=0)
        for key, values in self._zip.items():
            at = (SWEEP, ZIP, key)
            if isinstance(values, list) and len(values) != longest:
                yield self._problem(
                    at,
                    f"{len(values)} values, where another list of `zip` has {longest}; they advance together: give all "
                    "the same number, or take the key out of `zip` to combine it with all",
                )
            if key in self._layered.data[SWEEP]:
                yield self._problem(at, "swept over in the grid, too; leave one out")

    def _problem(self, at: KeyPath, message: str) -> Problem:
        return Problem(self._layered.place(at), ".".join(map(str, at)), message)

    def _override(self, key: str, value: Any, at: KeyPath) -> Override:
        return Override(f"{key}=...", self._layered.place(at), (value,))

    def _values(self, key: str, values: Any, at: KeyPath) -> list[Step]:
        found = values if isinstance(values, list) else []
        return [[self._override(key, value, (*at, index))] for index, value in enumerate(found)]

    def _zipped(self) -> list[Step]:
        columns = [self._values(key, values, (SWEEP, ZIP, key)) for key, values in self._zip.items()]
        return [[override for step in steps for override in step] for steps in zip(*columns, strict=False)]

    def _point(self, point: Mapping[str, Any], index: int) -> Step:
        return [self._override(key, value, (SWEEP, index, key)) for key, value in point.items()]
