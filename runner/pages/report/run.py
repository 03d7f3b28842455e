"""The page of one run: what was played, what it came to, what went wrong, and all of its games and trees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from runner.game.protocols.protocol import Protocol
from runner.pages.charts.protocol import protocol_picture
from runner.pages.html import rendered
from runner.pages.numbers import count
from runner.pages.packing import packed
from runner.pages.report.games import games_of
from runner.pages.report.run_facts import AgentModel, OriginFact, agent_models, commands, hashes, origin
from runner.pages.report.run_games import Gathered, RunGames
from runner.pages.report.run_numbers import (
    GameTables,
    Headline,
    MetricTables,
    ReliabilityView,
    first_row,
    games_number,
    headline,
    metric_tables,
    reliability_views,
)
from runner.pages.report.run_problems import Link, ProblemView, problem_views
from runner.pages.report.run_state import missing_rows, state, summary
from runner.pages.report.run_trees import TreesView
from runner.pages.site import Keep, Section
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.notes import Notes
from runner.runs.finished.problems import FILE
from runner.runs.finished.problems import load_problems as problems_of_run
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


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The content that pages of benchmark runs and of training runs share."""

    run_id: str
    is_titled: bool
    """Whether the name of the run stands above, because the page has the title of several."""
    summary: str
    state: Sequence[str]
    headline: Sequence[Headline]
    problems: Sequence[ProblemView]
    models: Sequence[AgentModel]
    commands: Sequence[tuple[str, str]]
    origin: Sequence[OriginFact]
    hashes: Sequence[tuple[str, str]]
    links: Sequence[Link] = ()

    @property
    def level(self) -> int:
        """The level of the headings."""
        return 3 if self.is_titled else 2


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The content of `run.html`."""

    run: RunFacts
    protocol: Protocol
    picture: Markup
    metrics: MetricTables | None
    reliability: Sequence[ReliabilityView]
    games: GameTables | None
    examples: Sequence[tuple[str, Sequence[Link]]]
    trees: TreesView | None
    first: Sequence[Mapping[str, Any]]
    count: int


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
    told, found = games.told, games.about["count"]
    metrics = read_metrics(folder) or (None if told is None else told.metrics)
    number = games_number(manifest, metrics, found, is_part=games.is_part, is_lost=games.problem is not None)
    is_kept = (folder.path / FILE).is_file() or told is None
    troubles = problems_of_run(folder) if is_kept or told is None else told.troubles
    run = RunFacts(
        run_id=manifest.run_id,
        is_titled=len(here) > 1,
        summary=summary(manifest),
        state=state(folder, plan, manifest, games, missing, metrics=metrics, tells_source=has_commands),
        headline=headline(manifest, metrics, number, None if told is None else told.so_far),
        problems=problem_views((manifest.run_id, trouble) for trouble in troubles),
        models=agent_models(plan),
        commands=commands(folder, manifest) if has_commands else [],
        origin=origin(manifest, here),
        hashes=hashes(manifest),
        links=_links(manifest.run_id, games),
    )
    view = RunView(
        run=run,
        protocol=plan.spec.protocol,
        picture=protocol_picture(plan.spec.protocol, key=f"protocol-{manifest.run_id}"),
        metrics=None if metrics is None else metric_tables(metrics),
        reliability=[] if metrics is None else reliability_views(manifest.run_id, metrics),
        games=None if told is None else told.tables,
        examples=() if told is None else told.examples,
        trees=None if told is None else told.trees,
        first=[first_row(row) for row in games.first],
        count=found,
    )
    about = {"slug": slug, **_about(manifest, plan.spec.protocol), **games.about}
    section = Section(f"run/{manifest.run_id}", rendered("run.html", view))
    return RunPage(folder, manifest, section, about, metrics, found, 0 if told is None else told.tree_count)


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


def _links(run_id: str, games: Gathered) -> list[Link]:
    """Return links to what else the site has of a run."""
    at, told, notes = f"#/run/{quote(run_id, safe='')}", games.told, games.about.get("notes") or 0
    links = [Link(f"{at}/games", f"Games ({count(games.about['count'])})")] if games.about["count"] else []
    if told is not None and told.tree_count:
        links.append(Link(f"{at}/trees", f"Trees ({count(told.tree_count)})"))
    return [*links, *([Link(f"{at}/games?only=noted", f"Notes ({count(notes)})")] if notes else [])]


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
