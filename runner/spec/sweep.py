"""Expand the sweep of a spec into points. A point is a list of overrides, with the places of their values in the file.

A sweep is a mapping of dotted keys to lists of values, whose combinations are the points (a grid). The lists under the
key `zip` have the same length and advance together. A sweep may also be a list of points, which are mappings of dotted
keys to values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from runner.base.errors import SpecError
from runner.base.problems import Problem
from runner.base.text import counted
from runner.documents.merged_data import LayeredData
from runner.documents.overrides import Override
from runner.documents.plain_values import KeyPath
from runner.documents.renamed_keys import SWEEP, ZIP
from runner.spec.experiment import MAX_SWEEP_POINTS

Step = list[Override]
"""The overrides of one value of an axis; several for the axis `zip`."""


class Sweep:
    """The axes of a sweep. Every combination of a step of each axis is a point. Invalid parts of it are ignored."""

    def __init__(self, layered: LayeredData) -> None:
        self._layered = layered
        sweep = layered.data.get(SWEEP)
        self._zip: Mapping[str, Any] = {}
        self.axes: list[list[Step]] = []
        if isinstance(sweep, list):
            self.axes = [[self._point(point, index) for index, point in enumerate(sweep) if isinstance(point, dict)]]
        elif isinstance(sweep, dict):
            self._zip = sweep[ZIP] if isinstance(sweep.get(ZIP), dict) else {}
            self.axes = [
                self._zip_steps() if key == ZIP else self._steps(key, sweep[key], (SWEEP, key)) for key in sweep
            ]

    @property
    def size(self) -> int:
        """The number of points; 0 if there is no sweep."""
        return math.prod(map(len, self.axes)) if self.axes else 0

    def check_size(self) -> None:
        """Check that there are at most `max_sweep_points` points, before any of them is built.

        Raises:
            SpecError: there are more points.
        """
        limit = self._layered.data.get("max_sweep_points", MAX_SWEEP_POINTS)
        if isinstance(limit, int) and self.size > limit:
            message = (
                f"{self.size:,} combinations are more than max_sweep_points ({limit:,}); reduce the sweep, or "
                "raise the limit"
            )
            raise SpecError([self._layered.problem_at((SWEEP,), message)])

    def points(self) -> Iterator[list[Override]]:
        """Yield the points in order: the first axis varies slowest."""
        for steps in product(*self.axes) if self.size else ():
            yield [override for step in steps for override in step]

    def problems(self) -> Iterator[Problem]:
        """Yield problems of the sweep's keys, such as lists of different lengths in `zip`."""
        overrides = {override.key: override for axis in self.axes for step in axis for override in step}
        for key, override in overrides.items():
            if key.partition(".")[0] == SWEEP:
                message = f"a sweep cannot set {key!r}; write all lists of values in one sweep"
                yield Problem(override.place or self._layered.place((SWEEP,)), SWEEP, message)
        max_length = max((len(values) for values in self._zip.values() if isinstance(values, list)), default=0)
        for key, values in self._zip.items():
            key_path = (SWEEP, ZIP, key)
            if isinstance(values, list) and len(values) != max_length:
                yield self._layered.problem_at(
                    key_path,
                    f"{counted(len(values), 'value')}, but another list of `zip` has {max_length}; they advance "
                    "together: make them equally long, or move the key out of `zip` to combine it with all others",
                )
            if key in self._layered.data[SWEEP]:
                yield self._layered.problem_at(key_path, "the grid also sweeps over this key; remove one of the two")

    def _override(self, key: str, value: Any, key_path: KeyPath) -> Override:
        return Override(f"{key}=...", self._layered.place(key_path), (value,))

    def _steps(self, key: str, values: Any, key_path: KeyPath) -> list[Step]:
        values = values if isinstance(values, list) else []
        return [[self._override(key, value, (*key_path, index))] for index, value in enumerate(values)]

    def _zip_steps(self) -> list[Step]:
        columns = [self._steps(key, values, (SWEEP, ZIP, key)) for key, values in self._zip.items()]
        return [[override for step in steps for override in step] for steps in zip(*columns, strict=False)]

    def _point(self, point: Mapping[str, object], index: int) -> Step:
        return [self._override(key, value, (SWEEP, index, key)) for key, value in point.items()]
