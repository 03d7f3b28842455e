"""The page that compares two runs: differences as sentences and a forest plot, flipped verdicts, and pairs of games."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, zip_longest
from typing import Any

from markupsafe import Markup

from runner.base.errors import UsageError
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.rows import forest
from runner.pages.charts.styles import ChartFrame
from runner.pages.html import render_template
from runner.pages.packing import compress_json
from runner.pages.site import Section, StorePiece
from runner.results.comparison.comparison import SystemComparison, compare_by_metric, system_notes
from runner.results.comparison.matching import match_systems
from runner.results.comparison.paired_test import Flip
from runner.results.comparison.systems import ScoredRollout, System, SystemReader
from runner.results.folder import RunFolder
from runner.results.metric_definitions import METRICS, RANKING_METRIC, Show, metrics_shown

MAX_ALL_PAIRS = 4
"""Maximum number of runs of which all pairs are compared. Of more runs, the first is compared with each other run."""

MAX_PLAIN_FLIPS = 20
"""Maximum number of flips (see `Flip`) in the page for browsers without JavaScript."""

FORMAT = 1


@dataclass(frozen=True)
class ComparisonPage:
    """The comparison page of two runs."""

    base: str
    other: str
    verdict: str
    family: int
    """The number of comparisons in the adjustment of p-values and intervals."""
    section: Section
    about: Mapping[str, Any] | None
    """Facts for the script; None if the runs cannot be compared. The section then has the reason."""


@dataclass(frozen=True)
class ComparisonView:
    """The content of `compare.html`."""

    names: tuple[str, str]
    route: str
    refused: str | None = None
    """The reason if the runs cannot be compared; then all fields below are empty."""
    verdict: str = ""
    family: int = 1
    """The number of comparisons in the adjustment of p-values and intervals."""
    notes: Sequence[str] = ()
    forest: Markup | None = None
    rows: Sequence[SystemComparison] = ()
    crossed: Mapping[str, int] = field(default_factory=dict)
    flips: Sequence[Flip] = ()


@dataclass(frozen=True)
class ComparisonListView:
    """The content of `compares.html`."""

    pages: Sequence[ComparisonPage]
    family: int
    """The number of comparisons for which the intervals are adjusted."""


@dataclass(frozen=True)
class RunComparisons:
    """The comparisons on a site of runs."""

    sections: Sequence[Section] = ()
    about: Sequence[Mapping[str, Any]] = ()
    entry: tuple[str, str] | None = None
    verdicts: Sequence[tuple[str, str]] = ()
    """The route of each comparison, and its sentence."""


def compare_runs(folders: Sequence[RunFolder], store_piece: StorePiece) -> RunComparisons:
    """Compare all pairs of a few runs, or the first of many runs with each other run. Raises as `compare_pairs`."""
    pages = compare_pairs(run_pairs(folders), store_piece)
    sections = [page.section for page in pages]
    if len(pages) > 1:
        view = ComparisonListView(pages, pages[0].family)
        sections = [Section("compare", render_template("compares.html", view)), *sections]
    about = [page.about for page in pages if page.about is not None]
    verdicts = [(page.section.route, _capitalized(page.verdict, (page.base, page.other))) for page in pages]
    return RunComparisons(sections, about, (sections[0].route, "Compare") if sections else None, verdicts)


def page_reader() -> SystemReader:
    """Return a reader that reads each run only once, for all metrics of a page."""
    return SystemReader(metrics=metrics_shown(Show.COMPARISON))


def run_pairs(folders: Sequence[RunFolder]) -> list[tuple[RunFolder, RunFolder]]:
    """Return the pairs of runs to compare; training runs have no games and are left out."""
    runs = list({folder.run_id: folder for folder in folders if not folder.manifest().has_parts}.values())
    return list(combinations(runs, 2)) if len(runs) <= MAX_ALL_PAIRS else [(runs[0], second) for second in runs[1:]]


def compare_pairs(pairs: Sequence[tuple[RunFolder, RunFolder]], store_piece: StorePiece) -> list[ComparisonPage]:
    """Compare pairs of runs like `nip-run compare`, adjusted for their number, and store the pairs of their games.

    Raises:
        RunError: a file of a run is missing or damaged.
    """
    reader = page_reader()
    results = compare_by_metric(pairs, metrics_shown(Show.COMPARISON), reader)
    first_rows = [rows[0] for rows in results if not isinstance(rows, UsageError)]
    family = sum(row.p is not None and row.remark is None for row in first_rows)
    return [
        _comparison_page(pair, rows, family, f"c{number}", store_piece, reader=reader)
        for number, (pair, rows) in enumerate(zip(pairs, results, strict=True))
    ]


def _comparison_page(
    runs: tuple[RunFolder, RunFolder], rows: Sequence[SystemComparison] | UsageError, family: int, slug: str,
    store_piece: StorePiece, *, reader: SystemReader,
) -> ComparisonPage:  # fmt: skip
    """Return the page of two runs from their comparison, and store the pairs of their games."""
    names = (runs[0].run_id, runs[1].run_id)
    route = f"compare/{names[0]}/{names[1]}"
    if isinstance(rows, UsageError):
        section = Section(route, render_template("compare.html", ComparisonView(names, route, refused=str(rows))))
        return ComparisonPage(*names, f"cannot be compared: {rows}", family, section, None)
    systems = (reader.system(runs[0]), reader.system(runs[1]))
    pairs = list(game_pairs(*systems, reader))
    first = rows[0]
    view = ComparisonView(
        names,
        route,
        verdict=_capitalized(first.verdict, names),
        family=family,
        notes=[*first.notes, *system_notes(systems)],
        forest=forest(
            [_estimate(row) for row in rows if METRICS[row.metric].is_share],
            ChartFrame(
                "Differences of shares" + (f", adjusted for {family} comparisons" if family > 1 else ""),
                key=f"compare-{slug}",
            ),
            reference=0.0,
            reference_name="no difference",
            axis=f"{names[1]} minus {names[0]}",
        ),
        rows=rows,
        crossed=count_pairs(pairs),
        flips=first.flips[:MAX_PLAIN_FLIPS],
    )
    store_piece(f"{slug}-pairs", compress_json(_pairs_data(pairs)))
    about = {"base": names[0], "other": names[1], "pairs": f"{slug}-pairs", "count": len(pairs), "route": route}
    section = Section(route, render_template("compare.html", view))
    return ComparisonPage(*names, first.verdict, family, section, about)


def _capitalized(sentence: str, names: tuple[str, str]) -> str:
    """Capitalize a sentence, unless it begins with the name of a run."""
    return sentence if sentence.startswith(names) else sentence[:1].upper() + sentence[1:]


def count_pairs(pairs: Sequence[GamePair]) -> dict[str, int]:
    """Return the number of pairs in which both games are right, only one, or neither; skip incomplete pairs."""
    results = [(pair.base.correct, pair.other.correct) for pair in pairs if pair.base and pair.other]
    kinds = {"both": (True, True), "base": (True, False), "other": (False, True), "neither": (False, False)}
    return {name: sum(result == kind for result in results) for name, kind in kinds.items()}


def _estimate(row: SystemComparison) -> ChartEstimate:
    return ChartEstimate(row.metric.replace("_", " "), row.difference, *row.adjusted_interval)


def _pairs_data(pairs: Sequence[GamePair]) -> dict[str, object]:
    """Return pairs as columns; pairs of a right and a wrong game come first."""
    ordered = sorted(pairs, key=_has_equal_verdicts)
    return {"format": FORMAT, "count": len(ordered), "columns": dict(_columns(ordered))}


def _has_equal_verdicts(pair: GamePair) -> bool:
    return pair.base is None or pair.other is None or pair.base.correct == pair.other.correct


def _columns(pairs: Sequence[GamePair]) -> Iterator[tuple[str, list[Any]]]:
    yield "datapoint", [pair.datapoint for pair in pairs]
    yield "label", [pair.label for pair in pairs]
    for name in ("base", "other"):
        played = [getattr(pair, name) for pair in pairs]
        yield name, [None if pair is None else pair.rollout_id for pair in played]
        yield f"{name}_right", [None if pair is None else pair.correct for pair in played]


@dataclass(frozen=True)
class GamePair:
    """A game of each of two runs about one datapoint; None if a run has fewer games about it."""

    datapoint: str
    """The datapoint's id in the base."""
    group: str
    label: int | str
    base: ScoredRollout | None
    other: ScoredRollout | None


def game_pairs(base: System, other: System, reader: SystemReader) -> Iterator[GamePair]:
    """Yield the pairs of games of two systems on the datapoints that both have, in the order of their repeats.

    Games of the same form are a pair. Games are paired in their order if both systems have no form in common, because
    only one plays blocks, or if a system has several games of one form. Lost games are left out.

    Raises:
        UsageError: a run has no answered game.
        RunError: a file of a run is missing or damaged.
    """
    matched = match_systems(base, other, METRICS[RANKING_METRIC], reader)
    for group, (base_point, other_point) in zip(matched.groups, matched.pairs, strict=True):
        for base_game, other_game in _pairs_of_games(base_point.rollouts, other_point.rollouts):
            yield GamePair(base_point.id, group, base_point.label, base_game, other_game)


def _pairs_of_games(
    base: Sequence[ScoredRollout], other: Sequence[ScoredRollout]
) -> Iterator[tuple[ScoredRollout | None, ScoredRollout | None]]:
    base_games, other_games = ({game.form: game for game in games} for games in (base, other))
    has_several = len(base_games) < len(base) or len(other_games) < len(other)
    if has_several or base_games.keys().isdisjoint(other_games):
        yield from zip_longest(base, other)
        return
    for form in base_games | other_games:
        yield base_games.get(form), other_games.get(form)
