"""A run's result in Python: its numbers, its tables, its games."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError, UsageError
from runner.base.storage.duckdb_connections import read_only_table
from runner.base.text import comma_join, with_interval
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import fixed_verdicts_of, saved_value
from runner.results.manifest import Manifest, Status
from runner.results.metric_table import ACCURACY, BALANCED_ACCURACY, CRITERION, METRICS, SENSITIVITY, SOUNDNESS_ERROR
from runner.results.metrics import is_by_group
from runner.results.tables import COLUMNS
from runner.results.tasks import Task
from runner.rollouts.rollout import Rollout
from runner.rollouts.transcript import RolloutTranscript
from runner.runs.finished.reconstruction import Reconstructor, played_plan, rollout_named
from runner.statistics.worst_case import WorstCase, worst

if TYPE_CHECKING:
    import duckdb

    from runner.rollouts.agents.nested_arrays import NestedArrayDict
    from runner.rollouts.agents.whole_agent import OpenAiWholeAgent


NO_ROW: Mapping[str, Any] = {"value": None}


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric of a run. Errors are clustered: rollouts of one cluster of datapoints count as one observation."""

    value: float
    stderr: float | None
    interval: tuple[float, float] | None
    """95 %; None where there is none. An end that is open, as of d' where every right solution was accepted, is
    infinite. `reason` says why, of either."""
    n: int
    """How many rollouts the value is the mean of."""
    clusters: int
    reason: str | None = None
    """Why there is no interval, or an end of it is open."""

    def __repr__(self) -> str:
        return f"{with_interval(self.value, *(self.interval or (None, None)))} (n={self.n}, clusters={self.clusters})"


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """What a run left. `runner.run` gives one, and `runner.open_run` one of an earlier run.

    Tables are lazy DuckDB relations: `.fetchall()`, and `.df()`, `.arrow()` and `.pl()`, which need pandas, pyarrow and
    polars: nip-run installs none of them.

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
    """Where it stands: `folder.path`."""
    manifest: Manifest
    """The facts of the run: `manifest.completions`, `manifest.cost_usd`, `manifest.to_json()`."""
    metrics: dict[str, Any]
    """What `metrics.json` says; empty while the run is not finished."""
    was_finished: bool = False
    """Whether it was played before, and is only shown."""
    notes: tuple[str, ...] = ()
    """What was noticed while it was played."""
    lost: str | None = None
    """Of an incomplete run: how many rollouts were lost in transport, and one of them."""

    @classmethod
    def opened(cls, folder: RunFolder) -> FinishedRun:
        """Of a run's folder, whether the run is finished or not.

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
        """`done`, `incomplete` (more rollouts lost than the spec allows), `failed`, `interrupted` or `running`."""
        return self.manifest.status.value

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def accuracy(self) -> Measured | None:
        """The share of right verdicts; None of a run that has none: not finished, no game answered, a training run."""
        return self.metric(ACCURACY)

    @property
    def balanced_accuracy(self) -> Measured | None:
        """The mean of the accuracies on right and on wrong solutions; None where only one of them was judged."""
        return self.metric(BALANCED_ACCURACY)

    @property
    def sensitivity(self) -> Measured | None:
        """d': how well verdicts tell right from wrong, apart from how willingly they accept. 0: not at all."""
        return self.metric(SENSITIVITY)

    @property
    def criterion(self) -> Measured | None:
        """c: above 0 where the verifier leans to reject, below 0 where it leans to accept."""
        return self.metric(CRITERION)

    def metric(self, name: str, agent: str | None = None) -> Measured | None:
        """A metric of the games, or of one agent in them; None where it has no value. `metrics["metrics"]` has all."""
        row = _row(self.metrics, name, agent)
        if row is None or row["value"] is None:
            return None
        low, high = row["ci_low"], row["ci_high"]
        ends = (-math.inf if low is None else low, math.inf if high is None else high)
        interval = None if low is None and high is None else ends
        return Measured(row["value"], row["stderr"], interval, row["n"], row["clusters"], row.get("reason"))

    @staticmethod
    def worst_of(runs: Sequence[FinishedRun], metric: str = SOUNDNESS_ERROR) -> WorstCase:
        """The worst of several runs, such as one for each prover of a verifier, with a simultaneous interval.

        `system` is its run_id. Of `soundness_error` and `always_failed` that is the largest, of `accuracy`,
        `balanced_accuracy` and `completeness` the smallest. Of one run, the interval is its own.

        Raises:
            UsageError: another metric, no run, a run that has no such number or that stopped when it was decided, or
                runs of different tasks; of `always_failed`, with different numbers of plays of a datapoint.
            RunError: the inputs of a run are damaged.
        """
        if metric not in METRICS or not METRICS[metric].has_worst:
            known = sorted(one.name for one in METRICS.values() if one.has_worst)
            raise UsageError(f"no worst of {metric!r}; there is one of {comma_join(known)}")
        for run in runs:
            if (reason := fixed_verdicts_of(run.folder)) is not None:
                raise UsageError(f"{run.run_id} has no {metric} of its own: {reason}")
        rows = {run.run_id: _with_parts(run.metrics, metric) for run in runs}
        if len(rows) > 1:
            _check_alike(runs)
        try:
            return worst(rows, most=METRICS[metric].better < 0)
        except ValueError as error:
            raise UsageError(f"{metric}: {error}") from error

    def parts(self) -> list[FinishedRun]:
        """Of a training run, its games and tests in order, each a run of its own; else nothing."""
        return [FinishedRun.opened(part) for part in Results.of(self.folder).parts_of(self.run_id)]

    def rollouts(self) -> duckdb.DuckDBPyRelation:
        """A row a rollout, in the order of the plan: `rollout_id`, `datapoint_id`, `decision`, `correct`, `outcome`.

        Raises:
            UsageError: of a training run, whose games are `parts`.
            RunError: the run is not finished: its tables are written at its end.
        """
        return self._table("rollouts")

    def messages(self) -> duckdb.DuckDBPyRelation:
        """A row a delivered message: `rollout_id`, `round`, `channel`, `agent`, `content`. Raises as `rollouts`."""
        return self._table("messages")

    def completions(self) -> duckdb.DuckDBPyRelation:
        """A row a call to a model: `raw_message`, tokens, `latency_ms`, `error`, ... Raises as `rollouts`."""
        return self._table("completions")

    def _table(self, name: str) -> duckdb.DuckDBPyRelation:
        self._check_has_games()
        file = self.folder.intact_table(name)
        if not file.is_file():
            raise RunError(f"run {self.run_id} is {self.status}; it has tables once it is done: run its spec again")
        return read_only_table(name, file, COLUMNS[name])

    def transcript(self, rollout: str) -> RolloutTranscript:
        """One game, by the rollout's id, the start of it, or the datapoint's id (the first rollout of it).

        It is made again from the journal, so that finished games of an unfinished run can be read.

        Raises:
            UsageError: there is no such rollout; or of a training run, whose games are `parts`.
            RunError: the rollout is not finished, or the journal is gone or damaged.
        """
        self._check_has_games()
        return RolloutTranscript.of(rollout_named(self.folder, played_plan(self.folder), rollout), self.run_id)

    def timesteps(self, *, prompts: bool = False) -> NestedArrayDict:
        """The rollouts as arrays over (rollout, timestep), in the order of the plan, made again from the journal.

        Any timestep is what `OpenAiWholeAgent.build_fine_tune_dataset` takes; see
        `runner.rollouts.agents.arrays.timesteps`. With `prompts`, `agents` holds each `prompt` too (... agent message
        field), which takes much memory.

        Raises:
            UsageError: of a training run, whose games are `parts`.
            RunError: the journal is gone or damaged, or holds no finished rollout.
            AgentNotActiveInChannelError: two agents speak in one channel in one round; arrays hold one message.
            ValueError: a column of the dataset has the name of a key of a timestep.
        """
        from runner.rollouts.agents.arrays import stacked, timesteps

        self._check_has_games()
        plan = played_plan(self.folder)
        reconstructor = Reconstructor(self.folder, plan)
        try:
            rollouts, agents = [], {swapped: plan.agents(swapped=swapped) for swapped in plan.casts}
            for rollout in reconstructor.rollouts():
                job = rollout.job
                steps = timesteps(
                    plan.spec.protocol, rollout.rounds, job.datapoint, seed=job.seed, prover_stance=job.prover_stance
                )
                if prompts:
                    steps["agents", "prompt"] = _prompts(agents[job.swapped], rollout)
                rollouts.append(steps)
        finally:
            reconstructor.close()
        if not rollouts:
            raise RunError(f"{self.run_id} holds no finished rollout")
        return stacked(rollouts)

    def _check_has_games(self) -> None:
        if self.manifest.is_training_run:
            raise UsageError(
                f"{self.run_id} is a training run; its games are in runs of their own, {self.run_id}-i0 and so on: "
                "parts() gives them"
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
    """The chat that each agent was asked with in each round: (round agent message field)."""
    from runner.rollouts.agents.observations import max_prompt_messages, prompt_array

    protocol, rounds = next(iter(agents.values())).protocol_handler, rollout.rounds
    length, width = protocol.max_message_rounds, max_prompt_messages(protocol)
    chats = [
        agent.prompt(rollout.job.observation(round_, rounds[:round_]))
        if round_ < len(rounds) and name in rounds[round_].raw
        else []
        for round_ in range(length)
        for name, agent in agents.items()
    ]
    return prompt_array(chats, width).reshape(length, len(agents), width, -1)


def _with_parts(metrics: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """A row with what `worst` asks of it."""
    row = {**(_row(metrics, metric, None) or NO_ROW), "grouped": is_by_group(metrics)}
    if metric == BALANCED_ACCURACY:
        row["parts"] = [_row(metrics, f"accuracy_{label}", None) for label in (1, 0)]
    return row


def _check_alike(runs: Sequence[FinishedRun]) -> None:
    """Whether an interval for all holds: runs of one task, none of which stopped when its numbers had said enough."""
    stopped = [run.run_id for run in runs if run.metrics.get("until")]
    if stopped:
        raise UsageError(
            f"{comma_join(stopped)} had leave to stop when decided (until), where no interval of a fixed number of "
            "games holds; leave it out, or play it without until"
        )
    tasks: dict[Task, list[str]] = {}
    for run in runs:
        try:
            task = Task.of_run(run.folder, saved_value(run.folder, "dataset", "group_by"))
        except (OSError, ValueError) as error:
            raise RunError(f"the inputs of {run.path} cannot be read: {error}") from error
        tasks.setdefault(task, []).append(run.run_id)
    if len(tasks) > 1:
        apart = "; ".join(comma_join(names) for names in tasks.values())
        raise UsageError(f"the worst is of runs of one task; these played different datapoints: {apart}")


def _row(metrics: Mapping[str, Any], name: str, agent: str | None) -> Mapping[str, Any] | None:
    rows: Sequence[Mapping[str, Any]] = metrics.get("metrics", ())
    return next((row for row in rows if (row["agent"], row["metric"]) == (agent, name)), None)
