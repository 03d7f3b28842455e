"""What the plan of a run can be asked, of whichever kind the run is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

from runner.base.errors import Place, Problem
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec


class RunPlan(Protocol):
    """Everything about a run of either kind that is known before it starts."""

    @property
    def spec(self) -> Spec: ...

    @property
    def run_id(self) -> str: ...

    @property
    def identity(self) -> str:
        """The hash that tells runs apart: two specs with one identity are the same run, longer or shorter."""
        ...

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The keys of a spec that are not in the identity; `*` is any one name."""
        ...

    @property
    def games(self) -> Plan:
        """The games of the spec's own models on all of its datapoints."""
        ...

    def with_spec(self, spec: Spec) -> Self:
        """The plan of another spec of the same kind."""
        ...

    def all_games(self) -> Sequence[Plan]:
        """The games of the whole run, as far as they can be known before."""
        ...


def sweep_problems(path: str, points: Sequence[RunPlan]) -> Iterator[Problem]:
    """Points of a spec's sweep that are one run, which would be played once and shown as several."""
    first: dict[str, Spec] = {}
    for plan in points if len(points) > 1 else ():
        spec = plan.spec
        other = first.setdefault(plan.run_id, spec)
        if other is spec:
            continue
        free = [key for key, value in spec.point.items() if key not in other.point or other.point[key] != value]
        for key in free:
            values = " and ".join(repr(point[key]) for point in (other.point, spec.point) if key in point)
            yield Problem(
                spec.point_places.get(key, Place(path)), f"sweep.{key}",
                f"this key does not make another run, so that its values ({values}) are all one run; sweep over "
                "others, and play each value by itself with a --run-id of its own",
            )  # fmt: skip
        if not free:
            moved = [key for key in spec.point if spec.point_places.get(key) != other.point_places.get(key)]
            yield _given_twice(path, spec, (moved or [*spec.point])[:1])


def _given_twice(path: str, spec: Spec, keys: Sequence[str]) -> Problem:
    """Of a point that stands in the sweep already; `keys` is the one whose value is repeated, if it is known."""
    message = "is given twice, which would be one run; leave one out"
    for key in keys:
        place = spec.point_places.get(key, Place(path))
        return Problem(place, f"sweep.{key}", f"the value {spec.point[key]!r} {message}")
    return Problem(Place(path), "sweep", f"a value {message}")
