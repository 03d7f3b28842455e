"""The datasets of an iteration: builds them, and rebuilds a file that is missing, edited or in another format."""

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
    """Return whether a user who trains by hand has edited a dataset."""
    return trainer.traits.by_hand and _differs(path, report)


def _differs(path: Path, report: DatasetReport) -> bool:
    return report.written and path.is_file() and file_hash(path) != report.sha256


@dataclass(frozen=True)
class DatasetStage:
    """Builds the datasets of all trained groups in each iteration."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    games: TrainingGames

    def datasets(self, iteration: int) -> Mapping[str, DatasetReport]:
        """Return each group's dataset; rebuild a file that is missing, was edited, or needs another format.

        If the user trains by hand and has edited the file, it is left unchanged, and so is its format.

        Raises:
            RunError: a rebuilt dataset differs from the log, so the games have changed since.
        """
        record = self.stages.last(DatasetsBuilt, iteration)
        before: Mapping[str, DatasetReport] = {} if record is None else record.groups
        formats = self._formats_to_build(iteration, before)
        if not formats:
            return before
        folder = self.folder.make(ITERATIONS, str(iteration))
        built = build_datasets(self.plan, iteration, self.games.training_games(iteration), folder, formats)
        for group, report in built.items():
            if group in before:
                self._check_same(iteration, before[group], report)
        reports = {group: built.get(group) or before[group] for group in self.plan.trained}
        self.stages.add(DatasetsBuilt(iteration=iteration, groups=reports))
        return reports

    def _check_same(self, iteration: int, before: DatasetReport, rebuilt: DatasetReport) -> None:
        comparable = before.format == rebuilt.format and before.chat_format == rebuilt.chat_format
        if comparable and before.sha256 != rebuilt.sha256:
            path = iteration_folder(self.folder, iteration) / before.file
            raise RunError(
                f"{path} differs from the log after it was rebuilt; were the games of iteration {iteration} edited? "
                "Restore them, or start over with --again"
            )

    def _formats_to_build(self, iteration: int, before: Mapping[str, DatasetReport]) -> dict[str, str]:
        """Return the formats of the files to build, by group; a file that a model was trained on stays unchanged."""
        formats: dict[str, str] = {}
        for group in self.plan.trained:
            report = before.get(group)
            if report is None:
                formats[group] = self.plan.training.trainers[group].dataset_format
            elif self.stages.trained(iteration, group) is None:
                format_ = self._required_format(iteration, group, report)
                if not self._is_current(iteration, group, report, format_):
                    formats[group] = format_
        return formats

    def _required_format(self, iteration: int, group: str, report: DatasetReport) -> str:
        """Return the format that a group's dataset needs: a running job with the same backend keeps its format."""
        trainer, attempt = self.plan.training.trainers[group], self.stages.attempt(iteration, group)
        notes = self.stages.of_group(JobNoted, iteration, group)
        is_running = any(note.attempt == attempt and note.backend == trainer.backend for note in notes)
        return report.format if is_running else trainer.dataset_format

    def _is_current(self, iteration: int, group: str, report: DatasetReport, format_: str) -> bool:
        path = iteration_folder(self.folder, iteration) / report.file
        if edited_by_user(self.plan.training.trainers[group], path, report):
            return True
        if _differs(path, report):
            log.warning("iteration %d: %s was edited; it is rebuilt from the games", iteration, path)
            return False
        if self.plan.chat_format is not None and report.chat_format not in (None, self.plan.chat_format):
            return False
        return (not report.written or path.is_file()) and report.format == format_
