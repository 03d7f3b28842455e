"""Plays the parts of a training run: the games that an iteration trains on, and the tests. Each part is a separate run.

`TrainingLoop` and `RetestLoop` use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from runner.base.errors import RunError
from runner.results.folder import RunFolder
from runner.spec.loader import Spec
from runner.training.plan import Models, TrainingPlan, is_tested_before, part_run_id
from runner.training.stage_log import StageLog
from runner.training.stages import GamesPlayed, RunRecord, TestPlayed

log = logging.getLogger("nip_run.training")

RunPart = Callable[[Spec, str, str, int], RunFolder]
"""Plays or resumes a part of a training run, given its spec, run id, kind and iteration, and returns its folder."""


@dataclass(frozen=True)
class TrainingGames:
    """Plays the parts of a training run."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    run_part: RunPart

    def check_parts_exist(self) -> None:
        """Check that every finished part still exists.

        Raises:
            RunError: a file of a part is missing.
        """
        for record in (*self.stages.find_all(GamesPlayed), *self.stages.find_all(TestPlayed)):
            existing_part(self.folder, record)

    def folder_of(self, iteration: int) -> RunFolder:
        """Return the folder of the games that an iteration plays to train on."""
        return self.folder.sibling(part_run_id(self.folder.run_id, iteration, "training"))

    def training_games(self, iteration: int) -> list[RunFolder]:
        """Return the folders of all games in an iteration's datasets, oldest first."""
        first = 0 if self.plan.training.on_all_previous_rollouts else iteration
        return [self.folder_of(earlier) for earlier in range(first, iteration + 1)]

    def play_iteration(self, iteration: int, models: Models) -> None:
        """Play the games that an iteration trains on, unless they are finished."""
        if self.stages.find_last(GamesPlayed, iteration) is None:
            log.info("iteration %d: playing games", iteration)
            self._run(self.plan.iteration_spec(iteration, models), GamesPlayed, "training", iteration)

    def play_test(self, iteration: int, models: Models) -> None:
        """Test the models before an iteration, if the scheme requires it and the test is not finished."""
        if is_tested_before(self.plan.training, iteration) and self.stages.find_last(TestPlayed, iteration) is None:
            log.info("iteration %d: testing the models", iteration)
            self._run(self.plan.test_spec(models), TestPlayed, "benchmark", iteration)

    def _run(self, spec: Spec, record: type[RunRecord], kind: str, iteration: int) -> None:
        part = self.run_part(spec, part_run_id(self.folder.run_id, iteration, kind), kind, iteration)
        self.stages.add(record(iteration=iteration, run_id=part.run_id))


def existing_part(folder: RunFolder, record: RunRecord) -> RunFolder:
    """Return the folder of the finished part that a record refers to.

    Raises:
        RunError: a file of the part is missing.
    """
    part = folder.sibling(record.run_id)
    for path in (part.manifest_path, part.spec, part.journal):
        if not path.is_file():
            contents = "the games" if isinstance(record, GamesPlayed) else "the test"
            raise RunError(
                f"{path} is missing; run {part.run_id} has {contents} of iteration {record.iteration} of training run "
                f"{folder.run_id}. Restore {part.path} from a backup, or start over with --again"
            )
    return part
