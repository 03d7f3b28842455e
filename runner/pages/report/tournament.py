"""The page of a tournament: ratings, effects, the cross table and the pairings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from markupsafe import Markup

from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.rows import forest
from runner.pages.charts.styles import ChartFrame
from runner.pages.html import render_template
from runner.pages.numbers import count, dollars, elapsed
from runner.pages.report.run import RunFacts, RunPage
from runner.pages.report.run_facts import AgentModel, agent_models
from runner.pages.report.run_problems import problem_views
from runner.pages.report.run_state import why_stopped
from runner.pages.site import Section
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.results.ratings_text import cross_table, effect_lines, format_elo, note_lines, ratings_by_player
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.stored_problems import collect_problems
from runner.runs.tournaments.plan import TournamentPlan
from runner.runs.tournaments.summary import read_tournament


class RatingRow(NamedTuple):
    """The ratings of a player as text."""

    player: str
    overall: str
    right: str
    wrong: str
    games: int


@dataclass(frozen=True, kw_only=True)
class TournamentView:
    """The content of `tournament.html`."""

    run: RunFacts
    here: Collection[str]
    """Ids of the runs on the site."""
    picture: Markup | None
    ratings: Sequence[RatingRow]
    remarks: Sequence[str]
    players: Sequence[str]
    cross_table: Sequence[tuple[str, Sequence[str]]]
    pairings: Sequence[Mapping[str, Any]]


def tournament_page(folder: RunFolder, here: Collection[str], *, titled: bool, has_commands: bool = True) -> RunPage:
    """Return the page of a tournament; `here` has the ids of the runs on the site, `titled` is `RunFacts.is_titled`.

    Raises:
        RunError, JournalError, SpecError: a file of the run or of a part is missing or damaged.
    """
    manifest, plan = folder.manifest(), TournamentPlan(saved_plan(folder).spec)
    metrics, parts = read_tournament(folder, manifest), Results.of(folder).parts_of(folder.run_id)
    players, cells = cross_table(metrics)
    is_running = manifest.status == Status.RUNNING
    state = ["The tournament is still running; the page shows the results so far."] if is_running else []
    run = replace(
        RunFacts.from_manifest(folder, here, titled=titled, has_commands=has_commands),
        state=[*state, *why_stopped(folder, manifest)],
        headline=_headline(manifest, metrics),
        problems=problem_views(collect_problems(folder, parts)),
        models=_player_models(plan),
    )
    view = TournamentView(
        run=run,
        here=here,
        picture=_picture(folder.run_id, metrics),
        ratings=list(_rating_rows(metrics)),
        remarks=[*effect_lines(metrics, full=True), *note_lines(metrics)],
        players=players,
        cross_table=list(zip(players, cells, strict=True)),
        pairings=metrics["pairings"],
    )
    section = Section(f"run/{manifest.run_id}", render_template("tournament.html", view))
    return RunPage(folder, manifest, section, metrics=metrics, games=metrics["games"]["rollouts"])


def _headline(manifest: Manifest, metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    games, duration = metrics["games"], elapsed(manifest.started_at, manifest.finished_at)
    return [
        ("Players", count(len(ratings_by_player(metrics))), ""),
        ("Games", count(games["rollouts"]), f"{count(games['completions'])} calls"),
        ("Cost", dollars(games["cost_usd"]), ""),
        *([("Time", duration, "")] if duration else []),
    ]


def _player_models(plan: TournamentPlan) -> list[AgentModel]:
    """Return the models of the players and judges."""
    agents = plan.spec.experiment.agents
    seat, judge = agents[plan.seats[0]], agents[plan.spec.protocol.verifier_names[0]]
    by_name = {name: replace(seat, model=player.model) for name, player in plan.tournament.players.items()}
    by_name |= {f"judge {name}": replace(judge, model=group) for name, group in plan.judges_with_groups}
    return agent_models(plan.games, by_name)


def _picture(run_id: str, metrics: Mapping[str, object]) -> Markup | None:
    """Draw the ratings of each player for both sides; None without ratings."""
    titles = {"right": "arguing right", "wrong": "arguing wrong"}
    estimates = [
        ChartEstimate.of(f"{player}, {titles[side]}", rows[side])
        for player, rows in ratings_by_player(metrics).items()
        for side in titles
        if rows[side]["value"] is not None
    ]
    title = "Ratings by side in Elo points"
    return forest(estimates, ChartFrame(title, key=f"ratings-{run_id}"), reference=0.0) if estimates else None


def _rating_rows(metrics: Mapping[str, object]) -> list[RatingRow]:
    return [
        RatingRow(
            player,
            format_elo(rows["overall"]),
            format_elo(rows["right"]),
            format_elo(rows["wrong"]),
            rows["overall"]["n"],
        )
        for player, rows in ratings_by_player(metrics).items()
    ]
