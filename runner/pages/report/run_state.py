"""Describes the state of a run in sentences: its progress, why it stopped, and which data is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.errors import RunError, os_errors_as
from runner.base.storage.log_lines import NOT_BOUND, is_log_bound_to_run
from runner.pages.numbers import count
from runner.pages.report.run_facts import display_path
from runner.pages.report.run_games import CollectedGames, GamesSummary
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status, verifiers_of
from runner.rollouts.plan import Plan
from runner.runs.finished.resume_advice import resume_advice
from runner.spec.checks.fixed_verdicts import explain_fixed_verdicts
from runner.spec.datasets.loader import Dataset
from runner.spec.origin import DATA


@dataclass(frozen=True)
class MissingRows:
    """The missing rows of a run that was published without the rows of its dataset."""

    dataset: Dataset
    """The known facts about the datapoints."""
    sentences: Sequence[str]
    """Sentences about the data that cannot be shown, and about how to get the rows."""


def missing_rows(folder: RunFolder) -> MissingRows | None:
    """Return the missing rows of a run that was published without the rows of its dataset; None for other runs.

    Raises:
        ReleaseError: the release is damaged.
        RunError: the release cannot be read.
    """
    root = folder.path.parent
    if folder.path.name != DATA:
        return None
    from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
    from runner.registry.bundles.withheld_rows import load_withheld
    from runner.registry.fetched_release import WITHOUT_ROWS, is_fetched, open_fetched

    if not is_fetched(root):
        return None
    release = open_fetched(root)
    if not lacks_rows(release):
        return None
    with os_errors_as(RunError, f"cannot read {root}", "; check the permissions of the folder"):
        hidden = f"{WITHOUT_ROWS[0].upper()}{WITHOUT_ROWS[1:]}: the datapoints and chats of its games cannot be shown."
        return MissingRows(load_withheld(folder), (hidden, describe_missing_rows(release)))


def summary(manifest: Manifest) -> str:
    """Return one line about a run."""
    status = "still playing" if manifest.status == Status.RUNNING else str(manifest.status)
    facts = (status, manifest.benchmark, manifest.protocol, f"seed {manifest.seed}", f"nip-run {manifest.version}")
    return " · ".join(fact for fact in facts if fact)


def state_sentences(
    folder: RunFolder,
    plan: Plan,
    manifest: Manifest,
    games: CollectedGames,
    missing: MissingRows | None,
    *,
    metrics: Mapping[str, Any] | None,
    tells_source: bool = True,
) -> list[str]:
    """Return sentences that a reader must know before reading a run's numbers; none for a complete run.

    `tells_source` adds the release that the run was fetched from; set it to False on the page of that release.
    """
    lines = list(_reading_progress(manifest, games))
    root = folder.path.parent
    if tells_source and folder.path.name == DATA:
        from runner.registry.fetched_release import is_fetched, open_fetched

        if is_fetched(root):
            lines.append(f"Fetched from a registry as {open_fetched(root).release.reference}.")
    if (judged := manifest.rejudge_of) is not None:
        lines.append(f"Judges the debates of {judged.run_id}; only the judge was called.")
    if reason := explain_fixed_verdicts(plan.spec.protocol.parameters.force_guess, verifiers_of(manifest)):
        lines.append(f"No rank: {reason}.")
    if until := (metrics or {}).get("until"):
        lines.append(f"Stopping rule: {until['note']}.")
    return [*lines, *_state_sentences(folder, plan, manifest, games.results, missing)]


def _reading_progress(manifest: Manifest, games: CollectedGames) -> Iterator[str]:
    """Yield a sentence if the games are not read completely."""
    if games.problem is not None:
        yield f"The games of this run cannot be read: {games.problem}"
    elif games.is_part:
        total = "" if manifest.rollouts is None else f" of {count(manifest.rollouts)}"
        yield f"Reading: {count(games.about['count'])}{total} games so far; the tables of games include only these."


def _state_sentences(
    folder: RunFolder, plan: Plan, manifest: Manifest, results: GamesSummary | None, missing: MissingRows | None
) -> Iterator[str]:
    if results is not None:
        yield from _progress_sentences(plan, manifest, results, missing)
    if manifest.status == Status.DONE and missing is None and not folder.journal.is_file():
        yield "The run's journal is missing, so its games cannot be shown. Copy journal.jsonl into the run's folder."
    yield from why_stopped(folder, manifest)
    if plan.spec.experiment.until is not None and manifest.status not in (Status.DONE, Status.INCOMPLETE):
        yield "The run stops once its result is decided. Until then, intervals are valid for a single analysis only."
    if manifest.is_whole_replay:
        yield "This run is a replay: every answer comes from another run, and no model was called or paid."
    if missing is not None:
        yield from missing.sentences
    if folder.journal.is_file() and not is_log_bound_to_run(folder.journal):
        yield f"The run's journal: {NOT_BOUND}."


def _progress_sentences(
    plan: Plan, manifest: Manifest, results: GamesSummary, missing: MissingRows | None
) -> Iterator[str]:
    """Yield the progress of a run that is not done or has no games."""
    progress = f"{count(results.done)} of {count(plan.size)} {'games' if plan.tree_shape is None else 'trees'}"
    match manifest.status:
        case Status.RUNNING:
            yield f"The run is still playing: {progress} are finished, and all numbers are based on these."
        case Status.INTERRUPTED:
            yield f"The run was stopped: {progress} are finished, and all numbers are based on these."
        case Status.FAILED:
            yield f"The run failed: {progress} are finished."
        case Status.INCOMPLETE:
            lost = count(manifest.transport_failed)
            yield f"The run is incomplete: {lost} of {count(results.games)} games were lost in transport."
        case Status.DONE if not results.games and missing is None:
            yield "The run has no games."


def why_stopped(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    """Yield the reason why an unfinished run stopped, and how to resume it."""
    if manifest.status in (Status.DONE, Status.RUNNING):
        return
    if manifest.why_stopped is not None:
        yield f"Why: {manifest.why_stopped}"
    yield f"Next: {resume_advice(folder, manifest, format_path=display_path)}"
