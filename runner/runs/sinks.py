"""Where finished rollouts go: tables, metrics, statistics of trees, fine-tune files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import orjson

from runner.errors import RunError
from runner.finetune.files import REPORT, FineTuneFiles, Trees, remove_files
from runner.results.folder import FINE_TUNE, RunFolder
from runner.results.tables import PartFiles
from runner.results.until import Decision
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.runs.numbers import Numbers
from runner.storage.atomic import atomic_write
from runner.text import counted


class RecordSinks:
    """The files of one run that follow from its rollouts, which come in the order of the plan."""

    def __init__(self, plan: Plan, folder: RunFolder) -> None:
        self._folder = folder
        self._numbers = Numbers(plan)
        self._parts = PartFiles(folder.path, folder.run_id)
        self._settings = plan.spec.experiment.fine_tune
        trees = None if plan.shape is None else Trees(plan.shape, plan.spec.experiment.seed)
        self._files: FineTuneFiles | None = None
        if self._settings:
            try:
                self._files = FineTuneFiles(
                    folder.make(FINE_TUNE), self._settings, plan.players(), folder.run_id, trees,
                    swapped=plan.players(swapped=True) if plan.seats else {},
                )  # fmt: skip
            except BaseException:
                self.discard()
                raise

    @property
    def unsealed(self) -> Path:
        """Where the tables stand until they are sealed."""
        return self._parts.folder

    def add(self, rollout: Rollout) -> None:
        """Add one rollout's rows and figures."""
        self._parts.write(rollout)
        self._numbers.add(rollout)

    def end_job(self, rollouts: Sequence[Rollout]) -> None:
        """Add what follows from a game or a tree as a whole."""
        self._numbers.end_job(rollouts)
        if self._files is not None:
            self._files.add(rollouts)

    def discard(self) -> None:
        """Leave the files as they are: the run goes on another time."""
        with suppress(RunError):
            self._parts.close()
        if self._files is not None:
            self._files.discard()

    def seal(self) -> None:
        """Put the tables in their place."""
        self._parts.seal()

    def finish(self, decision: Decision | None = None) -> list[str]:
        """Write the metrics and put the fine-tune files in their place; what there is to note."""
        summary = self._numbers.summary(self._folder.run_id, decision)
        atomic_write(self._folder.metrics, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
        if self._files is None or self._settings is None:
            remove_files(self._folder.fine_tune)
            return []
        report = self._files.close()
        short = sum(not row["written"] for row in report)
        fewest, names = self._settings.min_examples, f"{FINE_TUNE}/{REPORT}"
        note = f"{counted(short, 'fine-tune file')} of fewer than {fewest} examples not written; {names} names them"
        return [note] if short else []
