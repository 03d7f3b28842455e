"""Judges the debates of another run. Only the model of the judge, the verifier of the spec, is called.

If a plan has debates, the engine uses `judging_script` instead of `play_game`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.base.errors import ContextExceededError, GenerationError, RefusedError
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import PendingTurn, Reply, Round, play
from runner.models.interface import estimate_prompt_tokens
from runner.rollouts.confidence import confidence_of
from runner.rollouts.game_script import GAME_FAILURES, GameParts, GameScript, outcome_of
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debate, verdict_rounds
from runner.rollouts.rollout import Outcome, RoundVerdict

_NO_VERDICT = (GenerationError, RefusedError, ContextExceededError)
"""Errors of a verdict before the last one that do not end the game: judging continues without this verdict.

An error in transport ends the game, so that the next process requests the verdict again.
"""


def judged_rounds(plan: Plan, job: Job) -> list[int]:
    """Return the numbers of the rounds where a job's judge gives a verdict, in order."""
    debate, rejudge = plan.debate(job), plan.spec.experiment.rejudge
    end = len(debate.rounds)
    if rejudge is None or rejudge.verdict == "last":
        return [end]
    return [*(i for i in verdict_rounds(plan.spec.protocol, job.seed, end) if i < end), end]


def judging_script(plan: Plan) -> Callable[[GameParts, Sequence[Round]], GameScript]:
    """Return a function that creates the script for judging one debate of the plan."""
    return lambda parts, _: _judge(plan, parts)


def _judge(plan: Plan, parts: GameParts) -> GameScript:
    """Return the script of one judged debate: a turn of the judge for each verdict."""
    debate = plan.debate(parts.job)
    judge = parts.protocol.verifier_name
    *earlier_rounds, last_round = judged_rounds(plan, parts.job)
    verdicts: list[RoundVerdict] = []
    rounds = list(debate.rounds)
    decision, error = int(Decision.NONE), None
    try:
        for round_ in earlier_rounds:
            try:
                replies = yield _turn(parts, debate, round_)
            except _NO_VERDICT as failure:
                verdicts.append(RoundVerdict(round_, int(Decision.NONE), error=f"{type(failure).__name__}: {failure}"))
            else:
                verdicts.append(_verdict(parts, debate, round_, replies[judge]))
                rounds[round_] = _judged_round(debate.rounds[round_], judge, replies[judge])
        reply = (yield _turn(parts, debate, last_round))[judge]
        rounds = _rounds_with_verdict(parts, debate, rounds, reply)
        decision = int(reply.decision)
        outcome = Outcome.NO_DECISION if decision == Decision.NONE else Outcome.DECIDED
    except GAME_FAILURES as failure:
        outcome = outcome_of(failure)
        error = f"{type(failure).__name__}: {failure}"
    rollout = parts.build_rollout(rounds, decision=decision, outcome=outcome, error=error)
    if plan.spec.experiment.rejudge is not None and plan.spec.experiment.rejudge.verdict == "each":
        confidence = (rollout.confidence_stated, rollout.confidence_logprob, rollout.confidence_note)
        last_verdict = RoundVerdict(last_round, decision, tuple(rollout.votes or ()), error, *confidence)
        rollout = replace(rollout, verdicts=(*verdicts, last_verdict))
    return rollout


def _turn(parts: GameParts, debate: Debate, round_: int) -> PendingTurn:
    judge = parts.protocol.verifier_name
    channels = parts.protocol.can_be_active(round_)[judge]
    return PendingTurn(round_, {judge: channels}, debate.rounds[:round_])


def _verdict(parts: GameParts, debate: Debate, round_: int, reply: Reply) -> RoundVerdict:
    """Return the judge's reply in a round before the debate's last round as a `RoundVerdict`."""
    judge = parts.protocol.verifier_name
    verdict_round = Round({judge: reply.raw}, calls={judge: reply.calls}, votes=reply.votes)
    rounds = [*debate.rounds[:round_], verdict_round]
    confidence = confidence_of(parts.agents[judge], rounds, parts.calls, reply.decision)
    return RoundVerdict(round_, int(reply.decision), reply.votes, None, *confidence)


def _judged_round(played: Round, judge: str, reply: Reply) -> Round:
    """Return a round of the debate with the calls of the judge's verdict in this round."""
    return replace(
        played, asked=frozenset({judge}), calls={judge: reply.calls}, cut={judge: reply.cut},
        retry_counts={judge: reply.retry_count}, token_limits={judge: reply.token_limit},
    )  # fmt: skip


def _rounds_with_verdict(parts: GameParts, debate: Debate, rounds: Sequence[Round], reply: Reply) -> list[Round]:
    """Return the rounds of a debate, followed by the round of the last verdict."""
    protocol, job = parts.protocol, parts.job
    game = play(
        protocol, seed=job.seed, label=job.datapoint.label, prover_stance=job.prover_stance, rounds=rounds,
        ballot=job.ballot(protocol),
    )  # fmt: skip
    turn = next(game)
    replies: Mapping[str, Reply] = {**debate.other_replies, protocol.verifier_name: reply}
    names = [name for name in protocol.agent_names if name in replies]
    try:
        game.send({name: replies[name] for name in names})
    except StopIteration as end:
        played: Sequence[Round] = end.value.rounds
    else:
        game.close()
        played = turn.rounds
    return [*played[:-1], replace(played[-1], asked=frozenset({protocol.verifier_name}))]


def judged_prompt_tokens(plan: Plan) -> Iterator[int]:
    """Yield the estimated number of tokens of each prompt for a plan's judge, without further votes and retries."""
    judge = plan.agents()[plan.spec.protocol.verifier_name]
    for job in plan.jobs():
        debate = plan.debate(job)
        for round_ in judged_rounds(plan, job):
            yield estimate_prompt_tokens(judge.prompt(job.observation(round_, debate.rounds[:round_])))
