"""What the plan of a run can be asked, of whichever kind the run is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runner.rollouts.plan import Plan
from runner.spec.load import Spec


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

    def all_games(self) -> Sequence[Plan]:
        """The games of the whole run, as far as they can be known before."""
        ...
