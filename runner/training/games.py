"""The games of a training run: those that an iteration is trained on, and the tests before and after."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from runner.base.errors import RunError
from runner.results.folder import RunFolder
from runner.spec.loader import Spec
from runner.training.plan import Models, TrainingPlan, part_id
from runner.training.stage_log import StageLog
from runner.training.stages import GamesPlayed, RunRecord, TestPlayed

log = logging.getLogger("nip_run.training")

RunPart = Callable[[Spec, str, str, int], RunFolder]
"""Runs a spec as a run of that id, kind and iteration, going on where it stopped; its folder when it is done."""


@dataclass(frozen=True)
class TrainingGames:
    """The runs that are parts of a training run."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    run_part: RunPart

    def check_there(self) -> None:
        """See that every part that was finished is still there.

        Raises:
            RunError: one is gone; what to do.
        """
        for record in (*self.stages.all(GamesPlayed), *self.stages.all(TestPlayed)):
            check_part(self.folder, record)

    def of(self, iteration: int) -> RunFolder:
        """The games that an iteration is trained on."""
        return self.folder.beside(part_id(self.folder.run_id, iteration, "training"))

    def learnt_from(self, iteration: int) -> list[RunFolder]:
        """The games that an iteration's datasets are built from, the oldest first."""
        first = 0 if self.plan.training.on_all_previous_rollouts else iteration
        return [self.of(earlier) for earlier in range(first, iteration + 1)]

    def play_iteration(self, iteration: int, models: Models) -> None:
        """Play the games that an iteration is trained on, unless that is done."""
        if self.stages.last(GamesPlayed, iteration) is None:
            log.info("iteration %d: playing", iteration)
            self._run(self.plan.iteration_spec(iteration, models), GamesPlayed, "training", iteration)

    def test(self, iteration: int, models: Models) -> None:
        """Measure the models before an iteration, if the scheme says so and it is not done."""
        if self.plan.tests_before(iteration) and self.stages.last(TestPlayed, iteration) is None:
            log.info("iteration %d: measuring", iteration)
            self._run(self.plan.test_spec(models), TestPlayed, "benchmark", iteration)

    def _run(self, spec: Spec, record: type[RunRecord], kind: str, iteration: int) -> None:
        part = self.run_part(spec, part_id(self.folder.run_id, iteration, kind), kind, iteration)
        self.stages.add(record(iteration=iteration, run_id=part.run_id))


def check_part(folder: RunFolder, record: RunRecord) -> RunFolder:
    """The finished games or test that a record is of.

    Raises:
        RunError: it is gone; what to do.
    """
    part = folder.beside(record.run_id)
    for path in (part.manifest_path, part.spec, part.journal, part.metrics):
        if not path.is_file():
            what = "the games" if isinstance(record, GamesPlayed) else "the test"
            raise RunError(
                f"{path} is gone; run {part.run_id} is a part of training run {folder.run_id}: {what} of iteration "
                f"{record.iteration}. Restore {part.path}, or start over with --again"
            )
    return part
