"""The page of a run: the protocol, results, problems, games and trees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import quote

from markupsafe import Markup

from runner.game.protocols.protocol import Protocol
from runner.pages.charts.protocol import protocol_picture
from runner.pages.html import render_template
from runner.pages.numbers import count
from runner.pages.packing import compress_json
from runner.pages.report.games import games_of
from runner.pages.report.run_analyses import AnalysisRow, analyses_data, analyses_name, analysis_rows
from runner.pages.report.run_facts import AgentModel, OriginFact, agent_models, commands, hashes, origin
from runner.pages.report.run_games import CollectedGames, RunGames
from runner.pages.report.run_numbers import (
    GameRow,
    GameTables,
    Headline,
    MetricTables,
    MonitorView,
    ReliabilityView,
    games_number,
    headline,
    metric_tables,
    monitor_views,
    reliability_views,
)
from runner.pages.report.run_problems import Link, ProblemView, problem_views
from runner.pages.report.run_state import missing_rows, state_sentences, summary
from runner.pages.report.trees import TreesView
from runner.pages.site import Section, StorePiece
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.notes import Notes
from runner.rollouts.plan import Plan
from runner.runs.finished.reconstruction import check_played, saved_plan
from runner.runs.finished.stored_problems import load_problems as problems_of_run


@dataclass(frozen=True)
class RunPage:
    """A run's page, the data for the script, and facts for lists of runs."""

    folder: RunFolder
    manifest: Manifest
    section: Section
    about: Mapping[str, Any] | None = None
    """Facts that the script reads first; None for a training run, because its parts have the games."""
    metrics: Mapping[str, Any] | None = None
    games: int = 0
    trees: int = 0


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The content that the pages of benchmark runs, training runs and tournaments share."""

    run_id: str
    is_titled: bool
    """Whether the page has the run's name as a heading. It needs one if the site has several runs."""
    summary: str
    commands: Sequence[tuple[str, str]]
    origin: Sequence[OriginFact]
    hashes: Sequence[tuple[str, str]]
    state: Sequence[str] = ()
    headline: Sequence[Headline] = ()
    problems: Sequence[ProblemView] = ()
    models: Sequence[AgentModel] = ()
    links: Sequence[Link] = ()

    @classmethod
    def from_manifest(cls, folder: RunFolder, here: Collection[str], *, titled: bool, has_commands: bool) -> Self:
        """Return the content that the run's manifest has. The caller adds the other content."""
        manifest = folder.manifest()
        return cls(
            run_id=manifest.run_id,
            is_titled=titled,
            summary=summary(manifest),
            commands=commands(folder, manifest) if has_commands else [],
            origin=origin(manifest, here),
            hashes=hashes(manifest),
        )

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
    monitors: Sequence[MonitorView]
    games: GameTables | None
    examples: Sequence[tuple[str, Sequence[Link]]]
    trees: TreesView | None
    first: Sequence[GameRow]
    count: int
    analyses: Sequence[AnalysisRow]


GameCollector = Callable[[RunFolder, str, Plan], CollectedGames]
"""Returns the games of a run, given its folder, slug and saved plan; the names of their pieces begin with the slug."""


def run_page(
    folder: RunFolder, slug: str, here: Collection[str], collect: GameCollector, *, has_commands: bool = True
) -> RunPage:
    """Return the page of a run that plays games; `here` has the ids of all runs on the site.

    Raises:
        RunError, JournalError, SpecError, ReleaseError: a file of the run is missing or damaged.
    """
    manifest, missing = folder.manifest(), missing_rows(folder)
    plan = saved_plan(folder, None if missing is None else missing.dataset, trusts_manifest=True)
    games = collect(folder, slug, plan)
    results, game_count = games.results, games.about["count"]
    recorded_metrics = folder.read_metrics() if folder.metrics.is_file() else None
    metrics = recorded_metrics or (None if results is None else results.metrics)
    number = games_number(manifest, metrics, game_count, is_part=games.is_part, is_lost=games.problem is not None)
    has_file = folder.problems_path.is_file()
    problems = problems_of_run(folder) if results is None or has_file else results.problems
    run = replace(
        RunFacts.from_manifest(folder, here, titled=len(here) > 1, has_commands=has_commands),
        state=state_sentences(folder, plan, manifest, games, missing, metrics=metrics, tells_source=has_commands),
        headline=headline(manifest, metrics, number, None if results is None else results.so_far),
        problems=problem_views((manifest.run_id, problem) for problem in problems),
        models=agent_models(plan),
        links=_links(manifest.run_id, games),
    )
    view = RunView(
        run=run,
        protocol=plan.spec.protocol,
        picture=protocol_picture(plan.spec.protocol, key=f"protocol-{manifest.run_id}"),
        metrics=None if metrics is None else metric_tables(metrics),
        reliability=[] if metrics is None else reliability_views(manifest.run_id, metrics),
        monitors=[] if metrics is None else monitor_views(manifest.run_id, metrics),
        games=None if results is None else results.tables,
        examples=() if results is None else results.examples,
        trees=None if results is None else results.trees,
        first=[GameRow.from_row(row) for row in games.first],
        count=game_count,
        analyses=analysis_rows(folder),
    )
    about = {"slug": slug, **_about(manifest, plan.spec.protocol), **games.about}
    section = Section(f"run/{manifest.run_id}", render_template("run.html", view))
    return RunPage(folder, manifest, section, about, metrics, game_count, 0 if results is None else results.tree_count)


def collect_games(folder: RunFolder, slug: str, store_piece: StorePiece, plan: Plan | None = None) -> CollectedGames:
    """Read all finished games, trees, notes and analyses of a run, and store their data. Raises as `run_page`.

    `plan` is the result of `saved_plan`, if known.
    """
    missing = missing_rows(folder)
    known_data = None if missing is None else missing.dataset
    has_games = folder.journal.is_file()
    plan = plan or saved_plan(folder, known_data, trusts_manifest=True)
    if has_games:
        check_played(folder, plan)
    run_games = RunGames(plan, folder.run_id, slug, store_piece, measures=not folder.metrics.is_file())
    if has_games:
        for game in games_of(folder, known_data, plan):
            run_games.add(game)
    notes = Notes(folder).all()
    if notes:
        store_piece(notes_name(slug), compress_json([note.to_json() for note in notes]))
    if answers := analyses_data(folder):
        store_piece(analyses_name(slug), compress_json(answers))
    games = run_games.collect()
    return replace(games, about={**games.about, "notes": len(notes), "analyses": len(answers)})


def notes_name(slug: str) -> str:
    """Return the name of the piece with the notes of a run."""
    return f"{slug}-notes"


def _links(run_id: str, games: CollectedGames) -> list[Link]:
    """Return links to a run's games, trees and notes."""
    base, results, notes = f"#/run/{quote(run_id, safe='')}", games.results, games.about.get("notes") or 0
    links = [Link(f"{base}/games", f"Games ({count(games.about['count'])})")] if games.about["count"] else []
    if results is not None and results.tree_count:
        links.append(Link(f"{base}/trees", f"Trees ({count(results.tree_count)})"))
    return [*links, *([Link(f"{base}/games?only=noted", f"Notes ({count(notes)})")] if notes else [])]


def _about(manifest: Manifest, protocol: Protocol) -> dict[str, object]:
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
                "known_as": protocol.chat_name(name),
                "verifier": name in protocol.verifier_names,
                "channels": list(protocol.visible_channels(name)),
            }
            for name in names
        ],
        "channels": [
            {"name": channel, "members": listeners, "private": len(listeners) < len(names)}
            for channel, listeners in members.items()
        ],
    }
