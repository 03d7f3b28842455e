"""One game as a generator without I/O: it yields each turn, receives the turn's replies, and returns the rollout.

The engine gets the replies from models, and `runner.rollouts.recorded_games` gets them from a journal. So a game that
is rebuilt from its journal follows the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field, replace

from runner.base.errors import (
    BudgetExhausted,
    ContentFilterError,
    ContextExceededError,
    GenerationError,
    MalformedError,
    NipRunError,
    RefusedError,
    Stopped,
    TransientError,
)
from runner.base.value_class import value_class
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import PendingTurn, Reply, Round, episode_rewards, find_subject, play
from runner.models.interface import Completion, SampleKey, Usage
from runner.models.logprobs import has_logprobs, logprobs_of_span, p_accept
from runner.rollouts.agents.agent import Agent
from runner.rollouts.answer_record import AnswerRecord
from runner.rollouts.confidence import Confidence, confidence_of, record_answers
from runner.rollouts.job import Job
from runner.rollouts.rollout import Call, Outcome, PanelVerdict, Rollout, RoundVerdict

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


@value_class(frozen=True, slots=True)
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
        calls = [*self.calls, *self.failed_calls(job)]
        calls.sort(key=lambda call: _call_order(protocol, call))
        if protocol.selections:
            calls = [_with_selection(call, rounds) for call in calls]
        subject = find_subject(protocol, rounds) if protocol.has_statements else None
        is_labelled = job.datapoint.is_labelled or (subject is not None and subject.label is not None)
        rewards = episode_rewards(protocol, rounds, is_labelled=is_labelled)
        stance = None if protocol.lists_answers else protocol.shared_stance(job.prover_stance)
        panel = None
        if protocol.file.panel is None:
            stated, logprob, note = confidence_of(self.agents[protocol.verifier_name], rounds, calls, decision)
        else:
            panel = panel_verdicts(self.agents, rounds, calls)
            stated, logprob, note = panel_confidence(protocol, panel) if decision != Decision.NONE else Confidence()
        return Rollout(
            job, tuple(rounds), decision, outcome, stance, rewards, calls, error,
            confidence_stated=stated, confidence_logprob=logprob, confidence_note=note,
            votes=(rounds[-1].votes if rounds else ()) or None, panel=panel,
            answers=self._answers(rounds, calls, decision), subject=subject,
        )  # fmt: skip

    def _answers(self, rounds: Sequence[Round], calls: Sequence[Call], decision: int) -> AnswerRecord | None:
        ballot = self.job.ballot(self.protocol)
        if ballot is None:
            return None
        return record_answers(self.agents[self.protocol.verifier_name], ballot, rounds, calls, decision)


def _call_order(protocol: Protocol, call: Call) -> tuple[object, ...]:
    """Return the sort key of a call. The calls of a selector follow those of its agent."""
    speaker, _, selector = call.agent.partition(".")
    agent = protocol.agent_names.index(speaker)
    return call.round, agent, selector, call.vote, call.attempt, call.error is None


def _with_selection(call: Call, rounds: Sequence[Round]) -> Call:
    """Return the call of a candidate with the result of the selection, and any other call unchanged."""
    played = rounds[call.round] if call.round < len(rounds) else None
    selection = None if played is None else played.selections.get(call.agent)
    if played is None or selection is None:
        return call
    is_delivered = call.vote == selection.index and call.raw_message == played.raw[call.agent]
    is_selected = is_delivered and not selection.failed
    return replace(call, selected=is_selected, score=selection.scores[call.vote] if selection.scores else None)


def play_game(parts: GameParts, rounds: Sequence[Round] = ()) -> GameScript:
    """Return the script of one game, which continues after `rounds`."""
    job = parts.job
    label = job.datapoint.label
    ballot = job.ballot(parts.protocol)
    game = play(
        parts.protocol, seed=job.seed, label=label, prover_stance=job.prover_stance, rounds=rounds, ballot=ballot
    )
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


def panel_verdicts(agents: Mapping[str, Agent], rounds: Sequence[Round], calls: Sequence[Call]) -> list[PanelVerdict]:
    """Return the verdict of each judge. A judge without a verdict has the game's last round and `Decision.NONE`."""
    verdicts = []
    for judge in (name for name, agent in agents.items() if agent.is_verifier):
        number = next((number for number, round_ in enumerate(rounds) if judge in round_.panel), None)
        if number is None:
            verdict = RoundVerdict(max(len(rounds) - 1, 0), int(Decision.NONE))
        else:
            vote = rounds[number].panel[judge]
            until_verdict = [*rounds[:number], replace(rounds[number], votes=vote.votes)]
            confidence = confidence_of(agents[judge], until_verdict, calls, vote.decision)
            verdict = RoundVerdict(number, vote.decision, vote.votes, None, *confidence)
        verdicts.append(PanelVerdict(judge, verdict))
    return verdicts


def panel_confidence(protocol: Protocol, panel: Sequence[PanelVerdict]) -> Confidence:
    """Return the panel's P(accept): the mean over the judges that decided, or the last one's in `sequential` panels.

    A judge with an unknown probability is omitted, and the note says so.
    """
    from statistics import fmean

    decided = [judge.verdict for judge in panel if judge.verdict.decision != Decision.NONE]
    assert protocol.file.panel is not None
    if protocol.file.panel.rule == "sequential":
        decided = sorted(decided, key=lambda verdict: verdict.round)[-1:]
    notes = dict.fromkeys(verdict.confidence_note for verdict in decided if verdict.confidence_note is not None)
    stated = [verdict.confidence_stated for verdict in decided if verdict.confidence_stated is not None]
    by_logprobs = [verdict.confidence_logprob for verdict in decided if verdict.confidence_logprob is not None]
    return Confidence(
        fmean(stated) if stated else None, fmean(by_logprobs) if by_logprobs else None, "; ".join(notes) or None
    )
