"""One game as a generator without I/O: it yields each turn, receives the turn's replies, and returns the rollout.

The engine gets the replies from models, and `runner.rollouts.recorded_games` gets them from a journal. So a game that
is rebuilt from its journal follows the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field

from runner.base.errors import (
    BudgetExhausted,
    ContentFilterError,
    ContextExceededError,
    GenerationError,
    MalformedError,
    NipRunError,
    RefusedError,
    TransientError,
)
from runner.base.value_class import value_class
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import PendingTurn, Reply, Round, episode_rewards, play
from runner.models.interface import Completion, SampleKey, Usage
from runner.models.logprobs import has_logprobs, logprobs_of_span, p_accept
from runner.rollouts.agents.agent import Agent
from runner.rollouts.confidence import confidence_of
from runner.rollouts.job import Job
from runner.rollouts.rollout import Call, Outcome, Rollout
from runner.rollouts.stop_switch import Stopped

GameScript = Generator[PendingTurn, Mapping[str, Reply], Rollout]
"""A game: yields each turn, receives the turn's replies (or the error of a reply), and returns the rollout."""

_OUTCOMES: tuple[tuple[type[NipRunError], Outcome], ...] = (
    (ContentFilterError, Outcome.REFUSED),
    (RefusedError, Outcome.REFUSED),
    (GenerationError, Outcome.INVALID_RESPONSE),
    (ContextExceededError, Outcome.CONTEXT_EXCEEDED),
    (TransientError, Outcome.TRANSPORT_FAILED),
    (MalformedError, Outcome.TRANSPORT_FAILED),
)

GAME_FAILURES = tuple(kind for kind, _ in _OUTCOMES)
"""Errors that end one game and not the run.

A `MalformedError` (the server cannot parse the request) counts as `transport_failed`, because no model and no policy
refused the request. So the game has no verdict, and resuming the run sends the request again. With the outcome
`refused`, the game would count as a wrong verdict.
"""

TURN_FAILURES = (*GAME_FAILURES, Stopped, BudgetExhausted)
"""Errors that end the turn of one speaker. The game still waits for the other speakers, whose answers are paid for."""


def outcome_of(failure: BaseException) -> Outcome:
    """Return the outcome of a game that one of `GAME_FAILURES` ended."""
    return next(outcome for kind, outcome in _OUTCOMES if isinstance(failure, kind))


@value_class(frozen=True)
class GameParts:
    """The parts of one game that do not change while it is played, and the calls made for it."""

    protocol: Protocol
    agents: Mapping[str, Agent]
    job: Job
    failed_calls: Callable[[Job], Sequence[Call]]
    """Returns the failed calls of a job, for its rollout's list of calls."""
    calls: list[Call] = field(default_factory=list)
    """The calls so far. The code that gets the replies appends its calls to this list."""

    def build_rollout(self, rounds: Sequence[Round], *, decision: int, outcome: Outcome, error: str | None) -> Rollout:
        """Return the record of the finished game."""
        protocol, job = self.protocol, self.job
        # The answers to simultaneous speakers arrive in random order. Sort their calls in the protocol's order.
        names, calls = protocol.agent_names, [*self.calls, *self.failed_calls(job)]
        calls.sort(key=lambda call: (call.round, names.index(call.agent), call.vote, call.attempt, call.error is None))
        rewards = episode_rewards(protocol, rounds, is_labelled=job.datapoint.label is not None)
        stance = protocol.shared_stance(job.prover_stance)
        stated, logprob, note = confidence_of(self.agents[protocol.verifier_name], rounds, calls, decision)
        return Rollout(
            job, tuple(rounds), decision, outcome, stance, rewards, calls, error,
            confidence_stated=stated, confidence_logprob=logprob, confidence_note=note,
            votes=(rounds[-1].votes if rounds else ()) or None,
        )  # fmt: skip


def play_game(parts: GameParts, rounds: Sequence[Round] = ()) -> GameScript:
    """Return the script of one game, which continues after `rounds`."""
    job = parts.job
    label = job.datapoint.label
    game = play(parts.protocol, seed=job.seed, label=label, prover_stance=job.prover_stance, rounds=rounds)
    decision, error = int(Decision.NONE), None
    try:
        turn = next(game)
        while True:
            rounds = turn.rounds
            turn = game.send((yield turn))
    except StopIteration as end:
        rounds, decision = end.value.rounds, int(end.value.decision)
        outcome = Outcome.DECIDED if end.value.decided else Outcome.NO_DECISION
    except GAME_FAILURES as failure:
        outcome = outcome_of(failure)
        error = f"{type(failure).__name__}: {failure}"
    finally:
        game.close()
    return parts.build_rollout(rounds, decision=decision, outcome=outcome, error=error)


def calls_of(sample: SampleKey, completion: Completion, agent: Agent) -> Iterator[Call]:
    """Yield one call for each answer in a completion. The first call has the token counts of the whole completion."""
    usage, with_logprobs = completion.usage, has_logprobs(completion)
    is_estimated = usage.estimated and agent.model_settings.traits.metered
    reads_logprobs = agent.is_verifier and agent.hyper_params.verdict.reads_logprobs
    for index, choice in enumerate(completion.choices):
        if index:
            usage = Usage()
        needs_span = (with_logprobs or reads_logprobs) and choice.text is not None
        verdict = agent.verdict_span(choice.text or "", sample.round) if needs_span else None
        fork = agent.verdict_fork(choice.text or "") if verdict is not None and reads_logprobs else None
        yield Call(
            sample.round, sample.agent, sample.attempt, completion.model, choice.finish_reason, choice.text,
            usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, completion.latency_ms,
            error=choice.refusal, reasoning=choice.reasoning, paid=not completion.from_cache, vote=sample.vote,
            verdict_logprobs=logprobs_of_span(completion, index, verdict) if verdict and with_logprobs else None,
            p_accept=p_accept(completion, index, fork) if verdict is not None and reads_logprobs else None,
            cache_write_tokens=usage.cache_write_tokens, reasoning_tokens=usage.reasoning_tokens,
            audio_input_tokens=usage.audio_input_tokens, audio_output_tokens=usage.audio_output_tokens,
            service_tier=usage.service_tier, usage_estimated=usage.estimated and is_estimated, origin=completion.origin,
        )  # fmt: skip
