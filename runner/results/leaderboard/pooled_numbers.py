"""The numbers that all verdicts of several runs come to together, from the board: those of one run, over the union."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from runner.results.leaderboard.results_folder import Results
from runner.results.metrics import worst_datapoint
from runner.results.verdict_columns import KINDS, bound_shares
from runner.rollouts.confidence import is_bound
from runner.statistics.calibration import Bin, Forecasts
from runner.statistics.estimates import Number, block_numbers, forecast_numbers, proportion, verdict_numbers
from runner.statistics.verdicts import NONE, UNSET, Verdicts

_GAMES = f"""
SELECT r.datapoint_id, coalesce(d."group", r.datapoint_id), r.y,
    CASE WHEN r.outcome = 'decided' THEN r.decision ELSE {NONE} END,
    CASE WHEN u.spec ->> '$.stances' = 'both' THEN coalesce(r.stance, {UNSET}) ELSE {UNSET} END,
    coalesce(r.swapped::INTEGER, {UNSET}), coalesce(r.confidence_stated, 'nan'::DOUBLE),
    coalesce(r.confidence_logprob, 'nan'::DOUBLE), r.confidence_note
FROM rollouts r
JOIN runs u ON u.run_id = r.run_id
LEFT JOIN datapoints d ON d.run_id = r.run_id AND d.datapoint_id = r.datapoint_id
WHERE r.outcome <> 'transport_failed' AND list_contains(?, r.run_id)
ORDER BY ALL
"""


def pooled_numbers(results: Results, run_ids: Sequence[str]) -> dict[str, Number]:
    """By name, those of whole games; what needs more than verdicts and confidences is left out.

    Raises:
        LeaderboardError: the board is damaged.
    """
    rows = results.board.query(_GAMES, [list(run_ids)])[1]
    return {number.metric: number for number in _numbers(*zip(*rows, strict=True))} if rows else {}


def pooled_curves(results: Results, run_ids: Sequence[str]) -> dict[str, list[Bin]]:
    """The reliability curve of each kind of confidence that the games of several runs have together.

    Raises:
        LeaderboardError: the board is damaged.
    """
    rows = results.board.query(_GAMES, [list(run_ids)])[1]
    if not rows:
        return {}
    _, groups, labels, _, _, _, *told, _ = zip(*rows, strict=True)
    names, clusters = np.unique(np.array(groups), return_inverse=True)
    found = {}
    for kind, column in zip(KINDS, told, strict=True):
        p = np.array(column)
        known = ~np.isnan(p)
        if known.any():
            found[kind] = list(Forecasts(p[known], np.array(labels)[known], clusters[known], len(names)).curve)
    return found


def _numbers(*columns: Sequence[Any]) -> Iterator[Number]:
    ids, groups, labels, decisions, stances, swapped, *told, notes = columns
    points = np.unique(np.array(ids), return_inverse=True)[1]
    names, clusters = np.unique(np.array(groups), return_inverse=True)
    verdicts = Verdicts(
        np.array(labels), np.array(decisions), points, clusters, len(names), len(names) < len(set(ids)),
        _if_any(stances), _if_any(swapped),
    )  # fmt: skip
    plays = np.bincount(points)
    lowest = float((np.bincount(points, weights=verdicts.right) / plays).min())
    told_of, reason = worst_datapoint(lowest, int(plays.min()))
    yield Number("worst_datapoint_accuracy", told_of, None, None, None, len(points), len(plays), reason)
    yield from verdict_numbers(verdicts)
    if verdicts.stances is not None or verdicts.swapped is not None:
        yield from block_numbers(verdicts.where(verdicts.whole_blocks), None)
    for kind, column in zip(KINDS, told, strict=True):
        p = np.array(column)
        known = ~np.isnan(p)
        if not known.any():
            continue
        bounds = (0.0, 0.0) if kind == "stated" else bound_shares(p, np.array([is_bound(note) for note in notes]))
        forecasts = Forecasts(p[known], verdicts.labels[known], clusters[known], len(names))
        yield from forecast_numbers(forecasts, kind, bounds)
        if kind == "logprob":
            disagreed = np.where(verdicts.decisions == 1, p < 0.5, p > 0.5)
            if (found := verdicts.of(disagreed, known & (verdicts.decisions != NONE))) is not None:
                yield proportion("confidence_disagreement", found)


def _if_any(column: Sequence[int]) -> Any:
    values = np.array(column)
    return None if (values == UNSET).all() else values
