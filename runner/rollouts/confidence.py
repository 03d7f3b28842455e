"""How sure the verifier was of a game's verdict: what it stated, and what its tokens' log-probabilities say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from runner.base.errors import GenerationError
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rewards import forced_decision
from runner.game.protocols.rounds import Round
from runner.models.logprobs import BOUND, NO_LOGPROBS, PAccept
from runner.rollouts.agents.agent import Agent
from runner.rollouts.rollout import Call

UNREADABLE: Final = "no answer stated a readable confidence"
UNREADABLE_VOTES: Final = "some votes stated no readable confidence"
BY_LOGPROBS: Final = "by log-probabilities: "
FORCED: Final = "force_guess decides in the verifier's place"


class Confidence(NamedTuple):
    """P(accept) by either way, None where it is not asked for or not known; and why it is not known, or a bound."""

    stated: float | None = None
    logprob: float | None = None
    note: str | None = None


def confidence_of(verifier: Agent, rounds: Sequence[Round], calls: Sequence[Call], decision: int) -> Confidence:
    """The confidence of a game's last verdict: of votes, the mean P(accept) of all that decided.

    Each vote's own, whichever way it went: those of the majority alone are surer than the panel is, since they were
    chosen by their verdict. A vote whose P(accept) is not known is left out, and the note says so.
    """
    wanted = verifier.hyper_params.verdict
    if wanted.confidence is None or decision == Decision.NONE:
        return Confidence()
    if forced_decision(verifier.protocol_handler, decision) is not None:
        return Confidence(note=FORCED)
    round_ = len(rounds) - 1
    answers = list(_answers(verifier, rounds[-1], calls, round_))
    stated = [_stated(verifier, text, round_) for text, _ in answers] if wanted.states else []
    read = [_read(call) for _, call in answers] if wanted.reads_logprobs else []
    notes = [*(_stated_note(stated) if wanted.states else ()), *_logprob_notes(read)]
    return Confidence(_mean(stated), _mean([one.value for one in read]), "; ".join(notes) or None)


def _answers(verifier: Agent, last: Round, calls: Sequence[Call], round_: int) -> Iterator[tuple[str, Call | None]]:
    """The text of each deciding vote, or of the only verdict, with the answer that gave it."""
    name = verifier.agent_name
    own = [call for call in calls if (call.round, call.agent) == (round_, name) and call.raw_message is not None]
    if not last.votes:
        text, attempt = last.raw[name], last.calls[name] - 1
        yield text, next((call for call in own if (call.raw_message, call.attempt) == (text, attempt)), None)
        return
    for vote, decision in enumerate(last.votes):
        if decision != Decision.NONE:
            call = _taken(verifier, [call for call in own if call.vote == vote], round_, decision)
            yield ("" if call is None else call.raw_message or ""), call


def _taken(verifier: Agent, answers: Sequence[Call], round_: int, decision: int) -> Call | None:
    """The answer that was counted as a vote: of its last attempt the first that gives the verdict, else the last."""
    end = max((call.attempt for call in answers), default=0)
    last = [call for call in answers if call.attempt == end]
    fits = (call for call in last if call.error is None and _decision(verifier, call, round_) == decision)
    return next(fits, last[-1] if last else None)


def _decision(verifier: Agent, call: Call, round_: int) -> int | None:
    try:
        return verifier.parse(call.raw_message or "", round_).decision
    except GenerationError:
        return None


def _stated(verifier: Agent, text: str, round_: int) -> float | None:
    try:
        return verifier.parse(text, round_).confidence
    except GenerationError:
        return None


def _read(taken: Call | None) -> PAccept:
    """What the log-probabilities say."""
    return PAccept(None, NO_LOGPROBS) if taken is None or taken.p_accept is None else taken.p_accept


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _stated_note(stated: Sequence[float | None]) -> Iterator[str]:
    if None in stated:
        yield UNREADABLE if _mean(stated) is None else UNREADABLE_VOTES


def _logprob_notes(read: Sequence[PAccept]) -> Iterator[str]:
    known = any(one.value is not None for one in read)
    for note in dict.fromkeys(one.note for one in read if one.note is not None):
        some = known and note != BOUND
        yield f"{BY_LOGPROBS}{'of some votes: ' if some else ''}{note}"


def is_bound(note: str | None) -> bool:
    """Whether a rollout's `confidence_note` says that its log-probabilities only bound P(accept)."""
    return note is not None and f"{BY_LOGPROBS}{BOUND}" in note
