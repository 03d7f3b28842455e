"""The engine: plays jobs concurrently in one event loop, and passes their rollouts on in the order of the plan.

A job is one game or one tree. A tree of responses is a game with branches: in each turn, the first answer continues the
game, and each further answer starts a branch with the same earlier rounds. A session has one engine, and each worker
has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from runner.base.async_runner import cancel_all
from runner.base.errors import (
    BudgetExhausted,
    NipRunError,
    ProviderRefusal,
    ServerUnreachable,
    Stopped,
    TooManyUnusable,
)
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import PendingTurn, Reply, Round
from runner.game.protocols.tree_shape import TreeShape
from runner.models.interface import Complete, Completion, Request
from runner.rollouts.agents.agent import Agent
from runner.rollouts.agents.selectors import find_selector, respond
from runner.rollouts.game_script import GAME_FAILURES, TURN_FAILURES, GameParts, GameScript, calls_of, play_game
from runner.rollouts.game_slots import GameSlots
from runner.rollouts.job import Job
from runner.rollouts.judging import judging_script
from runner.rollouts.plan import Plan
from runner.rollouts.reorder_buffer import PlanOrderBuffer
from runner.rollouts.rollout import Call, Rollout
from runner.rollouts.stop_switch import StopSwitch

LEAD_FACTOR = 4
"""A game may start if it is at most `LEAD_FACTOR` times the concurrency ahead of the first unfinished game."""

MIN_LEAD = 1024
"""The lower bound of this limit, as a number of games, for a small concurrency."""

REFUSED_SECONDS = 0.5
"""Seconds to wait for other calls in flight after a refusal. The provider will probably refuse them too."""

UNREACHABLE_SECONDS = 30.0
"""Seconds to wait for calls in flight after a server cannot be reached. Other servers may still give paid answers."""

ERRORS_THAT_STOP_ALL = (ProviderRefusal, ServerUnreachable, TooManyUnusable)
"""Errors that stop all games, after a wait for the calls in flight."""


def grace_seconds_after(error: BaseException) -> float:
    """Return how many seconds calls in flight have to end after this error, before they are canceled."""
    return REFUSED_SECONDS if isinstance(error, ProviderRefusal) else UNREACHABLE_SECONDS


@dataclass
class Engine:
    """Plays the games of one run with its rules, its agents and the function that calls their models."""

    protocol: Protocol
    agents: Mapping[str, Agent]
    complete: Complete
    failed_calls: Callable[[Job], Sequence[Call]] = lambda _: ()
    """Returns the failed calls of a job whose game has ended."""
    on_end: Callable[[Job], None] = lambda _: None
    """Called with the job of each game or branch of a tree that has ended with any outcome."""
    swapped_agents: Mapping[str, Agent] = field(default_factory=dict)
    """The agents of games with swapped seats, by seat; empty if the spec does not swap seats."""
    tree_shape: TreeShape | None = None
    """The shape of the trees to play; None for single games."""
    job_of_branch: Callable[[Job, int], Job] = lambda job, _: job
    """Returns the job of one branch of a tree, from the job of the tree and the branch's `repeat`."""
    create_script: Callable[[GameParts, Sequence[Round]], GameScript] = play_game
    """Returns the script of a game, which continues after the given rounds."""
    sibling_numbers: Callable[[Job, str], Sequence[int]] = lambda *_: ()
    """Returns the numbers of the other jobs where an agent gets the same first prompt; see `Plan.sibling_numbers`."""
    sharing_groups: frozenset[str] = frozenset()
    """The model groups that request the answers to several samples with the same prompt (siblings) in one call."""
    stop: StopSwitch = field(default_factory=StopSwitch)
    slots: GameSlots | None = None
    """The slots for games that this run shares with other runs; None if it shares none."""
    run_position: int = 0
    """The position of this run among the runs that share the slots."""
    check_budget: Callable[[], None] = lambda: None
    """Raises `BudgetExhausted` if the shared budget refused a call of another run. Called before each game."""
    budget_error: BudgetExhausted | None = None
    """The error of the first game that the budget did not allow, if any. If it is set, no other game starts."""
    _fatal_error_time: float | None = None
    """The time of the first error in `ERRORS_THAT_STOP_ALL`, by the event loop's clock."""
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def from_plan(cls, plan: Plan, complete: Complete, **options: Any) -> Self:
        """Return an engine that plays the games of a plan or, if the plan has debates, judges them."""
        script = play_game if plan.debates is None else judging_script(plan)
        swapped_agents = plan.game_agents(swapped=True) if plan.seats else {}
        return cls(
            plan.spec.protocol, plan.game_agents(), complete, swapped_agents=swapped_agents, tree_shape=plan.tree_shape,
            job_of_branch=plan.job_of_branch, create_script=script, sibling_numbers=plan.sibling_numbers,
            sharing_groups=plan.sharing_groups, **options,
        )  # fmt: skip

    def __post_init__(self) -> None:
        self.stop.call_on_stop(self._progress.set)

    async def play_all(self, jobs: Iterator[Job], results: PlanOrderBuffer, concurrency: int) -> None:
        """Play every job, at most `concurrency` of them concurrently, and put its rollouts into `results`.

        Raises:
            ProviderRefusal, RunError, JournalError: an error stops the whole run. Calls in flight are canceled, after
                the time of `grace_seconds_after` for an error in `ERRORS_THAT_STOP_ALL`.
            Stopped: the run was asked to stop. Games in progress were left unfinished.
            BudgetExhausted: the budget does not allow the remaining games. All games that the budget allowed were
                finished.
        """
        tasks = [asyncio.create_task(self._play_in_turn(jobs, results)) for _ in range(concurrency)]
        try:
            stop_error = await _wait_for_all(tasks, (Stopped, BudgetExhausted))
            if stop_error is not None:
                raise stop_error
        except ERRORS_THAT_STOP_ALL as error:
            await self._await_calls_in_flight(tasks, error)
            raise
        finally:
            await cancel_all(tasks)

    async def _await_calls_in_flight(self, tasks: Sequence[asyncio.Task[Any]], error: NipRunError) -> None:
        """Stop sending requests, and wait for calls in flight, whose answers may be billed.

        The wait ends at most `grace_seconds_after(error)` after the first such error.
        """
        self.stop.stop_all()
        now = asyncio.get_running_loop().time()
        self._fatal_error_time = now if self._fatal_error_time is None else self._fatal_error_time
        if tasks:
            deadline = self._fatal_error_time + grace_seconds_after(error)
            await asyncio.wait(tasks, timeout=max(deadline - now, 0.0))

    @asynccontextmanager
    async def _hold_slot(self) -> AsyncIterator[None]:
        """Hold one of the shared slots while a game is played; do nothing if the run shares no slots."""
        if self.slots is None:
            yield
            return
        await self.slots.enter(self.run_position)
        try:
            self._check_may_start()
            yield
        finally:
            self.slots.leave()

    async def _play_in_turn(self, jobs: Iterator[Job], results: PlanOrderBuffer) -> None:
        """Play one job after another. `jobs` is an iterator that several tasks share."""
        for job in jobs:
            self._check_may_start()
            while not results.has_room(job.index):
                self._progress.clear()
                await self._progress.wait()
                self._check_may_start()
            try:
                async with self._hold_slot():
                    results.put(job.index, await self.play(job))
            except BudgetExhausted as error:
                # No new games start. Games in progress continue, because they can still use budget that other
                # calls have reserved but not spent.
                self.budget_error = error
                raise
            finally:
                self._progress.set()
            # Let the event loop handle signals, because a provider without a network never suspends this task.
            await asyncio.sleep(0)

    def _check_may_start(self) -> None:
        """Raise an error if no new game may start.

        Raises:
            Stopped: the run is stopping.
            BudgetExhausted: the budget is exhausted.
        """
        self.stop.check()
        if self.budget_error is not None:
            raise self.budget_error
        self.check_budget()

    async def play(self, job: Job) -> list[Rollout]:
        """Play one game or tree, and return its rollouts: one for a game, or one for each branch, by `repeat`."""
        return sorted(await self._play_branches(job, (), 0), key=lambda rollout: rollout.job.repeat)

    async def _play_branches(self, job: Job, rounds: Sequence[Round], branch_start: int) -> list[Rollout]:
        """Continue a game after these rounds, and play all branches that begin in round `branch_start` or later.

        Return the rollouts of the game and of the branches.
        """
        agents = self.swapped_agents if job.swapped else self.agents
        parts = GameParts(self.protocol, agents, job, self.failed_calls)
        script = self.create_script(parts, rounds)
        branches: list[asyncio.Task[list[Rollout]]] = []
        unfinished: BaseException | None = None
        rollouts = []
        try:
            try:
                rollouts.append(await self._play_one_game(parts, script, branch_start, branches))
            except (Stopped, BudgetExhausted) as failure:
                unfinished = failure
            await _wait_for_all(branches)
        except ERRORS_THAT_STOP_ALL as error:
            await self._await_calls_in_flight(branches, error)
            raise
        finally:
            script.close()
            await cancel_all(branches)
        for task in branches:
            rollouts.extend(task.result())
        if unfinished is not None:
            raise unfinished
        return rollouts

    def _start_branches(self, job: Job, turn: PendingTurn) -> Iterator[asyncio.Task[list[Rollout]]]:
        """Start and yield a task for each branch that begins with this turn: one for each answer after the first."""
        for repeat in self.tree_shape.siblings(job.repeat, turn.round) if self.tree_shape is not None else ():
            branch = self.job_of_branch(job, repeat)
            yield asyncio.create_task(self._play_branches(branch, tuple(turn.rounds), turn.round + 1))

    async def _play_one_game(
        self, parts: GameParts, script: GameScript, branch_start: int, branches: list[asyncio.Task[list[Rollout]]]
    ) -> Rollout:
        """Play one game and return its rollout. The tasks that play its branches are added to `branches`."""
        try:
            turn = next(script)
            while True:
                if turn.round >= branch_start:
                    branches.extend(self._start_branches(parts.job, turn))
                try:
                    replies = await self._replies(parts, turn)
                except GAME_FAILURES as failure:
                    turn = script.throw(failure)
                else:
                    turn = script.send(replies)
        except StopIteration as end:
            self.on_end(parts.job)
            rollout: Rollout = end.value
            return rollout

    async def _replies(self, parts: GameParts, turn: PendingTurn) -> dict[str, Reply]:
        """Call the models of all speakers in a turn, and return their replies by agent."""
        observation = parts.job.observation(turn.round, turn.rounds)
        step = self.protocol.step(turn.round)

        async def complete(request: Request) -> Completion:
            self.stop.check()
            completion = await self.complete(self._with_siblings(request, parts, turn))
            parts.calls.extend(calls_of(request.sample, completion, parts.agents[request.sample.agent]))
            return completion

        async def reply(name: str) -> Reply:
            agents, wait = parts.agents, self._await_replies
            if step.best_of is None and step.states is None:
                return await agents[name].respond(observation, complete, wait_for_replies=wait)
            return await respond(agents, self.protocol, name, observation, complete, wait_for_replies=wait)

        if len(turn.speakers) == 1:
            (name,) = turn.speakers
            return {name: await reply(name)}
        speakers = [name for name in self.protocol.agent_names if name in turn.speakers]
        tasks = [asyncio.create_task(reply(name)) for name in speakers]
        await self._await_replies(tasks)
        return {name: task.result() for name, task in zip(speakers, tasks, strict=True)}

    def _with_siblings(self, request: Request, parts: GameParts, turn: PendingTurn) -> Request:
        """Return a request with the other samples whose answers the same call may request, if there are any."""
        sample = request.sample
        if request.group not in self.sharing_groups or sample.attempt:
            return request
        selector = find_selector(parts.agents, self.protocol, sample.agent, turn.round)
        if selector is not None:
            siblings = (sample._replace(vote=vote) for vote in range(selector.best_of.n) if vote != sample.vote)
        elif sample.vote == 0 and sample.agent in self.protocol.agent_names:
            numbers = self._find_sibling_numbers(parts.job, sample.agent, turn)
            siblings = (sample._replace(repeat=number) for number in numbers)
        else:
            return request
        return replace(request, siblings=tuple(siblings))

    def _find_sibling_numbers(self, job: Job, agent: str, turn: PendingTurn) -> Sequence[int]:
        """Return the numbers of the other jobs where the agent gets the same prompt in this turn."""
        if self.tree_shape is not None:
            return self.tree_shape.siblings(job.repeat, turn.round)
        is_first_turn = not any(round_.raw for round_ in turn.rounds)
        return self.sibling_numbers(job, agent) if is_first_turn else ()

    async def _await_replies(self, tasks: Sequence[asyncio.Task[Reply]]) -> None:
        """Wait for all speakers of a round, or all votes on a verdict.

        If one fails with an error that stops the run, the others are canceled, and the error is raised.
        """
        try:
            await _wait_for_all(tasks)
        except ERRORS_THAT_STOP_ALL as error:
            await self._await_calls_in_flight(tasks, error)
            raise
        finally:
            await cancel_all(tasks)


async def _wait_for_all(
    tasks: Sequence[asyncio.Task[Any]], tolerated: tuple[type[BaseException], ...] = TURN_FAILURES
) -> BaseException | None:
    """Wait for all tasks, and return the last tolerated error, if any. Any other error ends the wait and is raised.

    By default, errors that end only one game are tolerated: the other tasks still finish, because their answers are
    paid for. The caller gets such an error from `task.result()`. It reads the results in the protocol's order, so that
    chance does not decide which of several errors is raised.
    """
    pending = set(tasks)
    tolerated_error: BaseException | None = None
    while pending:
        finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            failure = task.exception()
            if isinstance(failure, tolerated):
                tolerated_error = failure
            elif failure is not None:
                raise failure
    return tolerated_error
