"""What systems can be compared by: means over rollouts, each by its name and the rows that it is the mean of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean


@dataclass(frozen=True)
class Measure:
    """A score of a rollout, whose mean is compared. A rollout that was lost in transport has none."""

    name: str
    sql: str
    """Of a row of `rollouts`, or of the sums over a rollout's rows of `completions`; NULL: it has no score."""
    better: int = 1
    """1: more is better; -1: less is; 0: neither."""
    bound: float | None = 1.0
    """The largest difference between two scores, where there is one."""
    binary: bool = True
    """Whether a score is 0 or 1, so that the mean is a share."""
    label: int | None = None
    """Only datapoints with this label have a score."""
    balanced: bool = False
    """Whether the labels weigh the same, however many datapoints have each."""
    agent: str | None = None
    of_calls: bool = False
    """Whether the score is of the rollout's calls."""

    @property
    def is_share(self) -> bool:
        """Whether differences are told in points of a hundred."""
        return self.bound == 1.0


_CORRECT = "correct::INT::DOUBLE"
_ACCEPTED = "(decision = 1)::INT::DOUBLE"


def _brier(column: str) -> str:
    return f"({column} - y) * ({column} - y)"


_MEASURES = (
    Measure("accuracy", _CORRECT),
    Measure("accuracy_0", _CORRECT, label=0),
    Measure("accuracy_1", _CORRECT, label=1),
    Measure("balanced_accuracy", _CORRECT, balanced=True),
    Measure("accuracy_excluding_failures", f"CASE WHEN decision <> 2 THEN {_CORRECT} END"),
    Measure("completeness", _ACCEPTED, label=1),
    Measure("soundness_error", _ACCEPTED, better=-1, label=0),
    Measure("decided", "(decision <> 2)::INT::DOUBLE"),
    Measure("undecided_0", "(decision = 2)::INT::DOUBLE", better=-1, label=0),
    Measure("undecided_1", "(decision = 2)::INT::DOUBLE", better=-1, label=1),
    Measure("brier_stated", _brier("confidence_stated"), better=-1, binary=False),
    Measure("brier_logprob", _brier("confidence_logprob"), better=-1, binary=False),
    Measure("rounds_played", "rounds::DOUBLE", better=0, bound=None, binary=False),
    Measure("calls", "calls::DOUBLE", better=-1, bound=None, binary=False, of_calls=True),
    Measure("tokens", "tokens::DOUBLE", better=-1, bound=None, binary=False, of_calls=True),
    Measure("cost", "cost::DOUBLE", better=-1, bound=None, binary=False, of_calls=True),
)
MEASURES: Mapping[str, Measure] = {measure.name: measure for measure in _MEASURES}
_REWARD = "reward"


def measure_named(name: str, agents: Collection[str]) -> Measure:
    """The measure of this name; `AGENT.reward` is of an agent.

    Raises:
        UsageError: there is none.
    """
    agent, dot, of_agent = name.rpartition(".")
    if dot and of_agent == _REWARD and agent in agents:
        path = agent.replace("'", "''")
        return Measure(name, f"(rewards->>'{path}')::DOUBLE", bound=None, binary=False, agent=agent)
    if name in MEASURES:
        return MEASURES[name]
    known = all_measures(agents)
    raise UsageError(
        f"no metric {name!r} to compare by{did_you_mean(name, known) or f'; there are: {comma_join(known)}'}"
    )


def all_measures(agents: Collection[str]) -> list[str]:
    """The names of all measures of a system of these agents."""
    return [*MEASURES, *(f"{one}.{_REWARD}" for one in agents)]
