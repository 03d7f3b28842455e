"""Builds the datasets of an iteration, and rebuilds a file that is missing, was edited or needs another format.

This is a stage of the training loop. `runner.training.dataset_building` writes the files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import RunError
from runner.base.hashing import file_hash
from runner.results.folder import RunFolder
from runner.spec.training_settings import TrainerSettings
from runner.training.dataset_building import build_datasets
from runner.training.games import TrainingGames
from runner.training.plan import TrainingPlan
from runner.training.stage_log import ITERATIONS, StageLog, iteration_folder
from runner.training.stages import DatasetReport, DatasetsBuilt, JobNoted

log = logging.getLogger("nip_run.training")


def edited_by_user(trainer: TrainerSettings, path: Path, report: DatasetReport) -> bool:
    """Return whether the group is trained by hand and the user has edited its dataset."""
    return trainer.traits.by_hand and _differs(path, report)


def _differs(path: Path, report: DatasetReport) -> bool:
    """Return whether a dataset's file exists and differs from its report."""
    return report.written and path.is_file() and file_hash(path) != report.sha256


@dataclass(frozen=True)
class DatasetStage:
    """Builds the datasets of all trained groups in each iteration."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    games: TrainingGames

    def update_datasets(self, iteration: int) -> Mapping[str, DatasetReport]:
        """Build or rebuild the datasets that need it, and return a report on each group's dataset.

        A file is rebuilt if it is missing, was edited, or needs another format. But a file that the user has edited to
        train by hand stays unchanged.

        Raises:
            RunError: a rebuilt dataset differs from the log, so the games have changed since.
        """
        record = self.stages.find_last(DatasetsBuilt, iteration)
        earlier: Mapping[str, DatasetReport] = {} if record is None else record.groups
        formats = self._formats_to_build(iteration, earlier)
        if not formats:
            return earlier
        folder = self.folder.make(ITERATIONS, str(iteration))
        built = build_datasets(self.plan, iteration, self.games.training_games(iteration), folder, formats)
        for group, report in built.items():
            if group in earlier:
                self._check_same(iteration, earlier[group], report)
        reports = {group: built.get(group) or earlier[group] for group in self.plan.trained_groups}
        self.stages.add(DatasetsBuilt(iteration=iteration, groups=reports))
        return reports

    def _check_same(self, iteration: int, recorded: DatasetReport, rebuilt: DatasetReport) -> None:
        """Check that a rebuilt dataset has the content in the log, if both have the same format."""
        comparable = recorded.format == rebuilt.format and recorded.chat_format == rebuilt.chat_format
        if comparable and recorded.sha256 != rebuilt.sha256:
            path = iteration_folder(self.folder, iteration) / recorded.file
            raise RunError(
                f"{path} was rebuilt from the games of iteration {iteration} and differs from the dataset in the log, "
                "so these games were edited. Restore the games' run folder, or start over with --again"
            )

    def _formats_to_build(self, iteration: int, earlier: Mapping[str, DatasetReport]) -> dict[str, str]:
        """Return the format of each file to build, by group. A file that a model was trained on is never rebuilt."""
        formats: dict[str, str] = {}
        for group in self.plan.trained_groups:
            report = earlier.get(group)
            if report is None:
                formats[group] = self.plan.training.trainers[group].dataset_format
            elif self.stages.training_record(iteration, group) is None:
                format_ = self._required_format(iteration, group, report)
                if not self._is_current(iteration, group, report, format_):
                    formats[group] = format_
        return formats

    def _required_format(self, iteration: int, group: str, report: DatasetReport) -> str:
        """Return the format that a group's dataset needs. It does not change while a job of this backend is running."""
        trainer, attempt = self.plan.training.trainers[group], self.stages.attempt_number(iteration, group)
        notes = self.stages.group_records(JobNoted, iteration, group)
        is_running = any(note.attempt == attempt and note.backend == trainer.backend for note in notes)
        return report.format if is_running else trainer.dataset_format

    def _is_current(self, iteration: int, group: str, report: DatasetReport, format_: str) -> bool:
        """Return whether a group's dataset need not be rebuilt."""
        path = iteration_folder(self.folder, iteration) / report.file
        if edited_by_user(self.plan.training.trainers[group], path, report):
            return True
        if _differs(path, report):
            log.warning("iteration %d: %s was edited and will be rebuilt from the games", iteration, path)
            return False
        if self.plan.chat_format is not None and report.chat_format not in (None, self.plan.chat_format):
            return False
        return (not report.written or path.is_file()) and report.format == format_
