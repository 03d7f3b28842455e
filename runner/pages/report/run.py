"""The page of one run: what was played, what it came to, what went wrong, and all of its games and trees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from runner.game.protocols.protocol import Protocol
from runner.pages.charts.protocol import protocol_picture
from runner.pages.charts.reliability import ReliabilityBins
from runner.pages.charts.reliability import reliability as reliability_picture
from runner.pages.html import rendered
from runner.pages.numbers import count
from runner.pages.packing import packed
from runner.pages.report.games import games_of
from runner.pages.report.run_facts import commands, hashes, models, origin, played
from runner.pages.report.run_games import Gathered, RunGames
from runner.pages.report.run_numbers import first_row, games_number, headline, metrics_table, reliability
from runner.pages.report.run_problems import of_run
from runner.pages.report.run_state import missing_rows, state, summary
from runner.pages.site import Keep, Section
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.notes import Notes
from runner.rollouts.plan import Plan
from runner.runs.finished.problems import FILE, troubles_of
from runner.runs.finished.reconstruction import saved_plan


@dataclass(frozen=True)
class RunPage:
    """A run's page, what the script is told of it, and what a list of runs says of it."""

    folder: RunFolder
    manifest: Manifest
    section: Section
    about: Mapping[str, Any] | None = None
    """None of a training run, whose games are those of its parts."""
    metrics: Mapping[str, Any] | None = None
    games: int = 0
    trees: int = 0


Gather = Callable[[RunFolder, str], Gathered]
"""Finds the games of a run, whose pieces have this slug in their names."""


def run_page(
    folder: RunFolder, slug: str, here: Collection[str], gather: Gather, *, has_commands: bool = True
) -> RunPage:
    """The page of a run that plays games; `here` are the runs that the site has.

    Raises:
        RunError, JournalError, SpecError, ReleaseError: a file of the run is gone or damaged.
    """
    manifest, missing = folder.manifest(), missing_rows(folder)
    plan = saved_plan(folder, None if missing is None else missing.given)
    games = gather(folder, slug)
    metrics = read_metrics(folder) or (None if games.told is None else games.told.metrics)
    number = games_number(
        manifest, metrics, games.about["count"], is_part=games.is_part, is_lost=games.problem is not None
    )
    about = {"slug": slug, **_about(manifest, plan.spec.protocol), **games.about}
    told = games.told
    facts = {
        **shared_facts(folder, manifest, here, titled=len(here) > 1, has_commands=has_commands),
        **_plan_facts(plan, manifest),
        **_game_facts(folder, manifest, games, metrics),
        "state": state(folder, plan, manifest, games, missing, metrics=metrics, tells_source=has_commands),
        "headline": headline(manifest, metrics, number, None if told is None else told.so_far),
    }
    section = Section(f"run/{manifest.run_id}", rendered("run.html", facts))
    return RunPage(
        folder, manifest, section, about, metrics, games.about["count"], 0 if told is None else told.tree_count
    )


def gathered(folder: RunFolder, slug: str, keep: Keep) -> Gathered:
    """All finished games of a run, its trees, and the notes of it, kept as they come. Raises as `run_page`."""
    missing = missing_rows(folder)
    given = None if missing is None else missing.given
    found = RunGames(saved_plan(folder, given), folder.run_id, slug, keep, measures=not folder.metrics.is_file())
    if folder.journal.is_file():
        for game in games_of(folder, given):
            found.add(game)
    notes = Notes(folder).all()
    if notes:
        keep(notes_name(slug), packed([note.to_json() for note in notes]))
    games = found.gathered()
    return replace(games, about={**games.about, "notes": len(notes)})


def notes_name(slug: str) -> str:
    """The name of the piece that has the notes of a run."""
    return f"{slug}-notes"


def read_metrics(folder: RunFolder) -> Mapping[str, Any] | None:
    """The metrics of a run that was played to its end.

    Raises:
        RunError: the file is damaged.
    """
    found: Mapping[str, Any] | None = folder.read_metrics() if folder.metrics.is_file() else None
    return found


def shared_facts(
    folder: RunFolder, manifest: Manifest, here: Collection[str], *, titled: bool, has_commands: bool = True
) -> dict[str, Any]:
    """What the pages of runs of every kind say; `titled`: under the run's name, since the page's title is another."""
    return {
        "run_id": manifest.run_id,
        "titled": titled,
        "level": 3 if titled else 2,
        "summary": summary(manifest),
        "origin": origin(manifest, here),
        "hashes": hashes(manifest),
        "commands": commands(folder, manifest) if has_commands else [],
    }


def _plan_facts(plan: Plan, manifest: Manifest) -> dict[str, Any]:
    return {
        "played": played(plan.spec.protocol),
        "picture": protocol_picture(plan.spec.protocol, key=f"protocol-{manifest.run_id}"),
        "models": models(plan),
    }


def _game_facts(
    folder: RunFolder, manifest: Manifest, games: Gathered, metrics: Mapping[str, Any] | None
) -> dict[str, Any]:
    run_id, told = manifest.run_id, games.told
    is_kept = (folder.path / FILE).is_file() or told is None
    troubles = troubles_of(folder) if is_kept or told is None else told.troubles
    curves = [] if metrics is None else reliability(metrics)
    return {
        "count": games.about["count"],
        "links": _links(run_id, games),
        "metrics": None if metrics is None else metrics_table(metrics),
        "reliability": [{**one, "picture": _curve(run_id, one)} for one in curves],
        "troubles": of_run(run_id, troubles),
        "examples": [] if told is None else told.examples,
        "games": None if told is None else told.tables,
        "trees": None if told is None else told.trees,
        "first": [first_row(row) for row in games.first],
    }


def _links(run_id: str, games: Gathered) -> list[dict[str, str]]:
    """What else the site has of a run."""
    at, told, notes = f"#/run/{quote(run_id, safe='')}", games.told, games.about.get("notes") or 0
    links = [{"href": f"{at}/games", "text": f"Games ({count(games.about['count'])})"}] if games.about["count"] else []
    if told is not None and told.tree_count:
        links.append({"href": f"{at}/trees", "text": f"Trees ({count(told.tree_count)})"})
    return [*links, *([{"href": f"{at}/games?only=noted", "text": f"Notes ({count(notes)})"}] if notes else [])]


def _curve(run_id: str, one: Mapping[str, Any]) -> Any:
    judge = ReliabilityBins(one["title"], one["bins"])
    return reliability_picture([judge], title=f"Confidence {one['title']}", key=f"{one['kind']}-{run_id}")


def _about(manifest: Manifest, protocol: Protocol) -> dict[str, Any]:
    names = protocol.agent_names
    members = {
        channel: [name for name in names if channel in protocol.visible_channels(name)]
        for channel in protocol.channel_names
    }
    return {
        "run_id": manifest.run_id,
        "agents": [
            {
                "name": name,
                "verifier": name == protocol.verifier_name,
                "channels": list(protocol.visible_channels(name)),
            }
            for name in names
        ],
        "channels": [
            {"name": channel, "members": heard, "private": len(heard) < len(names)}
            for channel, heard in members.items()
        ],
    }
