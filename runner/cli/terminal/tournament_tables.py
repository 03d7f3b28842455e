"""Print a tournament: the ratings of its players, the effects of side and seat, the cross table, and the pairings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.base.text import comma_join, in_one_line
from runner.cli.terminal.output import describe_usage, print_table, say, say_wrapped
from runner.results.ratings_text import cross_table, effect_lines, format_elo, note_lines, ratings_by_player

SIDE_TITLES = {"overall": "rating", "right": "arguing right", "wrong": "arguing wrong"}


def show_tournament(metrics: Mapping[str, Any], *, full: bool = False) -> None:
    """Print the ratings and the cross table of a tournament; with `full`, also its effects by player and pairings."""
    print_table(
        ("player", *(f"{title} [95%]" for title in SIDE_TITLES.values()), "games"),
        [
            (player, *(format_elo(rows[side]) for side in SIDE_TITLES), rows["overall"]["n"])
            for player, rows in ratings_by_player(metrics).items()
        ],
        title="Elo points above the average player",
    )
    reasons = dict.fromkeys(row["reason"] for row in metrics["ratings"] if row["reason"])
    for reason in reasons:
        say_wrapped(f"without value or interval: {reason}")
    say()
    players, cells = cross_table(metrics)
    if any(cell for row in cells for cell in row):
        rows = [(name, *row) for name, row in zip(players, cells, strict=True)]
        print_table(("player", *players), rows, title="wins of the row's player against the column's, of decided games")
        say()
    for line in (*effect_lines(metrics, full=full), *note_lines(metrics)):
        say_wrapped(line)
    games = metrics["games"]
    say_wrapped(f"games: {games['rollouts']}, {describe_usage(games['completions'], games['cost_usd'])}")
    if full:
        say()
        _show_pairings(metrics["pairings"])


def _show_pairings(pairings: Sequence[Mapping[str, Any]]) -> None:
    columns = ("pairing", "players", "judge", "games", "won", "right side won", "no verdict", "runs")
    rows = [
        (
            row["pairing"],
            in_one_line(f"{row['first']} - {row['second']}"),
            in_one_line(row["judge"]),
            row["games"],
            f"{row['first_won']} - {row['second_won']}",
            row["right_won"],
            row["undecided"],
            comma_join(row["runs"]),
        )
        for row in pairings
    ]
    print_table(columns, rows)
