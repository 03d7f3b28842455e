"""A user's script with every public name. `.ci/run` checks it by `mypy --strict` against the installed wheel."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import runner
from runner import (
    AgentRuntime,
    AnalysisTable,
    Backend,
    BudgetExhausted,
    CallError,
    Check,
    Choice,
    Comparison,
    Completion,
    ConnectionTarget,
    CostEstimate,
    Duration,
    Environment,
    ExportOptions,
    FineTuneJob,
    GenerationError,
    Interrupted,
    JobState,
    JobStatus,
    LeaderboardError,
    Measured,
    MergeError,
    Needed,
    NestedArrayDict,
    NipRunError,
    OpenAiWholeAgent,
    Plan,
    Plot,
    PluginMetric,
    Problem,
    Progress,
    Provider,
    ProviderRefusal,
    Request,
    Rollout,
    RunError,
    RunResult,
    RunSource,
    SampleSize,
    Spec,
    SpecError,
    SweepRow,
    SweepValue,
    TrainedGroup,
    Transcript,
    Usage,
    UsageError,
    Waiting,
    WrittenExport,
    analyze,
    check,
    compare,
    duration,
    estimate,
    first_turn,
    load_protocol,
    load_spec,
    load_specs,
    merge,
    open_run,
    passes_tests,
    query,
    rejudge,
    run,
    run_sweep,
    sample_size,
    sweep_table,
)


class Parrot:
    """A provider of a plugin."""

    def __init__(self, target: ConnectionTarget) -> None:
        self.settings = target.settings

    async def complete(self, request: Request) -> Completion:
        text = request.messages[-1]["content"]
        return Completion((Choice(text, "stop"),), model=self.settings.model or "parrot", usage=Usage(1, 1))

    async def close(self) -> None: ...


def connect(target: ConnectionTarget) -> Provider:
    return Parrot(target)


def count_rounds(rollout: Rollout) -> float | None:
    return len(rollout.rounds) or None


ROUNDS = PluginMetric(description="rounds with a message", compute=count_rounds, unit="rounds", low=0, better=-1)


def write_ids(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
    path = target / f"{options.subject or 'all'}.txt"
    path.write_text("\n".join(game.rollout.job.rollout_id for game in source.games()), "utf-8")
    return WrittenExport({path: source.manifest.rollouts or 0})


class Trainer:
    """A training backend of a plugin."""

    def __init__(self, group: TrainedGroup) -> None:
        self.group = group

    def submit(self, job: FineTuneJob, notes: object, save_note: object) -> dict[str, str]:
        return {"job": job.key}

    def poll(self, job: FineTuneJob, handle: object) -> JobStatus:
        return JobStatus(JobState.SUCCEEDED, f"{job.base_model}-trained")


def create_trainer(group: TrainedGroup) -> Backend:
    return Trainer(group)


def check_spec(spec: Spec) -> list[str]:
    checked: Check = check(spec)
    rows: list[CostEstimate] = estimate(spec)
    low, high = checked.calls
    assert [row.calls for row in rows] == [(low, high)]
    jobs = list(Plan(spec).jobs())
    assert len(jobs) == checked.rollouts == len(spec.dataset.datapoints)
    size: SampleSize = sample_size(spec, 0.1)
    rows_needed: tuple[Needed, ...] = size.rows
    assert rows_needed[0].groups > 300
    time: Duration = duration(spec, measure=0.02)
    assert time.games == checked.rollouts
    assert time.seconds[0] > 0
    return [*checked.warnings, *checked.keys]


def play_run(spec: Spec, results: Path) -> RunResult:
    transcripts: list[Transcript] = []

    def on_progress(progress: Progress) -> None:
        assert progress.jobs <= progress.total

    result = run(spec, results, on_progress=on_progress, on_rollout=transcripts.append)
    assert [transcript.outcome for transcript in transcripts] == ["decided", "decided"]
    return result


def read_result(result: RunResult, results: Path) -> tuple[float, int]:
    accuracy: Measured | None = result.accuracy
    assert accuracy is not None
    low, high = accuracy.interval or (0.0, 1.0)
    assert low <= accuracy.value <= high
    ids = [str(row[0]) for row in result.rollouts().select("rollout_id").fetchall()]
    for name, text in [(message.agent, message.text) for message in result.transcript(ids[0]).messages]:
        assert name in ("prover", "verifier")
        assert text
    plot: Plot = result.plot("outcomes")
    assert sum(row["games"] for row in plot.rows) == len(ids)
    assert plot.svg(width="page").startswith("<svg")
    ((calls,),) = result.completions().aggregate("count(*)").fetchall()
    ((messages,),) = result.messages().aggregate("count(*)").fetchall()
    assert int(messages) <= int(calls)
    ((n,),) = query("SELECT n FROM leaderboard", results).fetchall()
    (rejudged,) = rejudge(result, {"votes": 3}, verdict="each", results=results)
    assert rejudged.manifest.rejudge_of is not None
    tables: list[AnalysisTable] = analyze(
        result, ["follow_up", "exact_quotation"], overrides={"models.analyst.provider": "dummy"}, results=results
    )
    assert [table.analyzer for table in tables] == ["follow_up", "exact_quotation"]
    compared: Comparison = compare(result, rejudged, results=results)
    assert compared.pairs[0].datapoints == len(ids)
    assert open_run(result.run_id, results).accuracy == accuracy
    with suppress(RunError):  # the machine may have no sandbox
        assert passes_tests("def f(x): return x", {"test_list": ["assert f(1) == 1"]}, "mbpp")
    return accuracy.value, int(n)


def take_step(spec: Spec) -> MutableMapping[Any, Any]:
    protocol = load_protocol("nip", {"max_message_rounds": 6})
    assert protocol.agent_names == spec.protocol.agent_names
    environment = Environment(spec.protocol, seed=spec.experiment.seed)
    runtime = AgentRuntime(spec.prompts)
    agents = {n: OpenAiWholeAgent(spec.experiment, runtime, n, spec.protocol) for n in spec.protocol.agent_names}
    arrays: NestedArrayDict = first_turn(spec)
    replies = {name: agent.forward(arrays, environment) for name, agent in agents.items()}
    step = environment.step(environment.add_replies(arrays, replies))
    assert ("agents", "done") in step.arrays
    return step.arrays


def run_in_shards(spec: Spec, folder: Path) -> None:
    first_part = run(spec, folder, shard="1/2")
    problems: tuple[str, ...] = ()
    try:
        merge(first_part.run_id, folder)
    except MergeError as error:
        problems = error.problems
    assert problems
    second_part = run(spec, folder, shard="2/2")
    merged: RunResult = merge(Plan(spec).run_id, folder, parts=[first_part, second_part])
    assert merged.manifest.rollouts == 4


def main(folder: Path) -> None:
    overrides = {"dataset.limit": 2, "models": {"offline": {"provider": "dummy"}}}
    spec = load_spec({"extends": "specs/quickstart.yaml", "name": "mine"}, overrides)
    specs = load_specs("specs/quickstart.yaml", ["dataset.limit=2", "sweep={seed: [0, 1]}"])
    rows: list[SweepRow] = sweep_table(run_sweep(specs, folder / "swept"), ["accuracy", "recall"])
    value: SweepValue = rows[0].metrics["accuracy"]
    assert (len(specs), len(rows), value.n) == (2, 1, 4)
    run_in_shards(load_spec("specs/quickstart.yaml", {"dataset.limit": 4, "name": "in-shards"}), folder / "shards")
    print(check_spec(spec), read_result(play_run(spec, folder), folder), len(take_step(spec)), runner.__version__)
    try:
        load_spec("specs/quickstart.yaml", {"dataset.splitt": "test"})
    except SpecError as error:
        problem: Problem = error.problems[0]
        print(problem.key, problem.place.file)
    try:
        open_run("no such run", folder)
    except (BudgetExhausted, ProviderRefusal, Interrupted, Waiting, LeaderboardError, RunError):
        raise
    except UsageError as error:
        usage_error: NipRunError = error
        print(usage_error)
    assert not issubclass(CallError, GenerationError)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
