"""Compare the ratings of two players of a tournament, for `nip-run compare TOURNAMENT --players A B`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError, UsageError
from runner.base.text import comma_join, did_you_mean
from runner.cli.terminal.output import print_json, print_table, say, say_wrapped

if TYPE_CHECKING:
    from runner.results.comparison.assertions import Assertion
    from runner.results.leaderboard.results_folder import Results

_UNSUPPORTED = ("metric", "by", "baseline", "worst", "margin", "ceiling", "flips")
"""Options of `compare` that have no meaning for two players."""
_ASSERTED_SIDES = {"rating": "overall", "rating.right": "right", "rating.wrong": "wrong"}
"""The names that an assertion may use, with the side of the rating."""


def compare_players(args: argparse.Namespace, results: Results) -> int:
    """Print the differences between the ratings of two players, with intervals, and judge assertions about them.

    Raises:
        UsageError: the run is not a tournament or has no such player, or an option or assertion does not suit players.
        RunError: a file of the tournament is missing or damaged.
    """
    _check_options(args)
    assertions = [_parse(text) for text in args.asserts]
    from runner.results.comparison.assertions import exit_code
    from runner.runs.tournaments.summary import games_of, player_differences

    with unreadable_runs_as_usage_errors(args):
        folder = results.find(args.runs[0])
        if not folder.manifest().is_tournament:
            raise UsageError(f"--players: run {folder.run_id} is not a tournament; name one, or omit --players")
        games = games_of(folder)
    _check_players(args.players, games.plan.players, folder.run_id)
    first, second = args.players
    rows = player_differences(games, first, second)
    by_side = {row["side"]: row for row in rows}
    judged = {}
    for assertion in assertions:
        row = by_side[_ASSERTED_SIDES[assertion.metric]]
        judged[assertion] = assertion.judge(row["ci_low"], row["ci_high"])
    code = exit_code(judged.values())
    if args.json:
        asserted = [{"assertion": assertion.text, "held": result} for assertion, result in judged.items()]
        differences = {"run_id": folder.run_id, "players": [first, second], "differences": rows}
        print_json({**differences, "asserted": asserted, "exit_code": int(code)})
        return code
    _print_differences(first, second, rows)
    for assertion, result in judged.items():
        say(f"{result}: {assertion.text}   ({first} minus {second})")
    return code


@contextmanager
def unreadable_runs_as_usage_errors(args: argparse.Namespace) -> Iterator[None]:
    """Raise the error of an unreadable run as `UsageError` if there are assertions; code 1 means that one fails."""
    try:
        yield
    except (RunError, OSError) as error:
        if args.asserts:
            raise UsageError(f"the assertions were not judged, because a run cannot be read: {error}") from error
        raise


def _check_options(args: argparse.Namespace) -> None:
    """Check that the options of `compare` suit two players.

    Raises:
        UsageError: an option compares runs, or several runs are named.
    """
    if len(args.runs) != 1:
        raise UsageError("--players compares two players of one tournament; name one run")
    for option in _UNSUPPORTED:
        if getattr(args, option) not in (None, False):
            raise UsageError(f"--{option} compares runs, not players; omit --{option} or --players")


def _check_players(names: Sequence[str], players: Collection[str], run_id: str) -> None:
    """Check that two names are different players of a tournament.

    Raises:
        UsageError: they are not.
    """
    for name in names:
        if name not in players:
            hint = did_you_mean(name, players) or f"; its players are {comma_join(players)}"
            raise UsageError(f"--players: {run_id} has no player {name!r}{hint}")
    if len(set(names)) == 1:
        raise UsageError(f"--players: {names[0]} is named twice; name two different players")


def _print_differences(first: str, second: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print the differences between two players' ratings; the first row is the overall rating."""
    from runner.cli.terminal.tournament_tables import SIDE_TITLES
    from runner.results.ratings_text import format_elo
    from runner.statistics.significance import ALPHA

    say_wrapped(_verdict(first, second, rows[0], ALPHA))
    cells = [(SIDE_TITLES[row["side"]], format_elo(row), "" if row["p"] is None else f"{row['p']:.2g}") for row in rows]
    print_table(("rating", f"{first} - {second} [95%]", "p"), cells, title="differences in Elo points")


def _parse(text: str) -> Assertion:
    from runner.results.comparison.assertions import parse_assertion

    assertion = parse_assertion(text)
    if assertion.metric not in _ASSERTED_SIDES or not assertion.against_base:
        raise UsageError(
            f"--assert: {text}: with --players, an assertion compares {comma_join(_ASSERTED_SIDES)} of the first "
            "player with `base`, the second player, such as 'rating >= base + 50'"
        )
    return assertion


def _verdict(first: str, second: str, row: dict[str, Any], level: float) -> str:
    if row["value"] is None or row["p"] is None:
        return f"{first} and {second} cannot be compared: {row['reason']}"
    if row["p"] >= level:
        return f"no difference detected between {first} and {second}"
    better, worse = (first, second) if row["value"] > 0 else (second, first)
    return f"{better} is better than {worse}"
