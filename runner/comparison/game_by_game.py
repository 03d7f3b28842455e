"""Two runs matched as they are compared: of each datapoint in both, the games of one beside the other's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from runner.comparison.compare import Compared, compare_systems
from runner.comparison.matching import matched
from runner.comparison.measures import MEASURES
from runner.comparison.systems import Played, system_of
from runner.errors import UsageError
from runner.results.folder import RunFolder
from runner.results.results import Results
from runner.results.tasks import METRIC


@dataclass(frozen=True)
class GamePair:
    """A game of one run and a game of the other on one datapoint; None where one was played less often."""

    datapoint: str
    """Its id in the base."""
    group: str
    label: int
    base: Played | None
    other: Played | None


def game_pairs(base: RunFolder, other: RunFolder) -> Iterator[GamePair]:
    """The games of two runs on the datapoints that both have, in the order of their repeats.

    Games that were lost in transport are left out.

    Raises:
        UsageError: a run cannot be compared; the message says why.
        RunError: a file of a run is missing or damaged.
    """
    results = Results.of(base)
    systems = [system_of([folder.path], results) for folder in (base, other)]
    columns = [one.columns() for one in systems]
    points = [one.points(MEASURES[METRIC], None) for one in systems]
    found = matched(points[0], points[1], columns[0] & columns[1], is_all=columns[0] == columns[1])
    for group, (mine, theirs) in zip(found.groups, found.pairs, strict=True):
        for one, two in zip_longest(mine.rollouts, theirs.rollouts):
            yield GamePair(mine.id, group, mine.label, one, two)


def by_metrics(base: RunFolder, other: RunFolder, metrics: Sequence[str]) -> list[Compared]:
    """Two runs compared by each metric for which both have scores; the first must be one.

    Raises:
        UsageError: the runs cannot be compared by the first metric; the message says why.
        RunError: a file of a run is missing or damaged.
    """
    results = Results.of(base)
    names = [[base.path], [other.path]]
    first, *rest = metrics
    found = list(compare_systems(names, results, metric=first).pairs)
    for metric in rest:
        try:
            found += compare_systems(names, results, metric=metric).pairs
        except UsageError:
            continue  # one of them has no score by it, such as a confidence that was not asked for
    return found
