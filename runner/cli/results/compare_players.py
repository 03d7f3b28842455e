"""Compare the ratings of two players of a tournament, for `nip-run compare TOURNAMENT --players A B`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, did_you_mean
from runner.cli.terminal.output import print_json, print_table, say_wrapped

if TYPE_CHECKING:
    from runner.results.leaderboard.results_folder import Results


def compare_players(args: argparse.Namespace, results: Results) -> int:
    """Print the differences between the ratings of two players, with intervals.

    Raises:
        UsageError: the run is not a tournament, or has no such player.
        RunError: a file of the tournament is missing or damaged.
    """
    if len(args.runs) != 1:
        raise UsageError("--players compares two players of one tournament; name one run")
    folder = results.find(args.runs[0])
    if not folder.manifest().is_tournament:
        raise UsageError(f"--players: run {folder.run_id} is not a tournament; name a tournament, or omit --players")
    from runner.runs.tournaments.summary import games_of, player_differences
    from runner.statistics.significance import ALPHA

    games = games_of(folder)
    for name in args.players:
        if name not in games.plan.players:
            hint = did_you_mean(name, games.plan.players) or f"; its players are {comma_join(games.plan.players)}"
            raise UsageError(f"--players: {folder.run_id} has no player {name!r}{hint}")
    first, second = args.players
    if first == second:
        raise UsageError(f"--players: {first} is named twice; name two different players")
    rows = player_differences(games, first, second)
    if args.json:
        print_json({"run_id": folder.run_id, "players": [first, second], "differences": rows})
        return ExitCode.DONE
    from runner.cli.terminal.tournament_tables import SIDE_TITLES
    from runner.results.ratings_text import format_elo

    overall = rows[0]
    say_wrapped(_verdict(first, second, overall, ALPHA))
    cells = [(SIDE_TITLES[row["side"]], format_elo(row), "" if row["p"] is None else f"{row['p']:.2g}") for row in rows]
    print_table(("rating", f"{first} - {second} [95%]", "p"), cells, title="differences in Elo points")
    return ExitCode.DONE


def _verdict(first: str, second: str, row: dict[str, Any], level: float) -> str:
    if row["value"] is None or row["p"] is None:
        return f"{first} and {second} cannot be compared: {row['reason']}"
    if row["p"] >= level:
        return f"no difference detected between {first} and {second}"
    better, worse = (first, second) if row["value"] > 0 else (second, first)
    return f"{better} is better than {worse}"
