"""Debates into verdicts: the judge alone is asked, about what another run's agents have said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.base.errors import ContextExceededError, GenerationError, RefusedError
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import PendingTurn, Reply, Round
from runner.models.interface import estimated_prompt_tokens
from runner.rollouts.confidence import confidence_of
from runner.rollouts.engine import FAILURES, Engine
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debate, verdict_rounds
from runner.rollouts.rollout import Call, Outcome, Rollout, RoundVerdict

_NO_VERDICT = (GenerationError, RefusedError, ContextExceededError)
"""Failures of a verdict on the way, after which the debate goes on to its end all the same."""


def asked_in(plan: Plan, job: Job) -> list[int]:
    """The rounds in which a job's judge is asked, the last one last."""
    debate, rejudge = plan.debate(job), plan.spec.experiment.rejudge
    end = len(debate.rounds)
    if rejudge is None or rejudge.verdict == "last":
        return [end]
    return [*(i for i in verdict_rounds(plan.spec.protocol, job.seed, end) if i < end), end]


@dataclass
class JudgingEngine(Engine):
    """Judges debates with one agent over one way to ask models."""

    plan: Plan | None = None

    async def play(self, job: Job) -> list[Rollout]:
        """Judge one debate, whatever comes of it."""
        assert self.plan is not None
        debate = self.plan.debate(job)
        *before, end = asked_in(self.plan, job)
        calls: list[Call] = []
        verdicts: list[RoundVerdict] = []
        rounds = list(debate.rounds)
        decision, error = int(Decision.NONE), None
        try:
            for round_ in before:
                verdict, rounds[round_] = await self._verdict(job, debate, round_, calls)
                verdicts.append(verdict)
            reply = await self._reply(job, debate, end, calls)
            rounds = self._with_verdict(job, debate, rounds, reply)
            decision = int(reply.decision)
            outcome = Outcome.NO_DECISION if decision == Decision.NONE else Outcome.DECIDED
        except tuple(kind for kind, _ in FAILURES) as failure:
            outcome = next(name for kind, name in FAILURES if isinstance(failure, kind))
            error = f"{type(failure).__name__}: {failure}"
        rollout = self._rollout(job, calls, rounds, decision=decision, outcome=outcome, error=error)
        if self.plan.spec.experiment.rejudge is not None and self.plan.spec.experiment.rejudge.verdict == "each":
            sure = (rollout.confidence_stated, rollout.confidence_logprob, rollout.confidence_note)
            last = RoundVerdict(end, decision, tuple(rollout.votes or ()), error, *sure)
            rollout = rollout.with_verdicts([*verdicts, last])
        return [rollout]

    async def _reply(self, job: Job, debate: Debate, round_: int, calls: list[Call]) -> Reply:
        judge = self.protocol.verifier_name
        channels = self.protocol.can_be_active(round_)[judge]
        replies = await self._replies(job, PendingTurn(round_, {judge: channels}, debate.rounds[:round_]), calls)
        return replies[judge]

    async def _verdict(self, job: Job, debate: Debate, round_: int, calls: list[Call]) -> tuple[RoundVerdict, Round]:
        """A verdict on the way, and its round with what was asked for it.

        Only a failure of transport is one of the whole: the next process asks again.
        """
        judge, played = self.protocol.verifier_name, debate.rounds[round_]
        try:
            reply = await self._reply(job, debate, round_, calls)
        except _NO_VERDICT as failure:
            return RoundVerdict(round_, int(Decision.NONE), error=f"{type(failure).__name__}: {failure}"), played
        given = Round({judge: reply.raw}, calls={judge: reply.calls}, votes=reply.votes)
        sure = confidence_of(self.agents[judge], [*debate.rounds[:round_], given], calls, reply.decision)
        asked = replace(
            played, asked=frozenset({judge}), calls={judge: reply.calls}, cut={judge: reply.cut},
            retry_counts={judge: reply.retry_count}, token_limits={judge: reply.token_limit},
        )  # fmt: skip
        return RoundVerdict(round_, int(reply.decision), reply.votes, None, *sure), asked

    def _with_verdict(self, job: Job, debate: Debate, rounds: Sequence[Round], reply: Reply) -> list[Round]:
        """The rounds of a debate with that of the verdict."""
        game = self._game(job, rounds)
        turn = next(game)
        replies: Mapping[str, Reply] = {**debate.beside, self.protocol.verifier_name: reply}
        names = [name for name in self.protocol.agent_names if name in replies]
        try:
            game.send({name: replies[name] for name in names})
        except StopIteration as end:
            played: Sequence[Round] = end.value.rounds
        else:
            game.close()
            played = turn.rounds
        return [*played[:-1], replace(played[-1], asked=frozenset({self.protocol.verifier_name}))]


def judged_prompts(plan: Plan) -> Iterator[int]:
    """The estimated tokens of each prompt that a plan's judge will get, votes and retries left out."""
    judge = plan.agents()[plan.spec.protocol.verifier_name]
    for job in plan.jobs():
        debate = plan.debate(job)
        for round_ in asked_in(plan, job):
            yield estimated_prompt_tokens(judge.prompt(job.observation(round_, debate.rounds[:round_])))
