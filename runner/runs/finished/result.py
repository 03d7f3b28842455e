"""The result of a run as a Python object: its metrics, tables and games. Scripts, commands and exports use it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError, UsageError, errors_as
from runner.base.storage.duckdb_connections import read_only_table
from runner.base.text import comma_join, with_interval
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import fixed_verdicts_of
from runner.results.manifest import Manifest, Status
from runner.results.metric_computation import is_by_group
from runner.results.metric_definitions import (
    ACCURACY,
    BALANCED_ACCURACY,
    CRITERION,
    METRICS,
    SENSITIVITY,
    SOUNDNESS_ERROR,
)
from runner.results.metrics_file import find_metric_row
from runner.results.saved_spec import saved_value
from runner.results.table_columns import COLUMNS
from runner.results.tasks import Task, describe_task_difference
from runner.rollouts.rollout import Rollout
from runner.rollouts.transcript import RolloutTranscript
from runner.runs.finished.reconstruction import Reconstructor, find_rollout, played_plan
from runner.statistics.worst_case import WorstCase, find_worst_case

if TYPE_CHECKING:
    import duckdb

    from runner.rollouts.agents.nested_arrays import NestedArrayDict
    from runner.rollouts.agents.whole_agent import OpenAiWholeAgent


NO_ROW: Mapping[str, Any] = {"value": None}
"""The row to use for a metric that a run does not have."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric of a run.

    Standard errors are clustered: the rollouts of a cluster of datapoints are one observation.
    """

    value: float
    stderr: float | None
    interval: tuple[float, float] | None
    """The 95 % confidence interval, or None if there is none.

    An open end is infinite; for example, d' has an open end if every correct solution was accepted. See `reason`.
    """
    n: int
    """The number of rollouts in the mean."""
    clusters: int
    """The number of clusters of datapoints."""
    reason: str | None = None
    """The reason why there is no interval, or why one of its ends is open; None if both ends are finite."""

    def __repr__(self) -> str:
        return f"{with_interval(self.value, *(self.interval or (None, None)))} (n={self.n}, clusters={self.clusters})"


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """The result of a run, as returned by `runner.run` and, for an earlier run, by `runner.open_run`.

    Tables are lazy DuckDB relations with `.fetchall()`, `.df()`, `.arrow()` and `.pl()`. The last three need pandas,
    pyarrow and polars, which nip-run does not install.

        >>> from runner import load_spec, run
        >>> result = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2}))
        >>> result.status, result.accuracy.n
        ('done', 2)
        >>> result.rollouts().aggregate("outcome, count(*)").fetchall()
        [('decided', 2)]
        >>> [(first,), _] = result.rollouts().select("rollout_id").fetchall()
        >>> result.transcript(first).outcome
        'decided'
        >>> result.timesteps().batch_size
        (2, 7)
    """

    folder: RunFolder
    """The run's folder and the paths of its files."""
    manifest: Manifest
    """The facts of the run: `manifest.completions`, `manifest.cost_usd`, `manifest.to_json()`."""
    metrics: dict[str, Any]
    """The content of `metrics.json`; empty if the run is not finished."""
    was_finished: bool = False
    """Whether the run was already finished and was not played again."""
    notes: tuple[str, ...] = ()
    """The notes that were shown while the run was played."""
    lost: str | None = None
    """A description of the rollouts that an incomplete run lost in transport; None for other runs."""

    @classmethod
    def from_folder(cls, folder: RunFolder) -> FinishedRun:
        """Read the result in a run's folder. The run may be unfinished.

        Raises:
            RunError: the manifest or the metrics are damaged.
        """
        manifest = folder.manifest()
        metrics = folder.read_metrics() if folder.metrics.is_file() else {}
        return cls(folder, manifest, metrics, was_finished=manifest.status == Status.DONE)

    @property
    def run_id(self) -> str:
        return self.folder.run_id

    @property
    def status(self) -> str:
        """`done`, `incomplete` (more rollouts were lost than the spec allows), `failed`, `interrupted` or `running`."""
        return self.manifest.status.value

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def accuracy(self) -> Measured | None:
        """The share of correct verdicts; None for a training run, an unfinished run or one without answered games."""
        return self.metric(ACCURACY)

    @property
    def balanced_accuracy(self) -> Measured | None:
        """The mean of the accuracies on correct and on wrong solutions; None if only one kind was judged."""
        return self.metric(BALANCED_ACCURACY)

    @property
    def sensitivity(self) -> Measured | None:
        """d': how well verdicts separate correct from wrong solutions, independent of a bias to accept.

        0 means that verdicts do not separate them at all.
        """
        return self.metric(SENSITIVITY)

    @property
    def criterion(self) -> Measured | None:
        """c, the bias of the verdicts: above 0 if the verifier tends to reject, below 0 if it tends to accept."""
        return self.metric(CRITERION)

    def metric(self, name: str, agent: str | None = None) -> Measured | None:
        """Return a metric of the games or of one agent; None if the metric has no value.

        `metrics["metrics"]` lists all metrics.
        """
        row = find_metric_row(self.metrics, name, agent)
        if row is None or row["value"] is None:
            return None
        low, high = row["ci_low"], row["ci_high"]
        ends = (-math.inf if low is None else low, math.inf if high is None else high)
        interval = None if low is None and high is None else ends
        return Measured(row["value"], row["stderr"], interval, row["n"], row["clusters"], row.get("reason"))

    @staticmethod
    def worst_of(runs: Sequence[FinishedRun], metric: str = SOUNDNESS_ERROR) -> WorstCase:
        """Return the run with the worst value of a metric, with a simultaneous confidence interval over all runs.

        For example, pass one run for each prover of a verifier. `system` of the result is the run id. The worst value
        is the largest one for `soundness_error` and `always_failed`, and the smallest one for `accuracy`,
        `balanced_accuracy` and `completeness`. For a single run, the interval is the run's own.

        Raises:
            UsageError: the metric has no worst value, `runs` is empty, or a run lacks the metric or has a stopping rule
                (`until`). Or the runs have different tasks or (for `always_failed`) different numbers of games for a
                datapoint.
            RunError: the inputs of a run are damaged.
        """
        if metric not in METRICS or not METRICS[metric].has_worst:
            names = sorted(definition.name for definition in METRICS.values() if definition.has_worst)
            raise UsageError(f"metric {metric!r} has no worst value; choose one of {comma_join(names)}")
        for run in runs:
            if (reason := fixed_verdicts_of(run.folder)) is not None:
                raise UsageError(f"run {run.run_id} has no {metric} of its own: {reason}; leave out this run")
        rows = {run.run_id: _with_parts(run.metrics, metric) for run in runs}
        if len(rows) > 1:
            _check_comparable(runs)
        with errors_as(UsageError, metric, ValueError):
            return find_worst_case(rows, most=METRICS[metric].better < 0)

    def parts(self) -> list[FinishedRun]:
        """Return the parts of a training run in order: its games and tests, each a separate run; empty for others."""
        return [FinishedRun.from_folder(part) for part in Results.of(self.folder).parts_of(self.run_id)]

    def rollouts(self) -> duckdb.DuckDBPyRelation:
        """Return one row for each rollout, in the order of the plan.

        Columns include `rollout_id`, `datapoint_id`, `decision`, `correct` and `outcome`.

        Raises:
            UsageError: the run is a training run, whose games are in its `parts`.
            RunError: the run is not finished, so its tables do not exist yet.
        """
        return self._table("rollouts")

    def messages(self) -> duckdb.DuckDBPyRelation:
        """Return one row for each delivered message: `rollout_id`, `round`, `channel`, `agent` and `content`.

        Raises:
            UsageError, RunError: see `rollouts`.
        """
        return self._table("messages")

    def completions(self) -> duckdb.DuckDBPyRelation:
        """Return one row for each model call, with `raw_message`, tokens, `latency_ms`, `error` and others.

        Raises:
            UsageError, RunError: see `rollouts`.
        """
        return self._table("completions")

    def _table(self, name: str) -> duckdb.DuckDBPyRelation:
        self._check_has_games()
        file = self.folder.intact_table(name)
        if not file.is_file():
            raise RunError(
                f"run {self.run_id} is {self.status} and has no tables yet; finish the run with nip-run {self.path}"
            )
        return read_only_table(name, file, COLUMNS[name])

    def transcript(self, rollout: str) -> RolloutTranscript:
        """Return one game by its rollout id, the start of this id, or its datapoint's id (for the first rollout).

        The game is rebuilt from the journal, so it can be read before the run is finished.

        Raises:
            UsageError: there is no such rollout, or the run is a training run, whose games are in its `parts`.
            RunError: the rollout is not finished, or the journal is missing or damaged.
        """
        self._check_has_games()
        plan = played_plan(self.folder)
        return RolloutTranscript.of(find_rollout(self.folder, plan, rollout), self.run_id, plan.spec.protocol)

    def timesteps(self, *, prompts: bool = False) -> NestedArrayDict:
        """Return the rollouts as arrays over (rollout, timestep), rebuilt from the journal in the order of the plan.

        `runner.rollouts.agents.arrays.timesteps` describes the arrays, and `OpenAiWholeAgent.build_fine_tune_dataset`
        accepts each timestep. With `prompts`, the array `("agents", "prompt")` has the chats of all agents with the
        axes (... agent message field), which take a lot of memory.

        Raises:
            UsageError: the run is a training run, whose games are in its `parts`.
            RunError: the journal is missing or damaged, or has no finished rollout.
            AgentNotActiveInChannelError: two agents speak in one channel in one round, but arrays hold one message.
            ValueError: a column of the dataset has the same name as a key of a timestep.
        """
        from runner.rollouts.agents.arrays import stacked, timesteps

        self._check_has_games()
        plan = played_plan(self.folder)
        agents = {swapped: plan.agents(swapped=swapped) for swapped in plan.swapped_values}
        rollout_arrays = []
        with closing(Reconstructor(self.folder, plan)) as reconstructor:
            for rollout in reconstructor.rollouts():
                job = rollout.job
                arrays = timesteps(
                    plan.spec.protocol, rollout.rounds, job.datapoint, seed=job.seed, prover_stance=job.prover_stance
                )
                if prompts:
                    arrays["agents", "prompt"] = _prompts(agents[job.swapped], rollout)
                rollout_arrays.append(arrays)
        if not rollout_arrays:
            raise RunError(f"run {self.run_id} has no finished rollout yet; continue the run with nip-run {self.path}")
        return stacked(rollout_arrays)

    def _check_has_games(self) -> None:
        if self.manifest.has_parts:
            raise UsageError(
                f"{self.run_id} is {self.manifest.kind_name}; its games are separate runs "
                f"({self.manifest.example_part} and so on), which parts() returns"
            )

    def __repr__(self) -> str:
        facts = [self.status]
        if self.accuracy is not None:
            facts.append(f"accuracy {self.accuracy!r}")
        if self.manifest.rollouts is not None:
            facts.append(f"{self.manifest.rollouts} rollouts")
        if self.manifest.cost_usd is not None:
            facts.append(f"${self.manifest.cost_usd:.4f}")
        return f"<RunResult {self.run_id}: {', '.join(facts)}>"


def _prompts(agents: Mapping[str, OpenAiWholeAgent], rollout: Rollout) -> Any:
    """Return the chat of each agent in each round as an array with the axes (round agent message field)."""
    from runner.rollouts.agents.observations import max_prompt_messages, prompt_array

    protocol, rounds = next(iter(agents.values())).protocol_handler, rollout.rounds
    round_count, message_count = protocol.max_message_rounds, max_prompt_messages(protocol)
    chats = [
        agent.prompt(rollout.job.observation(round_, rounds[:round_]))
        if round_ < len(rounds) and name in rounds[round_].raw
        else []
        for round_ in range(round_count)
        for name, agent in agents.items()
    ]
    return prompt_array(chats, message_count).reshape(round_count, len(agents), message_count, -1)


def _with_parts(metrics: Mapping[str, object], metric: str) -> Mapping[str, object]:
    """Return a metric's row with the additional keys that `find_worst_case` needs."""
    row = {**(find_metric_row(metrics, metric) or NO_ROW), "grouped": is_by_group(metrics)}
    if metric == BALANCED_ACCURACY:
        row["parts"] = [find_metric_row(metrics, f"accuracy_{label}") for label in (1, 0)]
    return row


def _check_comparable(runs: Sequence[FinishedRun]) -> None:
    """Check that a simultaneous interval is valid: all runs have the same task, and none has a stopping rule.

    Raises:
        UsageError: the tasks differ, or a run has a stopping rule.
        RunError: the inputs of a run cannot be read.
    """
    stopped = [run.run_id for run in runs if run.metrics.get("until")]
    if stopped:
        raise UsageError(
            f"{comma_join(stopped)} was played with a stopping rule (until), so an interval for a fixed number of "
            "games is not valid; leave out this run, or play it without until"
        )
    (first, first_group_by), *others = [(run.folder, saved_value(run.folder, "dataset", "group_by")) for run in runs]
    for folder, group_by in others:
        try:
            if Task.of_run(folder, group_by) == Task.of_run(first, first_group_by):
                continue
            difference = describe_task_difference(first, folder, (first_group_by, group_by))
        except (OSError, ValueError) as error:
            raise RunError(
                f"the inputs of {folder.path} or {first.path} cannot be read: {error}; restore them"
            ) from error
        raise UsageError(
            f"the worst run can only be named among runs on the same datapoints, but {folder.run_id} differs from "
            f"{first.run_id}: {difference}"
        )
