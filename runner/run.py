"""A plan into a finished run: folder, journal, games, tables, metrics, fine-tune files, leaderboard rows."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from runner.datasets.files import FineTuneFiles
from runner.documents.fields import plain
from runner.errors import BudgetExhausted, NipRunError, ProviderRefusal, RunError, TransientError
from runner.execute import AHEAD, MIN_AHEAD, Engine, Progress, Stopped
from runner.files import locked, write_whole
from runner.ids import tagged_hash
from runner.journal import Journal, read_journal
from runner.metrics import Metrics
from runner.models.base import Request
from runner.models.connect import connect
from runner.models.prices import price_of
from runner.models.recorded import Recorded, failure_record, through_journal
from runner.plan import Job, Plan
from runner.records import Call, InOrder, PartFiles, Rollout
from runner.rundir import (
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    RunFolder,
    now,
    open_folder,
    refreshed,
    run_folders,
    write_inputs,
)
from runner.spec.load import Spec

GRACE_SECONDS = 30.0
"""How long calls in flight may still come in after the first Ctrl-C."""

Watch = Callable[[Progress], None]


class Interrupted(NipRunError):
    """The run was stopped by a signal; what was paid for is kept."""


@dataclass(frozen=True)
class RunResult:
    """What a run left."""

    folder: RunFolder
    manifest: dict[str, Any]
    metrics: dict[str, Any]
    was_finished: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)


def run(
    spec: Spec,
    results: str | Path = "results",
    *,
    run_id: str | None = None,
    again: bool = False,
    watch: Watch | None = None,
    on_leaderboard: bool = True,
) -> RunResult:
    """Play a spec, going on where an earlier run of it stopped, and put its rows on the leaderboard.

    A finished run is shown and not played again; `again` plays it anew, as a run of its own. `watch` is
    called whenever the progress has moved.

    Raises:
        ProviderRefusal: key, billing, unknown model, refused parameter.
        Interrupted: SIGINT or SIGTERM; run again to go on.
        RunError: disk, journal or leaderboard; the message says what to do.
    """
    plan, results = Plan(spec), Path(results)
    name = run_id or _run_id(plan, results, again)
    with ExitStack() as held:
        folder = RunFolder(results / "runs" / name)
        held.enter_context(locked(folder.lock, f"run {name}"))
        folder, manifest = open_folder(plan, results, name)
        if manifest["status"] == DONE and _is_same(manifest, plan):
            metrics = orjson.loads(folder.metrics.read_bytes())
            return RunResult(folder, manifest, metrics, was_finished=True)
        write_inputs(plan, folder)
        session = _Session(plan, folder, refreshed(manifest, plan), watch)
        session.play()
        result = RunResult(folder, session.manifest, session.metrics.summary(), notes=tuple(session.notes))
    if on_leaderboard:
        from runner import leaderboard

        leaderboard.append(results, result.folder)
    return result


def _run_id(plan: Plan, results: Path, again: bool) -> str:
    """The run's own id; for `again` the newest numbered one that is not finished, or the next."""
    taken = {folder.run_id: folder for folder in run_folders(results)}
    if not again or plan.run_id not in taken:
        return plan.run_id
    number = 2
    while (name := f"{plan.run_id}-{number}") in taken:
        if taken[name].manifest()["status"] != DONE:
            return name
        number += 1
    return name


def _is_same(manifest: dict[str, Any], plan: Plan) -> bool:
    """Whether a finished run is all that the plan asks for."""
    from runner.rundir import resolved

    return bool(manifest["spec_sha256"] == tagged_hash("spec", resolved(plan)))


class _Session:
    """One process's work on a run, from opening the journal to closing it."""

    def __init__(self, plan: Plan, folder: RunFolder, manifest: dict[str, Any], watch: Watch | None) -> None:
        self.plan, self.folder, self.manifest = plan, folder, manifest
        self.metrics = Metrics(plan.spec.protocol)
        self.notes: list[str] = []
        self.progress = Progress(total=plan.size)
        self._watch = watch or (lambda _: None)
        self._prices = {name: price_of(settings) for name, settings in plan.spec.experiment.models.items()}
        self._usage = {"completions": 0, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
        agents = plan.spec.experiment.agents
        self._group_of = {name: settings.model for name, settings in agents.items()}

    def play(self) -> None:
        """Play what is left, then derive everything from the records."""
        self.manifest["status"] = RUNNING
        self.folder.write_manifest(self.manifest)
        try:
            asyncio.run(self._play())
        except (Stopped, KeyboardInterrupt, asyncio.CancelledError):
            self._end(INTERRUPTED)
            raise Interrupted(f"run {self.folder.run_id} was interrupted; what was paid for is kept") from None
        except (NipRunError, OSError) as error:
            self._end(INTERRUPTED if isinstance(error, BudgetExhausted) else FAILED)
            if isinstance(error, (ProviderRefusal, RunError, BudgetExhausted)):
                raise
            raise RunError(f"run {self.folder.run_id} failed: {error}") from error

    def _end(self, status: str) -> None:
        try:
            self.folder.write_manifest({**self.manifest, "status": status, "finished_at": now()})
        except RunError as error:
            self.notes.append(str(error))

    async def _play(self) -> None:
        spec = self.plan.spec
        experiment = spec.experiment
        used = {name: experiment.models[name] for name in dict.fromkeys(self._group_of.values())}
        durable = any(settings.provider == "openai" for settings in used.values())
        journal = Journal(self.folder.journal, durable=durable)
        try:
            if journal.opened.torn_bytes:
                self.notes.append(f"the journal ended in {journal.opened.torn_bytes} torn bytes, which were cut off")
            recorded = Recorded(journal.read, self._records(journal))
            engine = self._engine(recorded)

            async def failed(request: Request, attempt: int, error: TransientError, wait: float) -> None:
                sample = request.sample
                model = used[request.group].name
                self.progress.failures += 1
                self._watch(self.progress)
                engine.note_failure(request, Call(sample.round, sample.agent, sample.attempt, model, error=str(error)))
                await journal.append(failure_record(sample, attempt, str(error), wait))

            connection = connect(
                used,
                experiment.retry.transient,
                concurrency=experiment.rollouts.concurrency,
                replays=spec.replays,
                failed=failed,
            )
            try:
                parameters = {name: tagged_hash("model", _sent(settings)) for name, settings in used.items()}
                engine.complete = through_journal(connection.complete, journal, recorded, parameters)
                await self._play_all(engine)
            finally:
                await connection.close()
        finally:
            await journal.close()

    def _records(self, journal: Journal) -> Iterator[tuple[int, dict[str, Any]]]:
        return read_journal(self.folder.journal) if journal.opened.records else iter(())

    def _engine(self, recorded: Recorded) -> Engine:
        experiment = self.plan.spec.experiment
        names = {agent: experiment.models[group].name for agent, group in self._group_of.items()}

        def earlier(job: Job) -> list[Call]:
            calls = []
            for record in recorded.failures(job.datapoint.id, job.repeat):
                _, _, round_, agent, attempt = record["sample"]
                calls.append(Call(round_, agent, attempt, names[agent], error=record["error"]))
            return calls

        async def unconnected(request: Request) -> Any:
            raise RunError(f"{request.group} is not connected")

        return Engine(self.plan.spec.protocol, self.plan.agents(), unconnected, names, earlier)

    async def _play_all(self, engine: Engine) -> None:
        concurrency = min(self.plan.spec.experiment.rollouts.concurrency, self.plan.size)
        parts = PartFiles(self.folder.path, self.folder.run_id)
        settings = self.plan.spec.experiment.fine_tune
        files = FineTuneFiles(self.folder.fine_tune, settings, engine.agents) if settings else None

        def sink(rollout: Rollout) -> None:
            parts.write(rollout)
            self.metrics.add(rollout)
            if files is not None:
                files.add(rollout)
            self._count(rollout)

        ordered = InOrder(sink, max(MIN_AHEAD, AHEAD * concurrency))
        try:
            with _signals(engine):
                await engine.play_all(self.plan.jobs(), ordered, concurrency)
        except BaseException:
            parts.close()
            if files is not None:
                files.discard()
            raise
        await asyncio.to_thread(parts.seal)
        self._finish(files)

    def _count(self, rollout: Rollout) -> None:
        progress = self.progress
        progress.rollouts += 1
        progress.outcomes[rollout.outcome] = progress.outcomes.get(rollout.outcome, 0) + 1
        for call in rollout.calls:
            progress.calls += 1
            if call.error is None or call.finish_reason is not None:
                self._usage["completions"] += 1
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
                self._usage[name] += getattr(call, name)
            price = self._prices[self._group_of[call.agent]]
            if price is None:
                progress.cost_usd = None
            elif progress.cost_usd is not None:
                progress.cost_usd += price.cost(call.prompt_tokens, call.completion_tokens, call.cached_tokens)
        progress.prompt_tokens = self._usage["prompt_tokens"]
        progress.completion_tokens = self._usage["completion_tokens"]
        self._watch(progress)

    def _finish(self, files: FineTuneFiles | None) -> None:
        summary = {
            "run_id": self.folder.run_id,
            **self.metrics.summary(),
            "original_statistics": self.metrics.original_statistics(),
        }
        write_whole(self.folder.metrics, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
        if files is not None:
            report = files.close()
            write_whole(self.folder.fine_tune / "report.json", orjson.dumps(report, option=orjson.OPT_INDENT_2))
            self.notes.extend(
                f"{row['file']} was not written: {row['why_not_written']}" for row in report if not row["written"]
            )
        elif self.folder.fine_tune.is_dir():
            shutil.rmtree(self.folder.fine_tune)
        cost = self.progress.cost_usd
        self.manifest.update(
            status=DONE,
            finished_at=now(),
            rollouts=self.progress.rollouts,
            **self._usage,
            cost_usd=None if cost is None else round(cost, 9),
            agents=self._agent_rows(),
        )
        self.folder.write_manifest(self.manifest)

    def _agent_rows(self) -> list[dict[str, Any]]:
        rows = []
        for name, agent in self.plan.agents().items():
            rows.append(
                {
                    "agent": name,
                    "role": agent.agent_spec.role,
                    "model_group": agent.shared_model_group,
                    "provider": agent.model_settings.provider,
                    "model": agent.model_name,
                    "base_model": agent.base_model_name,
                }
            )
        return rows


def _sent(settings: Any) -> dict[str, Any]:
    """What a group's requests hold besides the messages."""
    return {"model": settings.model, "sampling": plain(settings.sampling()), "system_role": settings.system_role}


class _signals:  # noqa: N801 - used like a function
    """While games are played: the first SIGINT or SIGTERM stops asking, the second stops now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._stop)
        except (ValueError, RuntimeError):
            pass  # not the main thread, as in a notebook: signals are whoever's that is

    def _stop(self) -> None:
        if self._engine.stopping:
            self._cancel()
        else:
            self._engine.stopping = True
            self._loop.call_later(GRACE_SECONDS, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError, RuntimeError):
                self._loop.remove_signal_handler(number)
