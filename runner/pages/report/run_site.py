"""A site of runs: a page for each run and each part of a training run, and an overview if there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.pages.report.games import FORMAT
from runner.pages.report.run import GameCollector, RunPage, collect_games, notes_name, run_page
from runner.pages.report.run_games import MAX_PLAIN_GAMES, CollectedGames
from runner.pages.site import Site, StorePiece
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results

__all__ = ["MAX_PLAIN_GAMES", "CollectedGames", "GameCollector", "collect_games", "notes_name", "runs_site"]

MAX_LINKED = 4
"""Maximum number of runs with links in the navigation. If there are more, only the overview links to them."""


def runs_site(
    folders: Sequence[RunFolder],
    store_piece: StorePiece,
    collect: GameCollector | None = None,
    *,
    has_commands: bool = True,
) -> Site:
    """Return runs as a site, with each training run followed by its parts.

    `collect` returns the games of a run; by default, they are read and stored. `has_commands` adds the commands that
    play or check a run's folder; set it to False if the surrounding page has commands of its own.

    Raises:
        RunError, JournalError, SpecError, ReleaseError: a file of a run is missing or damaged.
    """
    pages = _build_pages(folders, store_piece, collect, has_commands=has_commands)
    sections = [page.section for page in pages]
    links = _navigation(pages)
    compares: Sequence[Mapping[str, Any]] = []
    verdicts: Sequence[tuple[str, str]] = []
    if len(folders) > 1 and collect is None:
        from runner.pages.report.comparison import compare_runs  # not at the top, since it imports NumPy

        side_by_side = compare_runs(folders, store_piece)
        sections += side_by_side.sections
        links += [side_by_side.entry] if side_by_side.entry else []
        compares, verdicts = side_by_side.about, side_by_side.verdicts
    if len(pages) > 1 and not pages[0].manifest.has_parts:
        from runner.pages.report.runs_overview import overview

        sections = [overview(pages, verdicts), *sections]
        links += [("matrix", "Datapoints")] if sum(page.about is not None for page in pages) > 1 else []
    runs = [page.about for page in pages if page.about]
    about = {"format": FORMAT, "runs": runs, "compares": compares, "live": False, "notes": None}
    return Site(_title(_without_parts(folders)), links, sections, about)


def _build_pages(
    folders: Sequence[RunFolder], store_piece: StorePiece, collect: GameCollector | None, *, has_commands: bool
) -> list[RunPage]:
    """Return the pages of runs and of their parts."""
    collect = collect or (lambda folder, slug, plan: collect_games(folder, slug, store_piece, plan))
    all_folders, is_single = with_parts(folders), len(_without_parts(folders)) == 1
    run_ids = {folder.run_id for folder in all_folders}
    pages = []
    for index, folder in enumerate(all_folders):
        manifest = folder.manifest()
        if not manifest.has_parts:
            pages.append(run_page(folder, f"r{index}", run_ids, collect, has_commands=has_commands))
            continue
        from runner.pages.report.tournament import tournament_page
        from runner.pages.report.training import training_page

        page_of = training_page if manifest.is_training_run else tournament_page
        pages.append(page_of(folder, run_ids, titled=not is_single, has_commands=has_commands))
    return pages


def with_parts(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """Return runs without duplicates, each training run and tournament followed by its parts."""
    folders_by_id: dict[str, RunFolder] = {}
    for folder in folders:
        folders_by_id.setdefault(folder.run_id, folder)
        if folder.manifest().has_parts:
            for part in Results.of(folder).parts_of(folder.run_id):
                folders_by_id.setdefault(part.run_id, part)
    return list(folders_by_id.values())


def _without_parts(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """Return runs without the parts of those runs that are also in `folders`."""
    ids = {folder.run_id for folder in folders}
    return [folder for folder in folders if folder.manifest().parent_run_id not in ids]


def _title(folders: Sequence[RunFolder]) -> str:
    names = [folder.run_id for folder in folders]
    return " · ".join(names) if len(names) <= MAX_LINKED else f"{len(names)} runs: {names[0]} and others"


def _navigation(pages: Sequence[RunPage]) -> list[tuple[str, str]]:
    if len(pages) == 1:
        return _links(pages[0], "Summary")
    first = pages[0].manifest
    name = "Tournament" if first.is_tournament else "Training run"
    links = [(pages[0].section.route, name)] if first.has_parts else [("runs", "Overview")]
    if len(pages) > MAX_LINKED:
        return links
    # Link only the pages of runs, because several links named "Games" would be ambiguous.
    return [*links, *((page.section.route, page.manifest.run_id) for page in pages if page.about)]


def _links(page: RunPage, name: str) -> list[tuple[str, str]]:
    route, links = page.section.route, [(page.section.route, name)]
    links += [(f"{route}/games", "Games")] if page.about else []
    return [*links, *([(f"{route}/trees", "Trees")] if page.trees else [])]
