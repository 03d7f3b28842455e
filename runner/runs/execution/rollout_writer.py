"""Writes finished rollouts to the files of a run: tables, metrics, statistics of trees and fine-tune files.

In the order of the plan, a session calls `add` with each rollout, or `add_output` if a worker has already built the
rollout's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import orjson

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import counted
from runner.results.finetune.files import REPORT, FineTuneFiles, TreeSettings, remove_files
from runner.results.folder import FINE_TUNE, RunFolder
from runner.results.metric_computation import Metrics
from runner.results.metric_plugins import add_plugin_metrics
from runner.results.stopping_rule import StoppedDebates, StoppingDecision
from runner.results.tables import PartFiles
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.rollouts.trees import TreeStatistics, build_tree
from runner.runs.execution.game_outputs import OutputBuilder, RolloutOutput, fine_tune_settings
from runner.statistics.variance_components import Scores, variance_section


class RolloutWriter:
    """Writes the files of a run from its rollouts, which arrive in the order of the plan."""

    def __init__(self, plan: Plan, folder: RunFolder) -> None:
        """Open the files.

        Raises:
            UsageError: a plugin of a metric cannot be used.
        """
        add_plugin_metrics(plan.spec.experiment.metrics)
        self._folder, self._tree_shape = folder, plan.tree_shape
        self._metrics = Metrics.from_plan(plan)
        self._scores = Scores()
        # With one game about each datapoint, the variance has no components to estimate.
        self._keeps_scores = plan.tree_shape is None and plan.spec.experiment.rollouts.per_datapoint > 1
        stopping_note = None if plan.debates is None else plan.debates.stopping_note
        self._stopped_debates = None if stopping_note is None else StoppedDebates(plan, stopping_note)
        self._statistics = None if self._tree_shape is None else TreeStatistics(plan.spec.protocol, self._tree_shape)
        self._table_parts = PartFiles(folder.path)
        self._fine_tune = fine_tune_settings(plan)
        tree_settings = None if self._tree_shape is None else TreeSettings(self._tree_shape, plan.spec.experiment.seed)
        self._fine_tune_files: FineTuneFiles | None = None
        if self._fine_tune:
            try:
                self._fine_tune_files = FineTuneFiles(
                    folder.make(FINE_TUNE), self._fine_tune, plan.players(), folder.run_id, tree_settings,
                    swapped_agents=plan.players(swapped=True) if plan.seats else {},
                )  # fmt: skip
            except BaseException:
                self.discard()
                raise
        example_builder = None if self._fine_tune_files is None else self._fine_tune_files.examples
        self._builder = OutputBuilder(plan, folder.run_id, example_builder)

    @property
    def rows_folder(self) -> Path:
        """The folder with the rows so far. `seal` turns these rows into the final tables."""
        return self._table_parts.folder

    def add(self, rollout: Rollout) -> None:
        """Add one rollout to all files. `end_job` adds what depends on all rollouts of a job."""
        self.add_output(self._builder.build(rollout))
        if self._stopped_debates is not None:
            self._stopped_debates.add(rollout)

    def add_output(self, output: RolloutOutput) -> None:
        """Add the outputs of one rollout to the tables, metrics and examples."""
        self._table_parts.add(output.rows)
        self._metrics.add_measurement(output.measurement)
        if output.score is not None and self._keeps_scores:
            self._scores.add(*output.score)
        if self._fine_tune_files is not None:
            self._fine_tune_files.put(output.examples)

    def end_job(self, rollouts: Sequence[Rollout]) -> None:
        """Add what depends on all rollouts of a job (a game or a tree): a tree's statistics and preference pairs."""
        root = build_tree(rollouts, self._tree_shape) if self._tree_shape is not None else None
        if root is not None and self._statistics is not None:
            self._statistics.add(root)
        if self._fine_tune_files is not None:
            self._fine_tune_files.add_preferences(rollouts)

    def discard(self) -> None:
        """Discard the unfinished files. The process that resumes the run writes them again."""
        with suppress(RunError):
            self._table_parts.close()
        if self._fine_tune_files is not None:
            self._fine_tune_files.discard()

    def seal(self, threads: int = 1) -> None:
        """Write the tables to their final location, in this number of threads."""
        self._table_parts.seal(threads)

    def finish(self, decision: StoppingDecision | None = None) -> list[str]:
        """Write the metrics, move the fine-tune files to their final location, and return notes for the user."""
        # These statistics have the names of the original implementation (Neural Interactive Proofs, ICLR 2025).
        tree_statistics = {} if self._statistics is None else self._statistics.original_statistics()
        summary = {
            "run_id": self._folder.run_id,
            **self._metrics.summary(),
            "original_statistics": {**self._metrics.original_statistics(), **tree_statistics},
            "variance": variance_section(self._scores),
        }
        summary = summary if decision is None else decision.apply_to(summary)
        summary = summary if self._stopped_debates is None else self._stopped_debates.apply_to(summary)
        atomic_write(self._folder.metrics, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
        if self._fine_tune_files is None or self._fine_tune is None:
            remove_files(self._folder.fine_tune)
            return []
        report = self._fine_tune_files.close()
        unwritten = sum(not row["written"] for row in report)
        min_examples, report_path = self._fine_tune.min_examples, f"{FINE_TUNE}/{REPORT}"
        note = (
            f"{counted(unwritten, 'fine-tune file')} not written because of fewer than {min_examples} examples "
            f"(fine_tune.min_examples); see {report_path}"
        )
        return [note] if unwritten else []
