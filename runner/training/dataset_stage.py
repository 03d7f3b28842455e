"""The datasets of an iteration: built from its games, and built again where a file is gone or is to be another."""

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
    """Whether a user who trains by hand has made a dataset of their own of this one."""
    return trainer.traits.by_hand and _differs(path, report)


def _differs(path: Path, report: DatasetReport) -> bool:
    return report.written and path.is_file() and file_hash(path) != report.sha256


@dataclass(frozen=True)
class DatasetStage:
    """Each trained group's dataset, one iteration after the other."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    games: TrainingGames

    def datasets(self, iteration: int) -> Mapping[str, DatasetReport]:
        """Each group's dataset; built again where a file is gone, was edited, or is to have another format.

        A file that is edited by a user who trains by hand is theirs: it is kept, and so is its format.

        Raises:
            RunError: what is built again is not what the log says, so that the games are not those it was built from.
        """
        logged = self.stages.last(DatasetsBuilt, iteration)
        before: Mapping[str, DatasetReport] = {} if logged is None else logged.groups
        formats = self._formats_to_build(iteration, before)
        if not formats:
            return before
        folder = self.folder.make(ITERATIONS, str(iteration))
        built = build_datasets(self.plan, iteration, self.games.learnt_from(iteration), folder, formats)
        for group, report in built.items():
            if group in before:
                self._check_same(iteration, before[group], report)
        reports = {group: built.get(group) or before[group] for group in self.plan.trained}
        self.stages.add(DatasetsBuilt(iteration=iteration, groups=reports))
        return reports

    def _check_same(self, iteration: int, before: DatasetReport, now: DatasetReport) -> None:
        comparable = before.format == now.format and before.chat_format == now.chat_format
        if comparable and before.sha256 != now.sha256:
            path = iteration_folder(self.folder, iteration) / before.file
            raise RunError(
                f"{path} cannot be built again as it was; were the games of iteration {iteration} edited? Restore "
                "them, or start over with --again"
            )

    def _formats_to_build(self, iteration: int, before: Mapping[str, DatasetReport]) -> dict[str, str]:
        """The format of each group's file that is to be built; what a model was trained on is left as it is."""
        formats: dict[str, str] = {}
        for group in self.plan.trained:
            report = before.get(group)
            if report is None:
                formats[group] = self.plan.training.trainers[group].dataset_format
            elif self.stages.trained(iteration, group) is None:
                format_ = self._format_now(iteration, group, report)
                if not self._is_there(iteration, group, report, format_):
                    formats[group] = format_
        return formats

    def _format_now(self, iteration: int, group: str, report: DatasetReport) -> str:
        """A job that goes on keeps the format that it was submitted with, as long as its backend is the same."""
        trainer, attempt = self.plan.training.trainers[group], self.stages.attempt(iteration, group)
        notes = self.stages.of_group(JobNoted, iteration, group)
        goes_on = any(note.attempt == attempt and note.backend == trainer.backend for note in notes)
        return report.format if goes_on else trainer.dataset_format

    def _is_there(self, iteration: int, group: str, report: DatasetReport, format_: str) -> bool:
        path = iteration_folder(self.folder, iteration) / report.file
        if edited_by_user(self.plan.training.trainers[group], path, report):
            return True
        if _differs(path, report):
            log.warning("iteration %d: %s was edited; it is built again from the games", iteration, path)
            return False
        if self.plan.chat_format is not None and report.chat_format not in (None, self.plan.chat_format):
            return False
        return (not report.written or path.is_file()) and report.format == format_
