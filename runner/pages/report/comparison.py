"""Two runs side by side: what differs in words and as a forest plot, how verdicts flip, and their games in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from markupsafe import Markup

from runner.base.errors import UsageError
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.rows import forest
from runner.pages.html import rendered
from runner.pages.packing import packed
from runner.pages.site import Keep, Section
from runner.results.comparison.comparison import SystemComparison, by_metrics, notes_of
from runner.results.comparison.game_pairs import GamePair, game_pairs
from runner.results.comparison.paired_test import Flip
from runner.results.comparison.systems import SystemReader
from runner.results.folder import RunFolder
from runner.results.metric_table import METRICS, Show, metrics_shown

EVERY = 4
"""Up to so many runs each is compared with each; of more, the first with every other."""

FLIPS = 20
"""So many flips stand in the page for a browser without JavaScript."""

FORMAT = 1


@dataclass(frozen=True)
class ComparedPages:
    """The pages of two runs side by side."""

    base: str
    other: str
    verdict: str
    section: Section
    about: Mapping[str, Any] | None
    """None where they cannot be compared; the section says why."""


@dataclass(frozen=True)
class ComparisonView:
    """The content of `compare.html`; only `refused` if the runs cannot be compared."""

    names: tuple[str, str]
    route: str
    refused: str | None = None
    verdict: str = ""
    notes: Sequence[str] = ()
    forest: Markup | None = None
    rows: Sequence[SystemComparison] = ()
    crossed: Mapping[str, int] = field(default_factory=dict)
    flips: Sequence[Flip] = ()


@dataclass(frozen=True)
class Compares:
    """What a site has of its runs side by side."""

    sections: Sequence[Section]
    about: Sequence[Mapping[str, Any]]
    entry: tuple[str, str] | None


def compares(folders: Sequence[RunFolder], keep: Keep) -> Compares:
    """Each two of a few runs side by side, of many the first beside every other. Raises as `compare_page`."""
    reading = page_reader()
    made = [
        compare_page(base, other, f"c{place}", keep, reading) for place, (base, other) in enumerate(couples(folders))
    ]
    sections = [one.section for one in made]
    if len(made) > 1:
        pairs = [
            {"base": one.base, "other": one.other, "verdict": one.verdict, "route": one.section.route} for one in made
        ]
        sections = [Section("compare", rendered("compares.html", {"pairs": pairs})), *sections]
    about = [one.about for one in made if one.about is not None]
    return Compares(sections, about, (sections[0].route, "Compare") if sections else None)


def page_reader() -> SystemReader:
    """Return a reader that reads each run once for all the metrics of a page."""
    return SystemReader(metrics=metrics_shown(Show.COMPARISON))


def couples(folders: Sequence[RunFolder]) -> list[tuple[RunFolder, RunFolder]]:
    """Who is compared with whom, of the runs that have games of their own."""
    runs = list({one.run_id: one for one in folders if not one.manifest().is_training_run}.values())
    return list(combinations(runs, 2)) if len(runs) <= EVERY else [(runs[0], other) for other in runs[1:]]


def compare_page(base: RunFolder, other: RunFolder, slug: str, keep: Keep, reading: SystemReader) -> ComparedPages:
    """Two runs compared as `nip-run compare` does; their games, in pairs, are kept.

    Raises:
        RunError: a file of a run is missing or damaged.
    """
    names = (base.run_id, other.run_id)
    route = f"compare/{names[0]}/{names[1]}"
    try:
        both = (reading.system(base), reading.system(other))
        rows = by_metrics(*both, metrics_shown(Show.COMPARISON), reading)
        pairs = list(game_pairs(*both, reading))
    except UsageError as error:
        section = Section(route, rendered("compare.html", ComparisonView(names, route, refused=str(error))))
        return ComparedPages(*names, f"cannot be compared: {error}", section, None)
    first = rows[0]
    view = ComparisonView(
        names,
        route,
        verdict=_begun(first.verdict, names),
        notes=[*first.notes, *notes_of(both)],
        forest=forest(
            [_estimate(row) for row in rows if METRICS[row.metric].is_share],
            title="Differences of shares",
            reference=0.0,
            reference_name="no difference",
            axis=f"{names[1]} less {names[0]}",
            key=f"compare-{slug}",
        ),
        rows=rows,
        crossed=crossed(pairs),
        flips=first.flips[:FLIPS],
    )
    keep(f"{slug}-pairs", packed(_pairs_data(pairs)))
    about = {"base": names[0], "other": names[1], "pairs": f"{slug}-pairs", "count": len(pairs), "route": route}
    return ComparedPages(*names, first.verdict, Section(route, rendered("compare.html", view)), about)


def _begun(sentence: str, names: tuple[str, str]) -> str:
    """A sentence with a capital letter, unless it begins with the name of a run."""
    return sentence if sentence.startswith(names) else sentence[:1].upper() + sentence[1:]


def crossed(pairs: Sequence[GamePair]) -> dict[str, int]:
    """How many pairs of games have both right, one alone, none; those that want a game are left out."""
    both = [(one.base.correct, one.other.correct) for one in pairs if one.base and one.other]
    kinds = {"both": (True, True), "base": (True, False), "other": (False, True), "neither": (False, False)}
    return {name: sum(one == kind for one in both) for name, kind in kinds.items()}


def _estimate(row: SystemComparison) -> ChartEstimate:
    return ChartEstimate(row.metric.replace("_", " "), row.difference, row.ci_low, row.ci_high)


def _pairs_data(pairs: Sequence[GamePair]) -> dict[str, Any]:
    """Pairs as columns, those whose verdicts differ first."""
    ordered = sorted(pairs, key=_same)
    return {"format": FORMAT, "count": len(ordered), "columns": dict(_columns(ordered))}


def _same(pair: GamePair) -> bool:
    return pair.base is None or pair.other is None or pair.base.correct == pair.other.correct


def _columns(pairs: Sequence[GamePair]) -> Iterator[tuple[str, list[Any]]]:
    yield "datapoint", [one.datapoint for one in pairs]
    yield "label", [one.label for one in pairs]
    for name in ("base", "other"):
        played = [getattr(one, name) for one in pairs]
        yield name, [None if one is None else one.rollout_id for one in played]
        yield f"{name}_right", [None if one is None else one.correct for one in played]
