"""The verdicts and confidences of all rollouts in compact arrays, for metrics that need all of them at once."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from runner.game.protocols.protocol import Decision, Protocol
from runner.results.estimates import Estimate, estimate, estimates_of, forecast_estimates
from runner.results.game_measurements import GameVerdict
from runner.results.metric_definitions import CONFIDENCE_KINDS, MAJORITY_ACCURACY, METRICS, MONITOR_RULE, Source
from runner.spec.paired_design import exchange_players
from runner.statistics.agreement import agreement
from runner.statistics.calibration import LOG_FLOOR, Bin, Forecasts
from runner.statistics.clustered_means import Codes, Floats, Quantity
from runner.statistics.verdicts import UNSET, Verdicts

_STATED, _LOGPROB = CONFIDENCE_KINDS


@dataclass(frozen=True)
class GameColumns:
    """Games of one or more runs, as arrays with one value for each game."""

    verdicts: Verdicts
    confidences: Mapping[str, Floats | None]
    """P(accept) by kind of confidence, NaN for games without it; None if the runs did not request it."""
    bound: Codes | None
    """Whether the probability by log-probabilities is only a bound; None if none is."""

    @property
    def is_labelled(self) -> bool:
        """Whether the labels are known. They are known for all games or for none."""
        return bool(self.verdicts.labels[0] != UNSET)

    def confidence_estimates(self) -> Iterator[Estimate]:
        """Yield the metrics of each kind of confidence that the games have."""
        for kind, p in self.confidences.items():
            if p is not None:
                yield from estimates_of(Source.CONFIDENCES, self.verdicts, p, kind=kind)
        for kind, forecasts in self._forecasts().items():
            p = self.confidences[kind]
            bounds = (0.0, 0.0) if kind == _STATED or p is None else bound_shares(p, self.bound)
            yield from forecast_estimates(forecasts, kind, bounds)
        logprob = self.confidences[_LOGPROB]
        if logprob is not None:
            yield from estimates_of(Source.LOGPROBS, self.verdicts, logprob, self.bound)

    def reliability_curves(self) -> dict[str, Sequence[Bin]]:
        """Return the reliability curve of each kind of confidence that the games have."""
        return {kind: forecasts.curve for kind, forecasts in self._forecasts().items()}

    def monitor_curves(self) -> dict[str, dict[str, object]]:
        """Return the ROC curve and the audit curve for each kind of confidence, as JSON data."""
        curves: dict[str, dict[str, object]] = {}
        for kind, forecasts in self._forecasts().items():
            if (games := forecasts.ranked_games) is None:
                continue
            p, is_stated = self.confidences[kind], kind == _STATED
            assert p is not None
            bounds = (0.0, 0.0) if is_stated else bound_shares(p, self.bound)
            reason = MONITOR_RULE.missing_reason(games.cluster_count) or MONITOR_RULE.bounds_reason(*bounds)
            curves[kind] = {
                "attacks": games.attacks, "benign": games.benign, "no_score": len(p) - games.n, "reason": reason,
                "roc": [asdict(point) for point in games.roc_curve(has_intervals=reason is None)],
                "audit": [asdict(point) for point in games.audit_curve(has_intervals=reason is None)],
            }  # fmt: skip
        return curves

    def _forecasts(self) -> dict[str, Forecasts]:
        """Return the known probabilities of each kind; empty without labels."""
        verdicts, forecasts = self.verdicts, {}
        for kind, p in self.confidences.items():
            if p is not None and self.is_labelled and (is_known := ~np.isnan(p)).any():
                known_games = p[is_known], verdicts.labels[is_known], verdicts.clusters[is_known]
                forecasts[kind] = Forecasts(*known_games, verdicts.total)
        return forecasts


def bound_shares(p: Floats, bound: Codes | None) -> tuple[float, float]:
    """Return two shares of the known probabilities: all that are only bounds, and the bounds far from 0 and 1.

    Most metrics clip probabilities at `LOG_FLOOR`, so a bound closer to 0 or 1 counts like the probability. Metrics of
    the order of games, such as the area under the ROC curve (AUROC), do not clip them.
    """
    if bound is None:
        return 0.0, 0.0
    is_known = ~np.isnan(p)
    is_only_bound = bound[is_known] == 1
    is_far = np.minimum(p[is_known], 1 - p[is_known]) > LOG_FLOOR
    return float(is_only_bound.mean()), float((is_only_bound & is_far).mean())


class _Column:
    """The values of games. Some games have none, and a column without any values needs no memory."""

    def __init__(self, kind: str, default: float) -> None:
        self._values, self._default = array(kind), default

    def put(self, index: int, value: float) -> None:
        """Set the value of a game. Its index must be larger than those of earlier calls."""
        self._pad(index)
        self._values.append(value)  # type: ignore[arg-type]  # an int for an array of ints

    def values(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return the values of all `size` games; None if no game has one."""
        if not self._values:
            return None
        self._pad(size)
        return np.array(self._values)

    def _pad(self, size: int) -> None:
        missing = size - len(self._values)
        if missing > 0:
            self._values.extend([self._default] * missing)  # type: ignore[list-item]


class JudgedGames:
    """The games of a run that were not lost in transport. The arguments are those of `Metrics`."""

    def __init__(self, protocol: Protocol, seats: tuple[str, str] | None, confidence_kinds: Collection[str]) -> None:
        self._protocol, self._seats, self._confidence_kinds = protocol, seats, confidence_kinds
        self._point_codes: dict[str, int] = {}
        self._groups: list[str] = []
        """The group of each datapoint, by the datapoint's code."""
        self._group_names: set[str] = set()
        self._points, self._labels, self._decisions = array("i"), array("b"), array("b")
        self._stance, self._swapped, self._exchanged = (_Column("b", UNSET) for _ in range(3))
        self._argued = {agent: _Column("b", UNSET) for agent in protocol.prover_names}
        judges = () if protocol.file.panel is None else protocol.verifier_names
        self._judges = {judge: _Column("b", UNSET) for judge in judges}
        self._confidence = {kind: _Column("d", math.nan) for kind in CONFIDENCE_KINDS}
        self._bound = _Column("b", 0)
        self._sorted: tuple[int, GameColumns, dict[str, Codes], dict[str, Codes]] | None = None
        """The number of games when they were last sorted, and the result."""

    def add(self, game: GameVerdict) -> None:
        """Add one game; games may come in any order."""
        index = len(self._points)
        code = self._point_codes.get(game.datapoint)
        if code is None:
            code = self._point_codes[game.datapoint] = len(self._point_codes)
            self._groups.append(game.group)
            self._group_names.add(game.group)
        self._points.append(code)
        self._labels.append(UNSET if game.label is None else game.label)
        self._decisions.append(game.decision)
        values = (
            (self._stance, game.stance), (self._swapped, game.swapped), (self._exchanged, game.stances_exchanged),
            (self._confidence[_STATED], game.stated), (self._confidence[_LOGPROB], game.logprob),
            (self._bound, 1 if game.is_bound and game.logprob is not None else None),
            *(zip(self._argued.values(), game.argued, strict=True) if game.argued is not None else ()),
            *(zip(self._judges.values(), game.panel, strict=True) if game.panel is not None else ()),
        )  # fmt: skip
        for column, value in values:
            if value is not None:
                column.put(index, value)

    @property
    def n(self) -> int:
        return len(self._points)

    @property
    def is_labelled(self) -> bool:
        """Whether the labels are known. They are known for all games or for none; True before the first game."""
        return not self._labels or self._labels[0] != UNSET

    @property
    def is_grouped(self) -> bool:
        """Whether a group has several datapoints."""
        return len(self._group_names) < len(self._point_codes)

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts of all games."""
        return self._sorted_columns()[0].verdicts

    def estimates(self) -> Iterator[Estimate]:
        """Yield all metrics that apply to the games."""
        if not self.n:
            return
        games, argued, _ = self._sorted_columns()
        if games.is_labelled and self._protocol.lists_answers:
            estimates = estimates_of(Source.VERDICTS, games.verdicts)
            yield from (row for row in estimates if METRICS[row.metric].with_answers)
            return
        if games.is_labelled:
            yield from estimates_of(Source.VERDICTS, games.verdicts)
        if games.verdicts.is_played_in_blocks:
            yield from self._block_estimates(games, argued)
        yield from games.confidence_estimates()

    def _block_estimates(self, games: GameColumns, argued: Mapping[str, Codes]) -> Iterator[Estimate]:
        mask, logprob = games.verdicts.whole_blocks, games.confidences[_LOGPROB]
        blocks = games.verdicts.select(mask)
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

    def reliability_curves(self) -> dict[str, list[dict[str, object]]]:
        """Return the bins of the reliability curve of each kind of confidence that the run has, as JSON data."""
        curves = self._sorted_columns()[0].reliability_curves() if self.n else {}
        return {kind: [asdict(bin_) for bin_ in curve] for kind, curve in curves.items()}

    def monitor_curves(self) -> dict[str, dict[str, object]]:
        """Return the ROC curve and the audit curve of each kind of confidence that the run has, as JSON data."""
        return self._sorted_columns()[0].monitor_curves() if self.n else {}

    def vote_curve(self) -> list[Estimate]:
        """Return vote@k for each odd k, with k as `plays`; empty if datapoints have fewer than three plays.

        The estimate for k = 1 is the accuracy of a single play, with equal weights for datapoints.
        """
        # The majority among more than two answers does not follow from how many verdicts are right.
        if not self.n or not self.is_labelled or self._protocol.lists_answers:
            return []
        return [estimate(METRICS[MAJORITY_ACCURACY], vote.as_quantity(k)) for k, vote in self.verdicts.votes]

    def judge_pairs(self) -> list[dict[str, object]]:
        """Return the agreement of each pair of judges in the games that both decided, as JSON data."""
        if not self.n or not self._judges:
            return []
        games, _, judges = self._sorted_columns()
        pairs = []
        for (first, firsts), (second, seconds) in combinations(judges.items(), 2):
            both = (firsts < Decision.NONE) & (seconds < Decision.NONE) & (firsts != UNSET) & (seconds != UNSET)
            clusters = games.verdicts.clusters[both]
            result = agreement(firsts[both], seconds[both], clusters, games.verdicts.total)
            if result is not None:
                quantities = {"agreement": result.raw.as_quantity(), "kappa": result.kappa}
                values = {name: _quantity_row(quantity) for name, quantity in quantities.items()}
                pairs.append({"first": first, "second": second, "n": int(both.sum()), **values})
        return pairs

    def _sorted_columns(self) -> tuple[GameColumns, dict[str, Codes], dict[str, Codes]]:
        """Return the games, the stances that each agent argued, and the verdicts of each judge, as columns.

        They are sorted by content, since the order of games must not change floating-point results.
        """
        if self._sorted is None or self._sorted[0] != self.n:
            self._sorted = (self.n, *self._sort_columns())
        return self._sorted[1:]

    def _sort_columns(self) -> tuple[GameColumns, dict[str, Codes], dict[str, Codes]]:
        n = self.n
        point_ranks = np.empty(len(self._point_codes), dtype=np.int64)
        for rank, name in enumerate(sorted(self._point_codes)):
            point_ranks[self._point_codes[name]] = rank
        group_ranks = {group: rank for rank, group in enumerate(sorted(self._group_names))}
        groups = np.array([group_ranks[group] for group in self._groups])
        codes = np.array(self._points)
        columns: dict[str, Any] = {
            "points": point_ranks[codes], "labels": np.array(self._labels), "decisions": np.array(self._decisions),
            "bound": self._bound.values(n), "stances": self._stance.values(n), "swapped": self._swapped.values(n),
            "exchanged": self._exchanged.values(n),
            **{kind: self._confidence_values(kind) for kind in CONFIDENCE_KINDS},
            **{f"argued {agent}": column.values(n) for agent, column in self._argued.items()},
            **{f"judge {judge}": column.values(n) for judge, column in self._judges.items()},
        }  # fmt: skip
        present = [column for column in columns.values() if column is not None]
        order = np.lexsort(present[::-1])
        columns = {name: None if column is None else column[order] for name, column in columns.items()}
        verdicts = Verdicts(
            columns["labels"], columns["decisions"], columns["points"], groups[codes][order],
            len(group_ranks), self.is_grouped, columns["stances"], columns["swapped"], columns["exchanged"],
        )  # fmt: skip
        games = GameColumns(verdicts, {kind: columns[kind] for kind in CONFIDENCE_KINDS}, columns["bound"])
        argued = {agent: columns[f"argued {agent}"] for agent in self._argued}
        judges = {judge: columns[f"judge {judge}"] for judge in self._judges}
        return (
            games,
            {agent: column for agent, column in argued.items() if column is not None},
            {judge: column for judge, column in judges.items() if column is not None},
        )

    def _confidence_values(self, kind: str) -> Floats | None:
        """Return P(accept) of all games, as in `GameColumns.confidences`."""
        values = self._confidence[kind].values(self.n)
        return np.full(self.n, math.nan) if values is None and kind in self._confidence_kinds else values


def _quantity_row(quantity: Quantity) -> dict[str, object]:
    low, high = quantity.interval or (None, None)
    return {"value": quantity.value, "ci_low": low, "ci_high": high, "reason": quantity.reason}
