"""One process's work on a run: open the journal, connect the models, play what is left, derive the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runner.aio import run_sync
from runner.documents.fields import to_plain
from runner.errors import BudgetExhausted, CallError, Interrupted, RunError, UsageError
from runner.finetune.files import FineTuneFiles, Trees, remove_files
from runner.hashing import tagged_hash
from runner.models.base import Complete, Completion, Request
from runner.models.connect import Connection, Provider, connect
from runner.models.layers.budget import Amount, Budget, worst_case
from runner.models.layers.cache import Cache
from runner.models.layers.in_flight import InFlight
from runner.models.layers.journaled import JournaledCompleter, JournalIndex
from runner.models.prices import price_of
from runner.models.providers.replay import ReplayModel, ReplayThenLive
from runner.models.records import failure_record
from runner.models.settings import ModelSettings
from runner.results.folder import DONE, FAILED, INTERRUPTED, RUNNING, RunFolder
from runner.results.manifest import now
from runner.results.metrics import Metrics
from runner.results.tables import PartFiles
from runner.rollouts.engine import AHEAD, MIN_AHEAD, Engine, Progress
from runner.rollouts.failed_calls import FailedCalls
from runner.rollouts.job import Job
from runner.rollouts.ordered import InOrder
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import TRANSPORT_FAILED, Call, Rollout
from runner.rollouts.stop import Stop, Stopped
from runner.rollouts.trees import NOT_COMPARABLE, TreeStatistics, build_tree
from runner.runs.process import log_to, relaxed_gc, stopping_on_signals
from runner.runs.spending import count_lost, spending, used_models
from runner.storage.atomic import atomic_write
from runner.storage.journal import Journal, read_journal
from runner.text import comma_join

Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class ReplayOf:
    """Play with another run's answers: all of them, or those of the rounds before `until_round` alone."""

    run: Path
    until_round: int | None = None

    def __post_init__(self) -> None:
        if self.until_round is not None and self.until_round < 0:
            raise UsageError(
                f"until round {self.until_round}: rounds count from 0, and those before this one are replayed; 0 asks "
                "all of them live"
            )


class Session:
    """From opening the journal to closing it."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        manifest: dict[str, Any],
        *,
        budget: Budget | None = None,
        replay: ReplayOf | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.plan, self.folder, self.manifest = plan, folder, manifest
        self.metrics = Metrics(plan.spec.protocol)
        shape = plan.shape
        self._tree_statistics = None if shape is None else TreeStatistics(plan.spec.protocol, shape)
        self.notes: list[str] = []
        if shape is not None and manifest.get("parent_run_id") is None:
            self.notes.append(NOT_COMPARABLE)
        self.progress = Progress(total=plan.size, of="rollouts" if plan.shape is None else "trees")
        self._watch = watch or (lambda _: None)
        self._budget, self._replay = budget, replay
        self._models = used_models(plan)
        self._prices = {name: price_of(settings) for name, settings in self._models.items()}
        self._group_of = {name: agent.model for name, agent in plan.spec.experiment.agents.items()}
        self._cost = 0.0
        self._failed_calls = 0
        self._first_failure: str | None = None
        self._usage = {"completions": 0, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}

    def play(self) -> None:
        """Play what is left, then derive everything from the records.

        Raises:
            Interrupted, BudgetExhausted, ProviderRefusal, RunError: the run did not finish; all is kept.
        """
        self.manifest["status"] = RUNNING
        self.folder.write_manifest(self.manifest)
        try:
            with log_to(self.folder.log), relaxed_gc():
                run_sync(self._play)
        except (Stopped, KeyboardInterrupt, asyncio.CancelledError):
            if self.manifest["status"] == RUNNING:  # else all is written already
                self._end(INTERRUPTED)
            raise Interrupted(f"run {self.folder.run_id} was interrupted; what was paid for is kept") from None
        except Exception as error:
            self._end(INTERRUPTED if isinstance(error, BudgetExhausted) else FAILED)
            if isinstance(error, (CallError, OSError)):
                raise RunError(f"run {self.folder.run_id} failed: {error}") from error
            raise

    def _end(self, status: str) -> None:
        # The journal is what counts; where not even this can be written, the run shows as interrupted.
        with suppress(RunError):
            spent = spending(self.plan, self.folder)
            self.manifest.update(
                status=status,
                finished_at=now(),
                rollouts=self.progress.rollouts,
                completions=spent.completions,
                failed_calls=self.progress.failures,
                cost_usd=None if None in self._prices.values() else round(spent.usd, 9),
            )
            self.folder.write_manifest(self.manifest)

    async def _play(self) -> None:
        # What replays, and what is drawn from the seed, costs nothing to have again.
        journal = Journal(self.folder.journal, durable=any(s.provider == "openai" for s in self._models.values()))
        try:
            if journal.opened.torn_bytes:
                self.notes.append(f"the journal ended in {journal.opened.torn_bytes} torn bytes, which were cut off")
            self._note_lost(await count_lost(self.folder, journal))
            recorded = JournalIndex(journal.read, read_journal(self.folder.journal) if journal.opened.records else ())
            cache_path = self.plan.spec.cache
            cache = Cache(cache_path, self.folder.run_id) if cache_path is not None else None
            try:
                await self._play_with(journal, recorded, cache)
            finally:
                if cache is not None:
                    cache.close()
        finally:
            await journal.close()
        await _signals_heard()  # a Ctrl-C of the last moment cancels here, or it would be forgotten

    def _note_lost(self, most: Amount) -> None:
        if most.completions:
            priced = None not in self._prices.values()
            upto = f"${most.usd:.4f} is" if priced else f"{most.tokens} tokens are"
            calls = "1 call was" if most.completions == 1 else f"{most.completions} calls were"
            self.notes.append(f"{calls} in flight when the run was cut short; up to {upto} counted for what they cost")

    async def _play_with(self, journal: Journal, recorded: JournalIndex, cache: Cache | None) -> None:
        replayed = ReplayModel(self._replay.run) if self._replay is not None else None
        whole = replayed is not None and self._replay is not None and self._replay.until_round is None
        in_flight = InFlight(self.folder.in_flight)
        failed_calls = self._failed_calls_of(replayed.failures if replayed is not None and whole else recorded.failures)
        stop = Stop()

        def most_of(request: Request) -> Amount:
            return worst_case(request, self._models[request.group], self._prices[request.group])

        async def failed(request: Request, attempt: int, error: CallError, wait: float) -> None:
            sample = request.sample
            settings = self._models[request.group]
            if error.charged is None and error.status is None:
                # Without a budget nobody reserved anything; one that is set later must know of this call all the same.
                most = most_of(request)
                error.charged = (most.usd, most.tokens, most.completions)
            self.progress.failures += 1
            self._watch(self.progress)
            call = Call(sample.round, sample.agent, sample.attempt, settings.name, error=str(error))
            failed_calls.add(sample, call)
            await journal.append(failure_record(sample, attempt, error, wait))
            in_flight.settled(sample)
            stop.check()

        def before_call(request: Request) -> None:
            stop.check()
            settings = self._models[request.group]
            if settings.provider == "openai" and not settings.batch:
                in_flight.sent(request.sample, most_of(request), journal.records)

        connection = self._connect(stop, journal, recorded, cache, replayed, failed=failed, before_call=before_call)
        try:
            parameters = {name: tagged_hash("model", _sent(settings)) for name, settings in self._models.items()}
            journaled = JournaledCompleter(
                connection.complete,
                journal,
                recorded,
                parameters,
                sharing=self.plan.sharing,
                keep=self._keeper(cache),
                settled=in_flight.settled,
                refused=in_flight.refused,
                failed=failed,
                most=most_of,
            )
            await self._play_all(self._engine(journaled.complete, failed_calls, stop))
        finally:
            in_flight.close()
            await connection.close()

    def _keeper(self, cache: Cache | None) -> Callable[[Request, Completion], None]:
        """What puts answers into the cache; a cache that fails is a note, because the answer is in the journal."""

        def keep(request: Request, completion: Completion) -> None:
            if cache is None or self._replay is not None:
                return
            try:
                cache.keep(request, self._models[request.group], completion)
            except RunError as error:
                if str(error) not in self.notes:
                    self.notes.append(str(error))

        return keep

    def _connect(
        self,
        stop: Stop,
        journal: Journal,
        recorded: JournalIndex,
        cache: Cache | None,
        replayed: ReplayModel | None,
        **told: Any,
    ) -> Connection:
        policy = self.plan.spec.experiment.retry.transient
        options: Any = {
            "concurrency": self._concurrency,
            "replays": self.plan.spec.replays,
            "budget": self._budget,
            "cache": cache,
            "sleep": stop.sleep,
            **told,
        }
        until = self._replay.until_round if self._replay is not None else None
        if replayed is not None and until is None:
            return Connection(replayed.complete, (replayed.close,))
        batches = self._batches(journal, recorded, stop)
        live = connect(self._models, policy, **options, providers=batches)
        if replayed is None or until is None:
            return live
        both = ReplayThenLive(replayed, live, until)
        return Connection(both.complete, (both.close,))

    @property
    def _trees(self) -> Trees | None:
        shape = self.plan.shape
        return None if shape is None else Trees(shape, self.plan.spec.experiment.seed)

    def _batches(self, journal: Journal, recorded: JournalIndex, stop: Stop) -> dict[str, Provider]:
        """The groups that are asked by batch; they write to the journal themselves."""
        batched = [name for name, settings in self._models.items() if settings.provider == "openai" and settings.batch]
        if not batched:
            return {}
        from runner.models.providers.openai_batch import BatchModel

        return {
            name: BatchModel(self._models[name], name, journal.append, recorded.batches, before_sending=stop.check)
            for name in batched
        }

    @property
    def _concurrency(self) -> int:
        return self.plan.spec.experiment.rollouts.concurrency

    def _failed_calls_of(self, failures: Callable[[str, int], Sequence[dict[str, Any]]]) -> FailedCalls:
        names = {agent: self._models[group].name for agent, group in self._group_of.items()}

        def earlier(job: Job) -> list[Call]:
            calls = []
            for record in failures(job.datapoint.id, job.repeat):
                _, _, round_, agent, attempt = record["sample"]
                calls.append(Call(round_, agent, attempt, names[agent], error=record["error"]))
            return calls

        return FailedCalls(earlier)

    def _engine(self, complete: Complete, failed_calls: FailedCalls, stop: Stop) -> Engine:
        return Engine(
            self.plan.spec.protocol,
            self.plan.agents(),
            complete,
            failed_calls=failed_calls.take,
            shape=self.plan.shape,
            branch=self.plan.branch,
            prompt_siblings=self.plan.prompt_siblings if self.plan.sharing else None,
            sharing=self.plan.sharing,
            answered=self._answered,
            stop=stop,
        )

    async def _play_all(self, engine: Engine) -> None:
        # Games that wait for a batch cost nothing; all of them must be at the same step to go in one.
        batched = any(settings.batch for settings in self._models.values()) and self._replay is None
        concurrency = self.plan.size if batched else min(self._concurrency, self.plan.size)
        parts = PartFiles(self.folder.path, self.folder.run_id)
        settings = self.plan.spec.experiment.fine_tune
        run_id, folder = self.folder.run_id, self.folder.fine_tune
        files = FineTuneFiles(folder, settings, engine.agents, run_id, self._trees) if settings else None

        def sink(rollouts: Sequence[Rollout]) -> None:
            for rollout in rollouts:
                parts.write(rollout)
                self.metrics.add(rollout)
                self._count(rollout)
            root = build_tree(rollouts, self.plan.shape) if self.plan.shape is not None else None
            if root is not None and self._tree_statistics is not None:
                self._tree_statistics.add(root)
            if files is not None:
                files.add(rollouts)
            self.progress.jobs += 1
            self._watch(self.progress)

        ordered = InOrder(sink, max(MIN_AHEAD, AHEAD * concurrency))
        try:
            with stopping_on_signals(engine.stop):
                await engine.play_all(self.plan.jobs(), ordered, concurrency)
                await _signals_heard()
                engine.stop.check()
        except BaseException:
            with suppress(RunError):
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
        if rollout.outcome == TRANSPORT_FAILED and self._first_failure is None:
            self._first_failure = rollout.error
        for call in rollout.calls:
            if call.finish_reason is not None:
                self._usage["completions"] += 1
            elif call.error is not None:
                self._failed_calls += 1
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
                self._usage[name] += getattr(call, name)
            price = self._prices[self._group_of[call.agent]]
            if call.paid and price is not None:
                self._cost += price.cost(call.prompt_tokens, call.completion_tokens, call.cached_tokens)

    def _answered(self, request: Request, completion: Completion) -> None:
        """Count an answer for those who watch, as it comes in."""
        progress, usage = self.progress, completion.usage
        progress.calls += 1
        progress.prompt_tokens += usage.prompt_tokens
        progress.completion_tokens += usage.completion_tokens
        price = self._prices[request.group]
        if price is None:
            progress.cost_usd = None
        elif progress.cost_usd is not None and not completion.from_cache:
            progress.cost_usd += price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        self._watch(progress)

    def _finish(self, files: FineTuneFiles | None) -> None:
        trees = {} if self._tree_statistics is None else self._tree_statistics.original_statistics()
        summary = {
            "run_id": self.folder.run_id,
            **self.metrics.summary(),
            "original_statistics": {**self.metrics.original_statistics(), **trees},
        }
        atomic_write(self.folder.metrics, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
        if files is not None:
            report = files.close()
            atomic_write(self.folder.fine_tune / "report.json", orjson.dumps(report, option=orjson.OPT_INDENT_2))
            short = [f"{row['file']} ({row['examples']})" for row in report if not row["written"]]
            if short:
                fewest = self.plan.spec.experiment.fine_tune.min_examples if self.plan.spec.experiment.fine_tune else 0
                self.notes.append(
                    f"fine-tune files of fewer than {fewest} examples were not written: {comma_join(short)}"
                )
        else:
            remove_files(self.folder.fine_tune)
        transport_failed = self.metrics.outcomes[TRANSPORT_FAILED]
        if transport_failed:
            count = f"{transport_failed} of {self.progress.rollouts} rollouts failed in transport"
            self.notes.append(f"{count}, the first with {self._first_failure}; the same command asks for them again")
        self.manifest.update(
            status=FAILED if transport_failed == self.progress.rollouts else DONE,
            finished_at=now(),
            rollouts=self.progress.rollouts,
            **self._usage,
            failed_calls=self._failed_calls,
            cost_usd=None if None in self._prices.values() else round(self._cost, 9),
            cost_usd_at_most=None if None in self._prices.values() else round(spending(self.plan, self.folder).usd, 9),
            transport_failed=transport_failed,
        )
        self.folder.write_manifest(self.manifest)


async def _signals_heard() -> None:
    """Let a signal that came with the last answer reach its handler: the loop reads it, then calls it."""
    for _ in range(2):
        await asyncio.sleep(0)


def _sent(settings: ModelSettings) -> Mapping[str, Any]:
    """What a group's requests hold besides the messages."""
    return {"model": settings.model, "sampling": to_plain(settings.sampling()), "system_role": settings.system_role}
