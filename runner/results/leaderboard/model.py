"""The rows of leaderboards, and their ranks.

The leaderboards of a results folder, a registry and a competition, and the table of a sweep, use this module. They
differ in the source of their rows, and in the test of the difference between two rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from runner.base.batches import group_pairs
from runner.results.leaderboard.unranked import Unranked
from runner.statistics.rank_sets import MAX_PAIRWISE, PairTests, rank_sets

Name = TypeVar("Name", bound=Hashable)
Row = TypeVar("Row", bound="LeaderboardRow")
RankRange = tuple[int, int]
"""The first and the last rank of a 95 % confidence set."""


def rank(values: Iterable[tuple[Name, float]], p_values: PairTests[Name]) -> dict[Name, RankRange]:
    """Return the 95 % confidence set of each row's rank.

    `values` has each row's name and value. A larger value is better. Rows with equal values stay in the given order.
    """
    order = sorted(values, key=lambda row: -row[1])
    return rank_sets([name for name, _ in order], p_values)


def describe_ranks(count: int, tests: str = "tests") -> str:
    """Return a line that says how the ranks of `count` rows were determined. `tests` describes the tests of pairs."""
    pairs = "all pairs" if count <= MAX_PAIRWISE else f"each row with the first only, because there are {count:,}"
    return f"rank: 95 % confidence set of ranks, from {tests} of {pairs}"


@dataclass(slots=True, kw_only=True)
class RankedRow:
    """A row of a leaderboard."""

    accuracy: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None
    clusters: int | None
    rank: int | None = None
    """The first rank of the 95 % confidence set; None if the row is unranked."""
    rank_last: int | None = None
    """The last rank of the confidence set."""
    reason: str | None = None
    """The reason why the row is unranked."""

    @property
    def ranks(self) -> RankRange | None:
        """The first and the last rank of the 95 % confidence set; None if the row is unranked."""
        return None if self.rank is None or self.rank_last is None else (self.rank, self.rank_last)

    def to_json(self) -> dict[str, Any]:
        """Return the row by column name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True, kw_only=True)
class LeaderboardRow(RankedRow):
    """A run on a leaderboard: a row of the view `leaderboard`. The comments on its columns describe the fields."""

    benchmark: str | None
    run_id: str
    name: str
    protocol: str
    stderr: float | None
    outcomes: str | None
    models: str | None
    cost_usd: float | None
    finished_at: datetime | None
    spec_sha256: str
    dataset_sha256: str
    game_sha256: str
    version: str
    list: int
    task: str | None
    status: str
    failures: int | None
    seed: int | None
    point: str | None
    split: str | None
    limit: int | None
    filter: str | None
    group_by: str | None
    per_datapoint: int | None
    replay_of: str | None
    transport_failed: int | None
    invalid_response: int | None
    refused: int | None
    context_exceeded: int | None
    no_decision: int | None
    started_at: datetime | None
    stopped: str | None
    rejudge_of: str | None
    shared_with: str | None
    shared: int | None
    earlier_task: str | None

    @property
    def selection(self) -> str:
        """The settings that selected the datapoints, such as `split test, group by problem`."""
        settings = {"split": self.split, "limit": self.limit, "filter": self.filter, "group by": self.group_by}
        return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)

    @property
    def lost(self) -> int | None:
        """The number of rollouts lost in transport."""
        return self.transport_failed

    @property
    def undecided(self) -> int | None:
        """The number of rollouts with answers but without a verdict; None if unknown."""
        counts = (self.invalid_response, self.refused, self.context_exceeded, self.no_decision)
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def shared_note(self) -> str | None:
        """A note on verdicts that share answers with another run; None if there are none, or if `reason` says so."""
        if not self.shared or Unranked.SHARED_ANSWERS.matches(self.reason) or Unranked.REPLAY.matches(self.reason):
            return None
        return f"{self.shared} of {self.n} verdicts come from answers that it shares with {self.shared_with}"


def rows_of_view(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[LeaderboardRow]:
    """Convert rows of the view `leaderboard`, given the names of its columns."""
    return [LeaderboardRow(**dict(zip(columns, row, strict=True))) for row in rows]


def lists_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Split the rows of a board into lists, one for each task of each benchmark, in the order of the board."""
    return list(group_pairs(((row.benchmark, row.list), row) for row in rows).values())
