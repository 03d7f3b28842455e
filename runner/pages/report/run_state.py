"""How a run stands, in words: what is not finished, what stopped it, and what of it is not here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.base.errors import RunError
from runner.base.storage.log_lines import NOT_BOUND, is_bound_to_run
from runner.pages.numbers import count
from runner.pages.report.run_games import GamesSummary, Gathered
from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
from runner.registry.bundles.withheld_rows import load_withheld
from runner.registry.fetched_release import WITHOUT_ROWS, is_fetched, open_fetched
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status
from runner.rollouts.plan import Plan
from runner.runs.finished.resume_advice import resume_advice
from runner.spec.datasets.loader import Dataset
from runner.spec.origin import DATA


@dataclass(frozen=True)
class MissingRows:
    """A run without the rows of its dataset: what is known of its datapoints, and how the rows come to it."""

    given: Dataset
    needed: str


def missing_rows(folder: RunFolder) -> MissingRows | None:
    """What is not there of a run that was published without the rows of its dataset.

    Raises:
        ReleaseError: the release is damaged.
        RunError: it cannot be read.
    """
    root = folder.path.parent
    if folder.path.name != DATA or not is_fetched(root):
        return None
    got = open_fetched(root)
    if not lacks_rows(got):
        return None
    try:
        return MissingRows(load_withheld(folder), describe_missing_rows(got))
    except OSError as error:
        raise RunError(f"{root} cannot be read: {error.strerror}") from error


def summary(manifest: Manifest) -> str:
    """A run in a line."""
    status = "still playing" if manifest.status == Status.RUNNING else str(manifest.status)
    facts = (status, manifest.benchmark, manifest.protocol, f"seed {manifest.seed}", f"nip-run {manifest.version}")
    return " · ".join(fact for fact in facts if fact)


def state(
    folder: RunFolder,
    plan: Plan,
    manifest: Manifest,
    games: Gathered,
    missing: MissingRows | None,
    *,
    metrics: Mapping[str, Any] | None,
    tells_source: bool = True,
) -> list[str]:
    """What is to be known before any number of a run is read; nothing of one that is done and whole.

    Without `tells_source`, where a page is that release's own, not which release it was got from.
    """
    lines = list(_read(manifest, games))
    root = folder.path.parent
    if tells_source and folder.path.name == DATA and is_fetched(root):
        lines.append(f"Got from a registry, as {open_fetched(root).release.reference}.")
    if (judged := manifest.rejudge_of) is not None:
        lines.append(f"A judging: the debates are those of {judged.run_id}; nobody but the judge was asked.")
    if until := (metrics or {}).get("until"):
        lines.append(f"Until it is decided: {until['note']}.")
    return [*lines, *_state(folder, plan, manifest, games.told, missing)]


def _read(manifest: Manifest, games: Gathered) -> Iterator[str]:
    """Yield how much was read of the games."""
    if games.problem is not None:
        yield f"Its games cannot be read: {games.problem}"
    elif games.is_part:
        of = "" if manifest.rollouts is None else f" of {count(manifest.rollouts)}"
        yield f"Reading: {count(games.about['count'])}{of} games so far; the tables of games are of those."


def _state(
    folder: RunFolder, plan: Plan, manifest: Manifest, told: GamesSummary | None, missing: MissingRows | None
) -> Iterator[str]:
    if told is not None:
        yield from _standing(plan, manifest, told, missing)
    if manifest.status == Status.DONE and missing is None and not folder.journal.is_file():
        yield "Its journal is not here: none of its games can be shown."
    yield from why_stopped(folder, manifest)
    if plan.spec.experiment.until is not None and manifest.status not in (Status.DONE, Status.INCOMPLETE):
        yield "It is to stop once it is decided: until then, intervals are those of one look at these games."
    if manifest.is_whole_replay:
        yield "A replay: every answer is that of another run; nobody was called, and nothing was paid."
    if missing is not None:
        yield f"{WITHOUT_ROWS[0].upper()}{WITHOUT_ROWS[1:]}: what a game was about, and the chats, are not here."
        yield missing.needed
    if folder.journal.is_file() and not is_bound_to_run(folder.journal):
        yield f"Its journal: {NOT_BOUND}."


def _standing(plan: Plan, manifest: Manifest, told: GamesSummary, missing: MissingRows | None) -> Iterator[str]:
    """How far a run has come that is not done, or has nothing."""
    progress = f"{count(told.done)} of {count(plan.size)} {'games' if plan.shape is None else 'trees'}"
    match manifest.status:
        case Status.RUNNING:
            yield f"Still playing: {progress} are finished, and all numbers are of those."
        case Status.INTERRUPTED:
            yield f"Stopped with {progress} finished; all numbers are of those."
        case Status.FAILED:
            yield f"Failed with {progress} played."
        case Status.INCOMPLETE:
            lost = count(manifest.transport_failed)
            yield f"Incomplete: {lost} of {count(told.games)} games were lost in transport."
        case Status.DONE if not told.games and missing is None:
            yield "It has no games."


def why_stopped(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    """Why a run that is not done stopped, and how it goes on."""
    if manifest.status in (Status.DONE, Status.RUNNING):
        return
    if manifest.why_stopped is not None:
        yield f"Why: {manifest.why_stopped}"
    yield f"Next: {resume_advice(folder, manifest)}"
