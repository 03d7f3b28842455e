"""Texts about the results of a tournament, which the terminal and the pages share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.base.text import comma_join, in_one_line

_LEVEL = 0.05
AVERAGED = "ratings are averages over datapoints: they predict win rates over datapoints like those of this dataset"


def ratings_by_player(metrics: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the rows of the ratings by player and side, best player first."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in metrics["ratings"]:
        rows.setdefault(in_one_line(row["player"]), {})[row["side"]] = row
    return rows


def format_elo(row: Mapping[str, Any]) -> str:
    """Format a number of Elo points with its interval, such as `+83 [12; 154]`."""
    if row["value"] is None:
        return "-"
    interval = "" if row["ci_low"] is None else f" [{round(row['ci_low']):+d}; {round(row['ci_high']):+d}]"
    return f"{round(row['value']):+d}{interval}"


def cross_table(metrics: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the players, and a table of `wins/games` of each player against each other over all judges."""
    players = list(ratings_by_player(metrics))
    wins: dict[tuple[str, str], int] = {}
    for row in metrics["pairings"]:
        for player, other, won in (("first", "second", "first_won"), ("second", "first", "second_won")):
            key = in_one_line(row[player]), in_one_line(row[other])
            wins[key] = wins.get(key, 0) + row[won]

    def cell(player: str, other: str) -> str:
        won, lost = wins.get((player, other), 0), wins.get((other, player), 0)
        return f"{won}/{won + lost}" if won + lost else ""

    return players, [[cell(player, other) for other in players] for player in players]


def effect_lines(metrics: Mapping[str, Any], *, full: bool) -> list[str]:
    """Return lines about the advantage of the right side and of the first seat; with `full`, by judge and player."""
    lines = []
    for row in metrics["effects"]:
        if row["value"] is None or (row["of"] is not None and not full):
            continue
        if row["effect"] == "right_side":
            low_high = "" if row["ci_low"] is None else f" [{row['ci_low']:.2f}; {row['ci_high']:.2f}]"
            of = "" if row["of"] is None else f" with judge {in_one_line(row['of'])}"
            lines.append(f"the right side wins{of}: {row['value']:.2f}{low_high} of games between average players")
        else:
            of = "on average" if row["of"] is None else f"of {in_one_line(row['of'])}"
            lines.append(f"advantage of the first seat {of}: {format_elo(row)} Elo points")
    return lines


def note_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return lines about games that no rating uses, and about the test of intransitivity."""
    undecided, unlabeled = (sum(row[key] for row in metrics["pairings"]) for key in ("undecided", "unlabeled"))
    counts = [f"{undecided} without a verdict (undecided, or lost in transport)"] if undecided else []
    counts += [f"{unlabeled} about datapoints without a label"] if unlabeled else []
    lines = [f"games that no rating uses: {comma_join(counts)}"] if counts else []
    if any(row["value"] is not None for row in metrics["ratings"]):
        lines.insert(0, AVERAGED)
    return [*lines, describe_intransitivity(metrics["intransitivity"])]


def describe_intransitivity(result: Mapping[str, Any]) -> str:
    """Describe the result of the test of intransitivity."""
    if result["p"] is None:
        return f"intransitivity: not tested ({result['reason']})"
    if result["p"] >= _LEVEL:
        return f"intransitivity: no circle of players detected (p = {result['p']:.2g})"
    first, second, third = map(in_one_line, result["triple"])
    return (
        f"intransitivity: {first} beats {second}, {second} beats {third}, and {third} beats {first} more often than "
        f"their ratings explain (p = {result['p']:.2g}); a single rating does not describe these players"
    )
