"""The base of sessions of training runs and tournaments, whose games are separate runs, called parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from runner.base.errors import (
    ANSWERS_ARE_SAVED,
    BudgetExhausted,
    FolderGoneError,
    Interrupted,
    NipRunError,
    RunError,
    Waiting,
)
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import comma_join
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.results.provenance.manifest_writer import updated_manifest
from runner.rollouts.run_plan import PlanWithParts
from runner.runs.execution.process import interrupted_error, interruptible, log_to, sigterm_as_keyboard_interrupt
from runner.runs.execution.spending import spent_on_parts
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.stored_problems import load_problems
from runner.runs.session.run import RunOptions, open_budget, relative_cache_path

MAX_NOTES = 20
"""The maximum number of notes of a run and its parts. The logs of the parts have all notes."""


@dataclass
class SessionOfParts(ABC):
    """One process's execution of a run whose games are separate runs."""

    plan: PlanWithParts
    results: Results
    folder: RunFolder
    manifest: Manifest
    options: RunOptions
    _notes: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        plan, folder = self.plan, self.folder
        budget = self.options.budget or open_budget(
            plan.spec.experiment.budget, lambda: spent_on_parts(self.results, folder.run_id)
        )
        self.options = replace(self.options, budget=budget)
        manifest = updated_manifest(self.manifest, plan.games).with_null_fields("cache")
        self.manifest = replace(manifest, cache=relative_cache_path(plan.spec, folder))

    @abstractmethod
    def play(self) -> Mapping[str, Any]:
        """Play everything that is not finished, and return the summary for `metrics.json`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the run and its parts, shortened to `MAX_NOTES`."""
        omitted = len(self._notes) - MAX_NOTES
        more = [f"and {omitted} more notes in the logs of the run's parts"] if omitted > 0 else []
        return (*self._notes[:MAX_NOTES], *more)

    def add_notes(self, lines: Iterable[str]) -> None:
        self._notes.extend(lines)

    def complete(self) -> None:
        """Play everything that is not finished, write the summary, and mark the run as done.

        Raises:
            NipRunError: the error of `play`, with the notes.
        """
        folder = self.folder
        try:
            with sigterm_as_keyboard_interrupt(), self._updating_status(), log_to(folder.log):
                metrics = self.play()
                folder.unseal()
                atomic_write(folder.metrics, orjson.dumps(metrics, option=orjson.OPT_INDENT_2))
                folder.seal()
                self._write_manifest(self.manifest.ended(Status.DONE))
        except NipRunError as error:
            error.with_notes(f"note: {line}" for line in self.notes)
            raise

    def result(self) -> FinishedRun:
        """Add the completed run to the leaderboard, and return its result. The caller has released the run's lock."""
        with interruptible(self.folder.run_id):
            self.results.board.append(self.folder)
        return FinishedRun(self.folder, self.manifest, self.folder.read_metrics(), notes=self.notes)

    def accept_part(self, result: FinishedRun) -> None:
        """Check that a part is done, and add its notes.

        Raises:
            RunError: the part lost more games than the spec allows. The next process plays the lost games again.
        """
        part_id, status = result.folder.run_id, result.manifest.status
        if status != Status.DONE:
            problems = load_problems(result.folder)
            unanswered = [str(problem) for problem in problems if problem.kind == "transport_failed"]
            reason = result.lost or comma_join(unanswered) or "no game got its answers"
            raise RunError(
                f"run {part_id}, a part of the {self.manifest.kind_name.removeprefix('a ')} {self.folder.run_id}, is "
                f"{status}: {reason}. Run the same command again to play the lost games again"
            )
        self.add_notes(f"{part_id}: {line}" for line in result.notes)

    @contextmanager
    def naming_interrupted(self, where: str) -> Iterator[None]:
        """Name this run in the error if the block, which plays its parts, is interrupted."""
        try:
            yield
        except Interrupted as error:
            message = f"run {self.folder.run_id} was interrupted in {where}; run the same command again to resume it"
            raise Interrupted(f"{message}. {ANSWERS_ARE_SAVED}").with_notes(error.lines()[1:]) from None

    def _write_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.folder.write_manifest(manifest)

    @contextmanager
    def _updating_status(self) -> Iterator[None]:
        """Set the run's status in the manifest to running, and to its final value if the block raises an error."""

        def write_end(status: Status, error: Exception | None = None) -> None:
            with suppress(NipRunError):
                self._write_manifest(self.manifest.with_error(error).ended(status))
                self.results.board.append_unfinished(self.folder)

        self._write_manifest(replace(self.manifest, status=Status.RUNNING))
        try:
            yield
        except KeyboardInterrupt:
            write_end(Status.INTERRUPTED)
            raise interrupted_error(self.folder.run_id) from None
        except FolderGoneError:
            raise  # do not write to the path, which may now belong to another folder
        except (Waiting, Interrupted, BudgetExhausted) as error:
            write_end(Status.INTERRUPTED, error)
            raise
        except Exception as error:
            write_end(Status.FAILED, error)
            raise


def saved_result(results: Results, folder: RunFolder, manifest: Manifest, notes: tuple[str, ...] = ()) -> FinishedRun:
    """Return the result of a finished run with parts, without running anything."""
    results.board.append_missing(folder)
    return FinishedRun(folder, manifest, folder.read_metrics(), was_finished=True, notes=notes)
