"""Compute metrics over all games of several runs from the board."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from runner.results.estimates import Estimate, estimates_of
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import CONFIDENCE_KINDS, Source
from runner.results.verdict_columns import GameColumns
from runner.rollouts.confidence import is_bound
from runner.statistics.calibration import Bin
from runner.statistics.verdicts import NONE, UNSET, Verdicts

_GAMES_SQL = f"""
SELECT r.datapoint_id, coalesce(d."group", r.datapoint_id), coalesce(r.y, {UNSET}),
    CASE WHEN r.outcome = 'decided' THEN r.decision ELSE {NONE} END,
    CASE WHEN u.spec ->> '$.stances' = 'both' THEN coalesce(r.stance, {UNSET}) ELSE {UNSET} END,
    coalesce(r.swapped::INTEGER, {UNSET}), coalesce(r.stances_exchanged::INTEGER, {UNSET}),
    coalesce(r.confidence_stated, 'nan'::DOUBLE),
    coalesce(r.confidence_logprob, 'nan'::DOUBLE), r.confidence_note, u.spec ->> '$.verdict.confidence'
FROM rollouts r
JOIN runs u ON u.run_id = r.run_id
LEFT JOIN datapoints d ON d.run_id = r.run_id AND d.datapoint_id = r.datapoint_id
WHERE r.outcome <> 'transport_failed' AND r.run_id IN (SELECT unnest(?::VARCHAR[]))
ORDER BY ALL
"""


def pooled_estimates(results: Results, run_ids: Sequence[str]) -> dict[str, Estimate]:
    """Return metrics over all games of several runs, by name: those of whole games that the board has the data for.

    Raises:
        LeaderboardError: the board is damaged.
    """
    games = _read_games(results, run_ids)
    return {} if games is None else {estimate.metric: estimate for estimate in _estimates(games)}


def _estimates(games: GameColumns) -> Iterator[Estimate]:
    if games.is_labelled:
        yield from estimates_of(Source.DATAPOINTS, games.verdicts)
        yield from estimates_of(Source.VERDICTS, games.verdicts)
    if games.verdicts.is_played_in_blocks:
        yield from estimates_of(Source.BLOCKS, games.verdicts.select(games.verdicts.whole_blocks), None)
    yield from games.confidence_estimates()


def pooled_curves(results: Results, run_ids: Sequence[str]) -> dict[str, Sequence[Bin]]:
    """Return the reliability curve of each kind of confidence over all games of several runs.

    Raises:
        LeaderboardError: the board is damaged.
    """
    games = _read_games(results, run_ids)
    return {} if games is None else games.reliability_curves()


def _read_games(results: Results, run_ids: Sequence[str]) -> GameColumns | None:
    rows = results.board.query(_GAMES_SQL, [list(run_ids)])[1]
    if not rows:
        return None
    ids, groups, labels, decisions, stances, swapped, exchanged, *confidences, notes, requested = zip(
        *rows, strict=True
    )
    points = np.unique(np.array(ids), return_inverse=True)[1]
    names, clusters = np.unique(np.array(groups), return_inverse=True)
    verdicts = Verdicts(
        np.array(labels), np.array(decisions), points, clusters, len(names), len(names) < len(set(ids)),
        _column_or_none(stances), _column_or_none(swapped), _column_or_none(exchanged),
    )  # fmt: skip
    bound = np.array([is_bound(note) for note in notes])
    columns = {kind: np.array(column) for kind, column in zip(CONFIDENCE_KINDS, confidences, strict=True)}
    confidence_columns = {
        kind: p if not np.isnan(p).all() or {kind, "both"} & set(requested) else None for kind, p in columns.items()
    }
    return GameColumns(verdicts, confidence_columns, bound if bound.any() else None)


def _column_or_none(column: Sequence[int]) -> Any:
    values = np.array(column)
    return None if (values == UNSET).all() else values
