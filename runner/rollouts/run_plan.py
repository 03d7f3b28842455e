"""The interface that all plans share, the base of plans whose games are separate runs, and a check of sweeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol, Self

from runner.base.errors import UsageError
from runner.base.problems import Place, Problem
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec
from runner.spec.run_names import MAX_RUN_ID_LENGTH


class RunPlan(Protocol):
    """Everything that is known about a run, of games or of training, before it starts."""

    @property
    def spec(self) -> Spec: ...

    @property
    def run_id(self) -> str: ...

    @property
    def identity(self) -> str:
        """The hash that identifies a run: specs with the same identity describe the same run, longer or shorter."""
        ...

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The spec keys that do not change the identity; `*` matches any one name."""
        ...

    @property
    def games(self) -> Plan:
        """The plan of games on all datapoints, with the models of the spec, which are not yet trained."""
        ...

    def with_spec(self, spec: Spec) -> Self:
        """Return this plan with another spec of the same kind."""
        ...

    def list_game_plans(self) -> Sequence[Plan]:
        """Return the plans of all games that are known before the run starts."""
        ...


@dataclass(frozen=True)
class PlanWithParts(ABC):
    """The plan of a run whose games are separate runs, called its parts. The ids of the parts start with its id."""

    spec: Spec

    first_suffix: ClassVar[str]
    """The end of the id of the first part."""
    longest_suffix: ClassVar[str]

    @property
    @abstractmethod
    def identity(self) -> str:
        """The hash that identifies the run."""

    @cached_property
    def games(self) -> Plan:
        """The plan of games on all datapoints by the agents of the spec, for the facts that all parts share."""
        return Plan(self.spec)

    @property
    def run_id(self) -> str:
        """The default id of the run."""
        return self.spec.resumed_run_id or f"{self.spec.experiment.name}-{self.identity[:10]}"

    def with_spec(self, spec: Spec) -> Self:
        """Return this plan with another spec of the same kind."""
        return replace(self, spec=spec)

    def check_run_id(self, run_id: str) -> None:
        """Check that the run's id leaves enough characters for the ids of its parts.

        Raises:
            UsageError: the run id is too long.
        """
        max_length = MAX_RUN_ID_LENGTH - len(self.longest_suffix)
        if len(run_id) > max_length:
            raise UsageError(
                f"--run-id {run_id}: the id has {len(run_id)} characters; choose an id of at most {max_length}, "
                f"because the ids of the run's parts start with it (ID{self.first_suffix} and so on)"
            )


def sweep_problems(path: str, points: Sequence[RunPlan]) -> Iterator[Problem]:
    """Yield a problem for each sweep point whose run is the run of an earlier point, so that it would add no run."""
    first_specs: dict[str, Spec] = {}
    for plan in points if len(points) > 1 else ():
        spec = plan.spec
        earlier = first_specs.setdefault(plan.run_id, spec)
        if earlier is spec:
            continue
        ineffective_keys = [
            key for key, value in spec.point.items() if key not in earlier.point or earlier.point[key] != value
        ]
        for key in ineffective_keys:
            values = " and ".join(repr(point[key]) for point in (earlier.point, spec.point) if key in point)
            yield Problem(
                spec.point_places.get(key, Place(path)), f"sweep.{key}",
                f"this key does not change the run's identity, so its values ({values}) would all be the same run; "
                "remove it from the sweep, and play each value separately with its own --run-id",
            )  # fmt: skip
        if not ineffective_keys:
            repeated_keys = [key for key in spec.point if spec.point_places.get(key) != earlier.point_places.get(key)]
            yield _duplicate_point(path, spec, next(iter(repeated_keys or spec.point), None))


def _duplicate_point(path: str, spec: Spec, key: str | None) -> Problem:
    """Return the problem of a sweep point that is equal to an earlier one. `key`: the key with the repeated value."""
    message = "is in the sweep twice, and both points would be the same run; remove one of them"
    if key is None:
        return Problem(Place(path), "sweep", f"a value {message}")
    place = spec.point_places.get(key, Place(path))
    return Problem(place, f"sweep.{key}", f"the value {spec.point[key]!r} {message}")
