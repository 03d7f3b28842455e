"""Jobs into rollouts: one event loop, games that advance independently, results in the order of the plan.

A tree of responses is a game that others branch off: at each step one answer is the game's own, and each further one
begins a game that has the same rounds behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from runner.base.async_runner import cancel_all
from runner.base.errors import (
    BudgetExhausted,
    ContentFilterError,
    ContextExceededError,
    GenerationError,
    MalformedError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    ServerUnreachable,
    TooManyUnusable,
    TransientError,
)
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import FinishedGame, PendingTurn, Reply, Round, episode_rewards, play
from runner.game.protocols.tree_shape import TreeShape
from runner.models.interface import Complete, Completion, Request
from runner.models.logprobs import has_logprobs, logprobs_of_span, p_accept
from runner.rollouts.agents.agent import Agent
from runner.rollouts.confidence import confidence_of
from runner.rollouts.game_slots import Slots
from runner.rollouts.job import Job
from runner.rollouts.plan_order import InOrder
from runner.rollouts.rollout import Call, Outcome, Rollout, usage_fields
from runner.rollouts.stop_switch import Stopped, StopSwitch

T = TypeVar("T")

Game = Generator[PendingTurn, Mapping[str, Reply], FinishedGame]

AHEAD = 4
"""How many times the concurrency a game may be ahead of the slowest unfinished one."""

MIN_AHEAD = 1024

REFUSED_SECONDS = 0.5
"""How long calls in flight may still come in once the provider has refused one: it tells the others at once too."""

UNREACHABLE_SECONDS = 30.0
"""The same once a server was given up: another one may be at work on answers that are billed."""

STOPS_ALL = (ProviderRefusal, ServerUnreachable, TooManyUnusable)
"""What keeps all games from going on, where calls in flight may still come in."""

FAILURES: tuple[tuple[type[NipRunError], Outcome], ...] = (
    (ContentFilterError, Outcome.REFUSED),
    (RefusedError, Outcome.REFUSED),
    (GenerationError, Outcome.INVALID_RESPONSE),
    (ContextExceededError, Outcome.CONTEXT_EXCEEDED),
    (TransientError, Outcome.TRANSPORT_FAILED),
    (MalformedError, Outcome.TRANSPORT_FAILED),
)
"""What ends one game and not the run, and the outcome it is.

A request that the server cannot read was not refused by a model or a policy: as `refused` it would count as a wrong
verdict, and its run would rank. It failed in transport: no verdict, no place, and the same command asks again.
"""


_LETS_OTHERS_FINISH = (*(kind for kind, _ in FAILURES), Stopped, BudgetExhausted)
"""What ends one speaker's turn and not the answers that the others have paid for."""


@dataclass
class Engine:
    """Plays games with agents over one way to ask models."""

    protocol: Protocol
    agents: Mapping[str, Agent]
    complete: Complete
    failed_calls: Callable[[Job], Sequence[Call]] = lambda _: ()
    """The failed attempts behind a finished rollout."""
    ended: Callable[[Job], None] = lambda _: None
    """Told of each game, and each branch of a tree, that was played to its end, whatever that is."""
    swapped: Mapping[str, Agent] = field(default_factory=dict)
    """The agents of games in which two seats have exchanged their players."""
    shape: TreeShape | None = None
    """The shape of the trees that are played; None: single games."""
    branch: Callable[[Job, int], Job] = lambda job, _: job
    """One branch of a tree as a job of its own."""
    siblings: Callable[[Job, str], Sequence[int]] = lambda *_: ()
    """The numbers of the other plays of a job's datapoint in which an agent opens as it does in this one."""
    sharing: frozenset[str] = frozenset()
    """The model groups that ask for the answers of sibling samples in one call."""
    stop: StopSwitch = field(default_factory=StopSwitch)
    slots: Slots | None = None
    """The places for games that this run shares with others; None: it has all that it wants."""
    order: int = 0
    """Its place among those runs."""
    check_budget: Callable[[], None] = lambda: None
    """Raises `BudgetExhausted` where a run of the same budget was refused a call: no new game begins."""
    exhausted: BudgetExhausted | None = None
    _refused_at: float | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.stop.wakes(self._moved)

    async def play_all(self, jobs: Iterator[Job], results: InOrder, concurrency: int) -> None:
        """Play every job, `concurrency` at once; its rollouts go to `results` when its turn comes.

        Raises:
            ProviderRefusal, RunError, JournalError: what stops the whole run. Calls in flight are given up; after a
                refusal, those that are not back in a moment.
            Stopped: the run was asked to stop; games already begun were left where they are.
            BudgetExhausted: the budget does not allow the rest; games that it allowed were played to their end.
        """

        async def worker() -> None:
            for job in jobs:
                self._begin()
                while not results.has_room(job.index):
                    self._moved.clear()
                    await self._moved.wait()
                    self._begin()
                try:
                    async with self._slot():
                        results.put(job.index, await self.play(job))
                except BudgetExhausted as error:
                    # Games that were begun may still fit what is reserved for others now; new ones may not.
                    self.exhausted = error
                    raise
                finally:
                    self._moved.set()
                # A provider that answers at once never waits, and signals need the loop.
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(worker()) for _ in range(concurrency)]
        try:
            await _all_or_first_failure(tasks)
        except STOPS_ALL as error:
            await self._let_come_in(tasks, error)
            raise
        finally:
            await cancel_all(tasks)

    async def _let_come_in(self, tasks: Sequence[asyncio.Task[Any]], error: NipRunError) -> None:
        """Ask nothing new, and wait for what is in flight: it may be answered, and billed."""
        self.stop.stop_all()
        now = asyncio.get_running_loop().time()
        self._refused_at = now if self._refused_at is None else self._refused_at
        if tasks:
            seconds = REFUSED_SECONDS if isinstance(error, ProviderRefusal) else UNREACHABLE_SECONDS
            await asyncio.wait(tasks, timeout=max(self._refused_at + seconds - now, 0.0))

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """A place for one game, where they are shared."""
        if self.slots is None:
            yield
            return
        await self.slots.enter(self.order)
        try:
            self._begin()
            yield
        finally:
            self.slots.leave()

    def _begin(self) -> None:
        """Raise what keeps new games from starting."""
        self.stop.check()
        if self.exhausted is not None:
            raise self.exhausted
        self.check_budget()

    async def play(self, job: Job) -> list[Rollout]:
        """Play one game to its end, whatever that is; or one tree, whose branches come in order."""
        return sorted(await self._branches(job, self._game(job, ()), 0), key=lambda rollout: rollout.job.repeat)

    def _game(self, job: Job, rounds: Sequence[Round]) -> Game:
        point = job.datapoint
        return play(self.protocol, seed=job.seed, label=point.label, prover_stance=job.prover_stance, rounds=rounds)

    async def _branches(self, job: Job, game: Game, start: int) -> list[Rollout]:
        """Play a game on to its end, and every branch that leaves it in round `start` or later."""
        others: list[asyncio.Task[list[Rollout]]] = []
        unfinished: BaseException | None = None
        rollouts = []
        try:
            try:
                rollouts.append(await self._line(job, game, start, others))
            except (Stopped, BudgetExhausted) as failure:
                unfinished = failure
            await _all_unless_fatal(others)
        except STOPS_ALL as error:
            await self._let_come_in(others, error)
            raise
        finally:
            game.close()
            await cancel_all(others)
        for task in others:
            rollouts.extend(task.result())
        if unfinished is not None:
            raise unfinished
        return rollouts

    def _fork(self, job: Job, turn: PendingTurn) -> Iterator[asyncio.Task[list[Rollout]]]:
        """Begin a branch for each further answer to a step."""
        for repeat in self.shape.siblings(job.repeat, turn.round) if self.shape is not None else ():
            branch = self.branch(job, repeat)
            yield asyncio.create_task(self._branches(branch, self._game(branch, tuple(turn.rounds)), turn.round + 1))

    async def _line(self, job: Job, game: Game, start: int, others: list[asyncio.Task[list[Rollout]]]) -> Rollout:
        """Play one game to its end; tasks that play the branches off it are added to `others`."""
        calls: list[Call] = []
        rounds: Sequence[Round] = ()
        decision, error = int(Decision.NONE), None
        try:
            turn = next(game)
            while True:
                rounds = turn.rounds
                if turn.round >= start:
                    others.extend(self._fork(job, turn))
                turn = game.send(await self._replies(job, turn, calls))
        except StopIteration as end:
            rounds, decision = end.value.rounds, int(end.value.decision)
            outcome = Outcome.DECIDED if end.value.decided else Outcome.NO_DECISION
        except tuple(kind for kind, _ in FAILURES) as failure:
            outcome = next(name for kind, name in FAILURES if isinstance(failure, kind))
            error = f"{type(failure).__name__}: {failure}"
        return self._rollout(job, calls, rounds, decision=decision, outcome=outcome, error=error)

    def _rollout(
        self,
        job: Job,
        calls: list[Call],
        rounds: Sequence[Round],
        *,
        decision: int,
        outcome: Outcome,
        error: str | None,
    ) -> Rollout:
        self.ended(job)
        calls.extend(self.failed_calls(job))
        # The order in which simultaneous speakers were answered is chance; rows are in the protocol's.
        names = self.protocol.agent_names
        calls.sort(key=lambda call: (call.round, names.index(call.agent), call.vote, call.attempt, call.error is None))
        rewards = episode_rewards(self.protocol, rounds, is_labelled=job.datapoint.label is not None)
        stance = self.protocol.shared_stance(job.prover_stance)
        stated, logprob, note = confidence_of(self.agents[self.protocol.verifier_name], rounds, calls, decision)
        return Rollout(
            job, tuple(rounds), decision, outcome, stance, rewards, calls, error,
            confidence_stated=stated, confidence_logprob=logprob, confidence_note=note,
            votes=(rounds[-1].votes if rounds else ()) or None,
        )  # fmt: skip

    async def _replies(self, job: Job, turn: PendingTurn, calls: list[Call]) -> dict[str, Reply]:
        observation, agents = job.observation(turn.round, turn.rounds), self.swapped if job.swapped else self.agents
        opening = not any(played.raw for played in turn.rounds)

        def siblings(agent: str) -> Sequence[int]:
            """The plays whose answer to this step may come in the same call."""
            if self.shape is not None:
                return self.shape.siblings(job.repeat, turn.round)
            return self.siblings(job, agent) if opening else ()

        async def complete(request: Request) -> Completion:
            self.stop.check()
            if request.group in self.sharing and request.sample.attempt == request.sample.vote == 0:
                samples = (request.sample._replace(repeat=repeat) for repeat in siblings(request.sample.agent))
                request = replace(request, siblings=tuple(samples))
            completion = await self.complete(request)
            calls.extend(_calls(request, completion, agents[request.sample.agent]))
            return completion

        if len(turn.speakers) == 1:
            (name,) = turn.speakers
            return {name: await agents[name].respond(observation, complete, together=self._together)}
        speakers = [name for name in self.protocol.agent_names if name in turn.speakers]
        tasks = [
            asyncio.create_task(agents[name].respond(observation, complete, together=self._together))
            for name in speakers
        ]
        await self._together(tasks)
        return {name: task.result() for name, task in zip(speakers, tasks, strict=True)}

    async def _together(self, tasks: Sequence[asyncio.Task[Reply]]) -> None:
        """Wait for all speakers of a round, or all votes on a verdict; what stops the whole run stops the wait."""
        try:
            await _all_unless_fatal(tasks)
        except STOPS_ALL as error:
            await self._let_come_in(tasks, error)
            raise
        finally:
            await cancel_all(tasks)


def _calls(request: Request, completion: Completion, agent: Agent) -> Iterator[Call]:
    """One row for each answer; the tokens of the call stand with the first."""
    sample, usage, told = request.sample, completion.usage, has_logprobs(completion)
    is_estimated = usage.estimated and agent.model_settings.traits.metered
    for index, choice in enumerate(completion.choices):
        first = index == 0
        reads = agent.is_verifier and agent.hyper_params.verdict.reads_logprobs
        looks = (told or reads) and choice.text is not None
        verdict = agent.verdict_span(choice.text or "", sample.round) if looks else None
        fork = agent.verdict_fork(choice.text or "") if verdict is not None and reads else None
        yield Call(
            sample.round,
            sample.agent,
            sample.attempt,
            completion.model,
            choice.finish_reason,
            choice.text,
            latency_ms=completion.latency_ms,
            error=choice.refusal,
            reasoning=choice.reasoning,
            verdict_logprobs=logprobs_of_span(completion, index, verdict) if verdict is not None and told else None,
            p_accept=p_accept(completion, index, fork) if verdict is not None and reads else None,
            paid=not completion.from_cache,
            vote=sample.vote,
            usage_estimated=is_estimated and first,
            origin=completion.origin,
            **(usage_fields(usage) if first else {}),
        )


async def _all_unless_fatal(tasks: Sequence[asyncio.Task[T]]) -> None:
    """Wait for all speakers of a round, or all branches; only what stops the whole run stops the wait.

    What ends the game alone lets the others finish: their answers are paid for, and which of two such failures
    came first is chance. `task.result()` then raises the first in the protocol's order.
    """
    pending: set[asyncio.Task[T]] = set(tasks)
    while pending:
        finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            failure = task.exception()
            if failure is not None and not isinstance(failure, _LETS_OTHERS_FINISH):
                raise failure


async def _all_or_first_failure(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all tasks. A failure ends the wait at once, except one for which all are awaited."""
    pending: set[asyncio.Task[None]] = set(tasks)
    stopped: BaseException | None = None
    while pending:
        finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            failure = task.exception()
            if isinstance(failure, (Stopped, BudgetExhausted)):
                stopped = failure
            elif failure is not None:
                raise failure
    if stopped is not None:
        raise stopped
