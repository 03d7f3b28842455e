"""Jobs into rollouts: one event loop, games that advance independently, results in the order of the plan.

A tree of responses is a game that others branch off: at each step one answer is the game's own, and each further one
begins a game that has the same rounds behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from runner.base.async_runner import cancel_all
from runner.base.errors import BudgetExhausted, NipRunError, ProviderRefusal, ServerUnreachable, TooManyUnusable
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import PendingTurn, Reply, Round
from runner.game.protocols.tree_shape import TreeShape
from runner.models.interface import Complete, Completion, Request
from runner.rollouts.agents.agent import Agent
from runner.rollouts.game_script import GAME_FAILURES, TURN_FAILURES, GameParts, GameScript, calls_of, play_game
from runner.rollouts.game_slots import Slots
from runner.rollouts.job import Job
from runner.rollouts.judging import judge_debates
from runner.rollouts.plan import Plan
from runner.rollouts.plan_order import InOrder
from runner.rollouts.rollout import Call, Rollout
from runner.rollouts.stop_switch import Stopped, StopSwitch

T = TypeVar("T")

AHEAD = 4
"""How many times the concurrency a game may be ahead of the slowest unfinished one."""

MIN_AHEAD = 1024

REFUSED_SECONDS = 0.5
"""How long calls in flight may still come in once the provider has refused one: it tells the others at once too."""

UNREACHABLE_SECONDS = 30.0
"""The same once a server was given up: another one may be at work on answers that are billed."""

STOPS_ALL = (ProviderRefusal, ServerUnreachable, TooManyUnusable)
"""What keeps all games from going on, where calls in flight may still come in."""


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
    script: Callable[[GameParts, Sequence[Round]], GameScript] = play_game
    """The games: how each goes on after the rounds that were played of it."""
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

    @classmethod
    def of_plan(cls, plan: Plan, complete: Complete, **options: Any) -> Self:
        """Return an engine for the games of a plan, or for the debates that are judged instead."""
        script = play_game if plan.debates is None else judge_debates(plan)
        swapped = plan.agents(swapped=True) if plan.seats else {}
        return cls(
            plan.spec.protocol, plan.agents(), complete, swapped=swapped, shape=plan.shape, branch=plan.branch,
            script=script, **options,
        )  # fmt: skip

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
        return sorted(await self._branches(job, (), 0), key=lambda rollout: rollout.job.repeat)

    def _parts(self, job: Job) -> GameParts:
        return GameParts(self.protocol, self.swapped if job.swapped else self.agents, job, self.failed_calls)

    async def _branches(self, job: Job, rounds: Sequence[Round], start: int) -> list[Rollout]:
        """Play a game on after these rounds, and every branch that leaves it in round `start` or later."""
        parts = self._parts(job)
        script = self.script(parts, rounds)
        others: list[asyncio.Task[list[Rollout]]] = []
        unfinished: BaseException | None = None
        rollouts = []
        try:
            try:
                rollouts.append(await self._line(parts, script, start, others))
            except (Stopped, BudgetExhausted) as failure:
                unfinished = failure
            await _all_unless_fatal(others)
        except STOPS_ALL as error:
            await self._let_come_in(others, error)
            raise
        finally:
            script.close()
            await cancel_all(others)
        for task in others:
            rollouts.extend(task.result())
        if unfinished is not None:
            raise unfinished
        return rollouts

    def _fork(self, job: Job, turn: PendingTurn) -> Iterator[asyncio.Task[list[Rollout]]]:
        """Begin a branch for each further answer to a step."""
        for repeat in self.shape.siblings(job.repeat, turn.round) if self.shape is not None else ():
            yield asyncio.create_task(self._branches(self.branch(job, repeat), tuple(turn.rounds), turn.round + 1))

    async def _line(
        self, parts: GameParts, script: GameScript, start: int, others: list[asyncio.Task[list[Rollout]]]
    ) -> Rollout:
        """Play one game to its end; tasks that play the branches off it are added to `others`."""
        try:
            turn = next(script)
            while True:
                if turn.round >= start:
                    others.extend(self._fork(parts.job, turn))
                try:
                    replies = await self._replies(parts, turn)
                except GAME_FAILURES as failure:
                    turn = script.throw(failure)
                else:
                    turn = script.send(replies)
        except StopIteration as end:
            self.ended(parts.job)
            rollout: Rollout = end.value
            return rollout

    async def _replies(self, parts: GameParts, turn: PendingTurn) -> dict[str, Reply]:
        job, agents = parts.job, parts.agents
        observation = job.observation(turn.round, turn.rounds)
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
            parts.calls.extend(calls_of(request.sample, completion, agents[request.sample.agent]))
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
            if failure is not None and not isinstance(failure, TURN_FAILURES):
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
