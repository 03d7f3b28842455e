"""The verifier's confidence in a game's verdict: as stated, and by the log-probabilities of the verdict's tokens.

P(accept) is the probability that accepting is right. The game script computes it for each rollout and judged verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from runner.base.errors import GenerationError
from runner.game.protocols.answer_parser import ParsedAnswer
from runner.game.protocols.ballot import FIRST_ANSWER, Ballot, answer_position
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rewards import forced_decision
from runner.game.protocols.rounds import Round, argued_decisions
from runner.models.logprobs import BOUND, NO_LOGPROBS, PAccept
from runner.rollouts.agents.agent import Agent
from runner.rollouts.answer_record import AnswerRecord
from runner.rollouts.rollout import UNREADABLE, Call

UNREADABLE_VOTES: Final = "some votes stated no readable confidence"
BY_LOGPROBS: Final = "by log-probabilities: "
FORCED: Final = "force_guess decides in the verifier's place"


class Confidence(NamedTuple):
    """P(accept) by each method; None if the method is not requested or its value is unknown.

    `note` says why a requested value is unknown, or only a bound.
    """

    stated: float | None = None
    logprob: float | None = None
    note: str | None = None


def confidence_of(verifier: Agent, rounds: Sequence[Round], calls: Sequence[Call], decision: int) -> Confidence:
    """Return the confidence of a game's last verdict; for several votes, the mean P(accept) of the votes that decided.

    Votes against the verdict count too, because the mean would otherwise overstate the confidence. A vote with an
    unknown P(accept) is omitted, and the note says so.
    """
    settings = verifier.hyper_params.verdict
    if settings.confidence is None or decision == Decision.NONE:
        return Confidence()
    if forced_decision(verifier.protocol_handler, decision) is not None:
        return Confidence(note=FORCED)
    round_ = len(rounds) - 1
    answers = list(answers_that_decided(verifier, rounds[-1], calls, round_))
    stated = [_stated(verifier, text, round_) for text, _ in answers] if settings.states else []
    confidences = [call.p_accept if call else None for _, call in answers] if settings.reads_logprobs else []
    by_logprobs = [confidence or PAccept(None, NO_LOGPROBS) for confidence in confidences]
    unreadable = [] if None not in stated else [UNREADABLE if _mean(stated) is None else UNREADABLE_VOTES]
    notes = [*unreadable, *_logprob_notes(by_logprobs)]
    return Confidence(_mean(stated), _mean([p_accept.value for p_accept in by_logprobs]), "; ".join(notes) or None)


def answers_that_decided(
    verifier: Agent, last: Round, calls: Sequence[Call], round_: int, answer_count: int | None = None
) -> Iterator[tuple[str, Call | None]]:
    """Yield the text and the call of each vote that decided or, if there are no votes, of the verdict."""
    name = verifier.agent_name
    own_calls = [
        (verifier.transcript_text(call.raw_message, round_, answer_count), call)
        for call in calls
        if (call.round, call.agent) == (round_, name) and call.raw_message is not None
    ]
    if not last.votes:
        text, attempt = last.raw[name], last.calls[name] - 1
        yield text, next((call for call_text, call in own_calls if (call_text, call.attempt) == (text, attempt)), None)
        return
    for vote, decision in enumerate(last.votes):
        if decision != Decision.NONE:
            of_vote = [(text, call) for text, call in own_calls if call.vote == vote]
            yield _answer_of_vote(verifier, of_vote, round_, decision, answer_count)


def _answer_of_vote(
    verifier: Agent, answers: Sequence[tuple[str, Call]], round_: int, decision: int, answer_count: int | None
) -> tuple[str, Call | None]:
    """Return the answer that counted as a vote, among the texts and calls of the vote; no call if there are none.

    Among the calls of the last attempt, prefer the first one with this decision; otherwise, return the last one.
    """
    last_attempt = max((call.attempt for _, call in answers), default=0)
    candidates = [(text, call) for text, call in answers if call.attempt == last_attempt]
    for text, call in candidates:
        parsed = None if call.error is not None else parse_or_none(verifier, text, round_, answer_count)
        if parsed is not None and parsed.decision == decision:
            return text, call
    return candidates[-1] if candidates else ("", None)


def parse_or_none(verifier: Agent, text: str, round_: int, answer_count: int | None = None) -> ParsedAnswer | None:
    """Return an answer as parsed; None if it is unusable."""
    try:
        return verifier.parse(text, round_, answer_count)
    except GenerationError:
        return None


def _stated(verifier: Agent, text: str, round_: int) -> float | None:
    parsed = parse_or_none(verifier, text, round_)
    return None if parsed is None else parsed.confidence


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


def _logprob_notes(values: Sequence[PAccept]) -> Iterator[str]:
    any_known = any(value.value is not None for value in values)
    for note in dict.fromkeys(value.note for value in values if value.note is not None):
        applies_to_some = any_known and note != BOUND
        yield f"{BY_LOGPROBS}{'of some votes: ' if applies_to_some else ''}{note}"


def is_bound(note: str | None) -> bool:
    """Return whether a rollout's `confidence_note` says that its log-probabilities only bound P(accept)."""
    return note is not None and f"{BY_LOGPROBS}{BOUND}" in note


def record_answers(
    verifier: Agent, ballot: Ballot, rounds: Sequence[Round], calls: Sequence[Call], decision: int
) -> AnswerRecord:
    """Return the record of a game's answers. Its last round has the decision, if there is one."""
    protocol = verifier.protocol_handler
    argued = argued_decisions(protocol, ballot, [played.raw for played in rounds])
    positions = {agent: code - FIRST_ANSWER for agent, code in argued.items()}
    chosen, form = answer_position(decision), verifier.hyper_params.verdict.form
    is_forced = protocol.parameters.force_guess is not None
    if chosen is None or form == "answer" or is_forced:
        return AnswerRecord(ballot, chosen, positions, form)
    return AnswerRecord(ballot, chosen, positions, form, _mean_numbers(verifier, ballot, rounds, calls))


def _mean_numbers(
    verifier: Agent, ballot: Ballot, rounds: Sequence[Round], calls: Sequence[Call]
) -> tuple[float, ...] | None:
    round_, count = len(rounds) - 1, len(ballot.texts)
    texts = (text for text, _ in answers_that_decided(verifier, rounds[-1], calls, round_, count))
    parsed = (parse_or_none(verifier, text, round_, count) for text in texts)
    votes = [answer.numbers for answer in parsed if answer is not None and answer.numbers is not None]
    return tuple(math.fsum(values) / len(votes) for values in zip(*votes, strict=True)) if votes else None
