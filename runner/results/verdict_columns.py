"""The verdicts and confidences of all rollouts in compact arrays, for metrics that need all of them at once."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from runner.game.protocols.protocol import Protocol
from runner.results.estimates import Estimate, estimates_of, forecast_estimates, vote_curve
from runner.results.game_measurements import GameVerdict
from runner.results.metric_definitions import CONFIDENCE_KINDS, Source
from runner.spec.paired_design import exchange_players
from runner.statistics.calibration import LOG_FLOOR, Forecasts
from runner.statistics.clustered_means import Codes, Floats
from runner.statistics.verdicts import UNSET, Verdicts

LOOSE = LOG_FLOOR
"""A bound this close to 0 or 1 can replace the probability in all metrics except those of the order, such as AUROC."""


class _Column:
    """The values of rollouts, some or all of which have none. A column without values needs no memory."""

    def __init__(self, kind: str, default: float) -> None:
        self._values, self._default = array(kind), default

    def put(self, index: int, value: float) -> None:
        """Set the value of a rollout. Its index must be larger than those of earlier calls."""
        self._pad(index)
        self._values.append(value)  # type: ignore[arg-type]  # an int for an array of ints

    def values(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return the values of all `size` rollouts; None if no rollout has one."""
        if not self._values:
            return None
        self._pad(size)
        return np.array(self._values)

    def _pad(self, size: int) -> None:
        missing = size - len(self._values)
        if missing > 0:
            self._values.extend([self._default] * missing)  # type: ignore[list-item]


_Columns = tuple[Verdicts, dict[str, Codes], dict[str, Floats | None], Codes | None]
"""The verdicts; the stances that each agent argued; the probabilities of each kind; and which of these are bounds."""


class JudgedGames:
    """The games of a run that were not lost in transport. `seats` are the two seats that the run swaps, if any."""

    def __init__(self, protocol: Protocol, seats: tuple[str, str] | None = None) -> None:
        self._protocol, self._seats = protocol, seats
        self._codes: dict[str, int] = {}
        self._groups: list[str] = []
        self._group_names: set[str] = set()
        self._points, self._labels, self._decisions = array("i"), array("b"), array("b")
        self._stance, self._swapped, self._exchanged = (_Column("b", UNSET) for _ in range(3))
        self._argued = {agent: _Column("b", UNSET) for agent in protocol.prover_names}
        self._confidence = {kind: _Column("d", math.nan) for kind in CONFIDENCE_KINDS}
        self._bound = _Column("b", 0)
        self._sorted: tuple[int, Any] = (-1, None)

    def count(self, game: GameVerdict) -> None:
        """Count one game; games may come in any order."""
        index = len(self._points)
        code = self._codes.get(game.datapoint)
        if code is None:
            code = self._codes[game.datapoint] = len(self._codes)
            self._groups.append(game.group)
            self._group_names.add(game.group)
        self._points.append(code)
        self._labels.append(UNSET if game.label is None else game.label)
        self._decisions.append(game.decision)
        if game.argued is not None:
            self._count_in_block(game, game.argued, index)
        if game.stated is not None:
            self._confidence["stated"].put(index, game.stated)
        if game.logprob is not None:
            self._confidence["logprob"].put(index, game.logprob)
            if game.is_bound:
                self._bound.put(index, 1)

    def _count_in_block(self, game: GameVerdict, argued: Sequence[int], index: int) -> None:
        if game.swapped is not None:
            self._swapped.put(index, int(game.swapped))
        if game.stances_exchanged is not None:
            self._exchanged.put(index, int(game.stances_exchanged))
        if game.stance is not None:
            self._stance.put(index, game.stance)
        for column, stance in zip(self._argued.values(), argued, strict=True):
            column.put(index, stance)

    @property
    def n(self) -> int:
        return len(self._points)

    @property
    def datapoints(self) -> int:
        return len(self._codes)

    @property
    def is_labelled(self) -> bool:
        """Whether the labels are known. They are known for all games or for none; True before the first game."""
        return not self._labels or self._labels[0] != UNSET

    @property
    def is_grouped(self) -> bool:
        """Whether a group has several datapoints."""
        return len(self._group_names) < len(self._codes)

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts of all games."""
        return self._sorted_columns()[0]

    def estimates(self) -> Iterator[Estimate]:
        """Yield all metrics that apply to the games."""
        if not self.n:
            return
        verdicts, argued, confidences, bound = self._sorted_columns()
        if self.is_labelled:
            yield from estimates_of(Source.VERDICTS, verdicts)
        yield from self._block_estimates(verdicts, argued, confidences[CONFIDENCE_KINDS[1]])
        yield from confidence_estimates(verdicts, confidences, bound, is_labelled=self.is_labelled)

    def _block_estimates(
        self, verdicts: Verdicts, argued: dict[str, Codes], logprob: Floats | None
    ) -> Iterator[Estimate]:
        if not verdicts.is_played_in_blocks:
            return
        mask = verdicts.whole_blocks
        blocks = verdicts.select(mask)
        stances = {agent: column[mask] for agent, column in argued.items()}
        has_seats = self._protocol.are_opposed and not self._protocol.samples_stance
        yield from estimates_of(Source.BLOCKS, blocks, next(iter(stances.values())) if has_seats else None)
        for agent, column in self._stances_by_player(blocks, stances).items():
            yield from estimates_of(Source.PLAYERS, blocks, column, agent=agent)
            if logprob is not None:
                yield from estimates_of(Source.PLAYER_LOGPROBS, blocks, column, logprob[mask], agent=agent)
            if self._seats is not None:
                yield from estimates_of(Source.SEATS, blocks, stances[agent], agent=agent)

    def _stances_by_player(self, blocks: Verdicts, stances: dict[str, Codes]) -> dict[str, Codes]:
        """Return the stances of each player (an entry of `agents`), given the stances of each seat."""
        swapped_stances = exchange_players(stances, self._seats)
        if blocks.swapped is None:
            return stances
        return {
            agent: np.where(blocks.swapped == 1, swapped_stances[agent], written) for agent, written in stances.items()
        }

    def reliability_curves(self) -> dict[str, list[dict[str, Any]]]:
        """Return the bins of the reliability curve of each kind of confidence that the run has."""
        if not self.n or not self.is_labelled:
            return {}
        verdicts, _, confidences, _ = self._sorted_columns()
        return {
            kind: [asdict(bin_) for bin_ in forecasts_of(verdicts, p).curve]
            for kind, p in confidences.items()
            if p is not None
        }

    def vote_curve(self) -> list[Estimate]:
        """Return vote@k for each odd k, if games were repeated."""
        return vote_curve(self._sorted_columns()[0]) if self.n and self.is_labelled else []

    def _sorted_columns(self) -> _Columns:
        """Return the columns, sorted by content, since the order of games must not change floating-point results."""
        if self._sorted[0] != self.n:
            self._sorted = (self.n, self._sort_columns())
        columns: _Columns = self._sorted[1]
        return columns

    def _sort_columns(self) -> _Columns:
        n = self.n
        ids = np.empty(len(self._codes), dtype=np.int64)
        for rank, name in enumerate(sorted(self._codes)):
            ids[self._codes[name]] = rank
        names = {group: rank for rank, group in enumerate(sorted(self._group_names))}
        groups = np.array([names[group] for group in self._groups])
        codes = np.array(self._points)
        columns: dict[str, Any] = {
            "points": ids[codes], "labels": np.array(self._labels), "decisions": np.array(self._decisions),
            "bound": self._bound.values(n), "stances": self._stance.values(n), "swapped": self._swapped.values(n),
            "exchanged": self._exchanged.values(n),
            **{kind: self._confidence[kind].values(n) for kind in CONFIDENCE_KINDS},
            **{f"argued {agent}": column.values(n) for agent, column in self._argued.items()},
        }  # fmt: skip
        present = [column for column in columns.values() if column is not None]
        order = np.lexsort(present[::-1])
        columns = {name: None if column is None else column[order] for name, column in columns.items()}
        verdicts = Verdicts(
            columns["labels"], columns["decisions"], columns["points"], groups[codes][order],
            len(names), self.is_grouped, columns["stances"], columns["swapped"],
            columns["exchanged"],
        )  # fmt: skip
        argued = {agent: columns[f"argued {agent}"] for agent in self._argued}
        return (
            verdicts,
            {agent: column for agent, column in argued.items() if column is not None},
            {kind: columns[kind] for kind in CONFIDENCE_KINDS},
            columns["bound"],
        )


def confidence_estimates(
    verdicts: Verdicts, confidences: Mapping[str, Floats | None], bound: Codes | None, *, is_labelled: bool
) -> Iterator[Estimate]:
    """Yield the metrics of each kind of probability. `bound` marks log-probabilities that are only bounds."""
    for kind, p in confidences.items():
        if p is not None and is_labelled:
            bounds = (0.0, 0.0) if kind == CONFIDENCE_KINDS[0] else bound_shares(p, bound)
            yield from forecast_estimates(forecasts_of(verdicts, p), kind, bounds)
    logprob = confidences[CONFIDENCE_KINDS[1]]
    if logprob is not None:
        yield from estimates_of(Source.LOGPROBS, verdicts, logprob, bound)


def bound_shares(p: Floats, bound: Codes | None) -> tuple[float, float]:
    """Return two shares of the known probabilities: those that are only bounds, and those of them far from 0 and 1."""
    if bound is None:
        return 0.0, 0.0
    is_known = ~np.isnan(p)
    is_only_bound = bound[is_known] == 1
    return float(is_only_bound.mean()), float(
        (is_only_bound & (np.minimum(p[is_known], 1 - p[is_known]) > LOOSE)).mean()
    )


def forecasts_of(verdicts: Verdicts, p: Floats) -> Forecasts:
    """Return the known probabilities with the labels and clusters of their games."""
    is_known = ~np.isnan(p)
    return Forecasts(p[is_known], verdicts.labels[is_known], verdicts.clusters[is_known], verdicts.total)
