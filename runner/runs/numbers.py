"""Rollouts into what `metrics.json` holds: while a run is played, and from its records again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.results.compared import FILE, frozen
from runner.results.folder import RunFolder
from runner.results.metrics import Metrics
from runner.results.until import Decision, Selected
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.rollouts.trees import TreeStatistics, build_tree
from runner.statistics.variance import Play, Scores, described


class Numbers:
    """Collects the rollouts of one run, in the order of its plan."""

    def __init__(self, plan: Plan) -> None:
        self._shape = plan.shape
        self._metrics = Metrics(plan.spec.protocol, plan.seats)
        self._scores = Scores()
        stopped = None if plan.debates is None else plan.debates.stopped
        self._selected = None if stopped is None else Selected(plan, stopped)
        self._statistics = None if self._shape is None else TreeStatistics(plan.spec.protocol, self._shape)

    def add(self, rollout: Rollout) -> None:
        """Count one rollout."""
        self._metrics.add(rollout)
        if self._selected is not None:
            self._selected.add(rollout)
        job = rollout.job
        if rollout.correct is not None and self._shape is None:
            play = Play(job.datapoint.id, job.stance, job.swapped, job.stances_exchanged)
            self._scores.add(job.datapoint.group, play, float(rollout.correct))

    def end_job(self, rollouts: Sequence[Rollout]) -> None:
        """Count what follows from a game or a tree as a whole."""
        root = build_tree(rollouts, self._shape) if self._shape is not None else None
        if root is not None and self._statistics is not None:
            self._statistics.add(root)

    def summary(self, run_id: str, decision: Decision | None = None) -> dict[str, Any]:
        """What `metrics.json` holds."""
        trees = {} if self._statistics is None else self._statistics.original_statistics()
        summary: Mapping[str, Any] = {
            "run_id": run_id,
            **self._metrics.summary(),
            "original_statistics": {**self._metrics.original_statistics(), **trees},
            "variance": described(self._scores),
        }
        summary = summary if decision is None else decision.applied(summary)
        return dict(summary if self._selected is None else self._selected.applied(summary))


class NumbersAgain:
    """The numbers of a run from its rollouts as its records have them, with the rule that stopped it."""

    def __init__(self, folder: RunFolder, plan: Plan) -> None:
        self._run_id = folder.manifest().run_id
        self._numbers = Numbers(plan)
        rule = plan.spec.experiment.until
        self._decision = None if rule is None else Decision(plan, rule, frozen(folder.path / "inputs" / FILE))

    def add_job(self, rollouts: Sequence[Rollout]) -> None:
        """Count the rollouts of a game, or of a tree."""
        for rollout in rollouts:
            self._numbers.add(rollout)
        self._numbers.end_job(rollouts)
        if self._decision is not None:
            self._decision.add(rollouts)

    def summary(self) -> dict[str, Any]:
        """What `metrics.json` would hold."""
        return self._numbers.summary(self._run_id, self._decision)
