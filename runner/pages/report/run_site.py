"""A site of runs: a page for each, those of a training run's parts too, and an overview where there are several."""

from __future__ import annotations

from collections.abc import Sequence

from runner.pages.report.comparison import compares
from runner.pages.report.games import FORMAT
from runner.pages.report.overview import overview
from runner.pages.report.run import Gather, RunPage, gathered, notes_name, run_page
from runner.pages.report.run_games import FIRST, Gathered
from runner.pages.report.training import training_page
from runner.pages.site import Keep, Site
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results

__all__ = ["FIRST", "Gather", "Gathered", "gathered", "notes_name", "runs_site"]

NAMED = 4
"""Up to so many runs have links of their own in the navigation; more are found in the overview."""


def runs_site(
    folders: Sequence[RunFolder], keep: Keep, gather: Gather | None = None, *, has_commands: bool = True
) -> Site:
    """Runs as a site; their games are kept as they come, or are those that `gather` finds.

    Without `has_commands` nothing tells how a folder is played again, where the page says how to get it.

    A training run brings its parts, which stand after it.

    Raises:
        RunError, JournalError, SpecError, ReleaseError: a file of a run is gone or damaged.
    """

    def kept(folder: RunFolder, slug: str) -> Gathered:
        return gathered(folder, slug, keep)

    every, alone = with_parts(folders), len(_asked(folders)) == 1
    here = {folder.run_id for folder in every}
    made = [
        training_page(folder, here, titled=not alone, has_commands=has_commands)
        if folder.manifest().is_training_run
        else run_page(folder, f"r{at}", here, gather or kept, has_commands=has_commands)
        for at, folder in enumerate(every)
    ]
    sections = [one.section for one in made]
    if len(made) > 1 and not made[0].manifest.is_training_run:
        sections = [overview(made), *sections]
    side_by_side = compares(folders if gather is None else (), keep)
    sections += side_by_side.sections
    runs = [one.about for one in made if one.about]
    about = {"format": FORMAT, "runs": runs, "compares": side_by_side.about, "live": False, "notes": None}
    links = [*_navigation(made), *([side_by_side.entry] if side_by_side.entry else [])]
    return Site(_title(_asked(folders)), links, sections, about)


def with_parts(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """Runs, each training run with its games and tests after it, and none twice."""
    found: dict[str, RunFolder] = {}
    for folder in folders:
        found.setdefault(folder.run_id, folder)
        if folder.manifest().is_training_run:
            for part in Results.of(folder).parts_of(folder.run_id):
                found.setdefault(part.run_id, part)
    return list(found.values())


def _asked(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """Runs without the parts of a training run that is one of them."""
    ids = {folder.run_id for folder in folders}
    return [folder for folder in folders if folder.manifest().parent_run_id not in ids]


def _title(folders: Sequence[RunFolder]) -> str:
    names = [folder.run_id for folder in folders]
    return " · ".join(names) if len(names) <= NAMED else f"{len(names)} runs: {names[0]} and others"


def _navigation(made: Sequence[RunPage]) -> list[tuple[str, str]]:
    if len(made) == 1:
        return _links(made[0], "Summary")
    first = made[0].manifest
    links = [(made[0].section.route, "Training run")] if first.is_training_run else [("runs", "Overview")]
    if len(made) > NAMED:
        return links
    # A run's page leads to its games and trees: the same word once a run would not say where it leads.
    return [*links, *((one.section.route, one.manifest.run_id) for one in made if one.about)]


def _links(one: RunPage, name: str) -> list[tuple[str, str]]:
    route, links = one.section.route, [(one.section.route, name)]
    links += [(f"{route}/games", "Games")] if one.about else []
    return [*links, *([(f"{route}/trees", "Trees")] if one.trees else [])]
