"""Parse an answer: a decision with its confidence, or the agent's messages for its channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.base.errors import AgentNotActiveInChannelError, InvalidDecisionError, NotAllActiveChannelsInResponseError
from runner.base.value_class import value_class
from runner.documents.dataclass_schema import option
from runner.game.protocols.answer_verdicts import ANSWER_MARKER, VerdictForm, parse_verdict, stated_answer
from runner.game.protocols.ballot import FIRST_ANSWER, MAX_ANSWERS, OPEN, letter_of
from runner.game.protocols.confidence import lenient_pattern, lenient_prefix, stated_confidence
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.statements import stated_estimates, stated_texts


@dataclass(frozen=True, kw_only=True)
class DecisionFormat:
    """The texts of a verifier's decision. The defaults are those of the paper."""

    marker: str = option(
        "An answer that contains this text, in upper or lower case, is read as a verdict.",
        default="decision:",
        minLength=1,
    )
    accept: str = option("The text that gives the verdict accept.", default="Decision: accept", minLength=1)
    reject: str = option("The text that gives the verdict reject.", default="Decision: reject", minLength=1)
    lenient: bool = option(
        "true: ignore spacing and Markdown (`**Decision:** Accept`); an answer with both verdicts is invalid. false: "
        "the texts must match except for upper and lower case; an answer with both verdicts accepts.",
        default=False,
    )
    confidence: str = option(
        "The text before a stated confidence (see `verdict.confidence`). nip-run ignores spacing, case and Markdown "
        "around it.",
        default="Confidence:",
        minLength=1,
    )


@value_class(frozen=True, slots=True)
class ParsedAnswer:
    """A parsed answer: the message for each channel, or a decision, which is a message only if a panel decides."""

    messages: Mapping[str, str] | None
    decision: int
    confidence: float | None = None
    """P(accept), from 0 to 1, if a decision must state one."""
    numbers: tuple[float, ...] | None = None
    """The probability or score of each listed answer, if a decision must state them."""
    texts: tuple[str, ...] = ()
    """The answer or the sub-claims that the message states, if the step requires them."""
    estimates: tuple[float, ...] = ()
    """The probability of each sub-claim, if the step requires them."""


def parse_answer(
    protocol: Protocol,
    agent: str,
    round_: int,
    text: str,
    format_: DecisionFormat,
    *,
    states_confidence: bool = False,
    form: VerdictForm = "answer",
    answer_count: int | None = None,
) -> ParsedAnswer:
    """Parse an agent's answer in a round; with `states_confidence`, a decision must state its confidence.

    Only the answer of a verifier that may decide can be a decision; a prover's text is always a message. If the agent
    speaks in several channels, the text is split at their headers, and text before the first header is dropped.
    With listed answers, `answer_count` is their number and `form` the form of a decision. If the step requires
    probabilities of sub-claims, it is the number of these.

    Raises:
        InvalidDecisionError: the answer announces a decision, but has none; or a prover that chooses the answer that it
            argues for does not state it in its first message.
        InvalidConfidenceError: a decision does not state its confidence as one readable number.
        NotAllActiveChannelsInResponseError: a channel's header is missing.
        StatementError: the message does not state what the step requires.
        AgentNotActiveInChannelError: the agent does not speak in this round.
    """
    channels = protocol.can_be_active(round_).get(agent) if round_ < protocol.max_message_rounds else None
    if not channels:
        raise AgentNotActiveInChannelError(f"{agent} does not speak in round {round_} of {protocol.name}")
    may_decide = agent in protocol.verifier_names and protocol.step(round_).may_decide
    if protocol.lists_answers:
        count = answer_count or MAX_ANSWERS
        _check_stated_answer(protocol, agent, round_, text, count)
        verdict = parse_verdict(text, format_.marker, count, form) if may_decide else None
        if verdict is not None:
            return ParsedAnswer(None, FIRST_ANSWER + verdict.position, numbers=verdict.numbers)
    elif may_decide:
        decision = _decision(text, format_)
        if decision is not Decision.NONE:
            # The other members of a panel may hear the verdict; without a panel, the game ends.
            verdict_messages = _verdict_messages(protocol, agent, channels, text)
            confidence = _accept_probability(text, decision, format_) if states_confidence else None
            return ParsedAnswer(verdict_messages, decision, confidence)
    if len(channels) == 1:
        messages: Mapping[str, str] = {channels[0]: text}
    else:
        messages = _split_at_headers(text, channels, protocol.agent_spec(agent).headers)
    kind = protocol.step(round_).states
    if kind is None:
        return ParsedAnswer(messages, Decision.NONE)
    if kind == "estimates":
        return ParsedAnswer(messages, Decision.NONE, estimates=stated_estimates(text, answer_count))
    return ParsedAnswer(messages, Decision.NONE, texts=stated_texts(text, kind, protocol.parameters.max_claims))


def _check_stated_answer(protocol: Protocol, agent: str, round_: int, text: str, count: int) -> None:
    """Check that the first message of a prover with the stance `open` states the answer that it argues for."""
    spec = protocol.agent_spec(agent)
    if spec.role != "prover" or spec.stance != OPEN or round_ != protocol.first_active_round(agent):
        return
    if stated_answer(text, count) is None:
        raise InvalidDecisionError(
            f"the first message of {agent} must state the answer that it argues for: {ANSWER_MARKER!r} and one letter "
            f"from A to {letter_of(count - 1)}"
        )


def _accept_probability(text: str, decision: Decision, format_: DecisionFormat) -> float:
    """Return P(accept). The number in the answer is the probability that the stated verdict is right."""
    p_right = stated_confidence(text, format_.confidence)
    return float(p_right if decision is Decision.ACCEPT else 1 - p_right)


def _decision(text: str, format_: DecisionFormat) -> Decision:
    if format_.lenient:
        return _lenient_decision(text, format_)
    lowered = text.lower()
    if format_.marker.lower() not in lowered:
        return Decision.NONE
    if format_.accept.lower() in lowered:
        return Decision.ACCEPT
    if format_.reject.lower() in lowered:
        return Decision.REJECT
    raise InvalidDecisionError(
        f"the answer holds {format_.marker!r} and neither {format_.accept!r} nor {format_.reject!r}"
    )


def verdict_of(text: str, format_: DecisionFormat) -> Decision | None:
    """Return the verdict of an answer, or None if the answer announces a verdict that cannot be read."""
    try:
        return _decision(text, format_)
    except InvalidDecisionError:
        return None


def verdict_span(text: str, format_: DecisionFormat) -> tuple[int, int] | None:
    """Return the (start, end) offsets of the verdict's first occurrence in an answer, or None without a verdict."""
    decision = verdict_of(text, format_)
    if decision is None or decision is Decision.NONE:
        return None
    verdict = format_.accept if decision is Decision.ACCEPT else format_.reject
    if format_.lenient:
        match = lenient_pattern(verdict).search(text)
        return None if match is None else match.span()
    start = _same_length_lower(text).find(_same_length_lower(verdict))
    return None if start < 0 else (start, start + len(verdict))


@dataclass(frozen=True, slots=True)
class VerdictFork:
    """The position in an answer at which the texts of the two verdicts start to differ, and the rest of both texts."""

    at: int
    """The offset of the first character that differs."""
    accept: str
    reject: str


def verdict_fork(text: str, format_: DecisionFormat) -> VerdictFork | None:
    """Return the position in an answer at which it chooses its verdict.

    None without a verdict, or if the text of one verdict is a prefix of the other.
    """
    span = verdict_span(text, format_)
    accept, reject = map(_same_length_lower, (format_.accept, format_.reject))
    common = next((i for i, (a, b) in enumerate(zip(accept, reject, strict=False)) if a != b), None)
    if span is None or common is None:
        return None
    at = span[0] + common
    if format_.lenient:
        head = lenient_prefix(accept[:common]).match(text, span[0])
        if head is None:
            return None
        at = head.end()
    return VerdictFork(at, accept[common:], reject[common:])


def _lenient_decision(text: str, format_: DecisionFormat) -> Decision:
    if not lenient_pattern(format_.marker, whole_words=False).search(text):
        return Decision.NONE
    accepts = bool(lenient_pattern(format_.accept).search(text))
    rejects = bool(lenient_pattern(format_.reject).search(text))
    if accepts == rejects:
        verdicts_present = "both verdicts" if accepts else "neither verdict"
        raise InvalidDecisionError(f"the answer announces a decision and holds {verdicts_present}")
    return Decision.ACCEPT if accepts else Decision.REJECT


def _verdict_messages(protocol: Protocol, agent: str, channels: Sequence[str], text: str) -> Mapping[str, str] | None:
    """Return the message of a judge's verdict for each channel; None without a panel.

    A text with headers goes only to their channels, because it may have private parts.
    """
    if protocol.file.panel is None:
        return None
    headers, lowered = protocol.agent_spec(agent).headers, _same_length_lower(text)
    addressed = [name for name in channels if len(channels) > 1 and _same_length_lower(headers[name]) in lowered]
    return _split_at_headers(text, addressed, headers) if addressed else dict.fromkeys(channels, text)


def _split_at_headers(text: str, channels: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    lowered = _same_length_lower(text)
    starts = {channel: lowered.find(_same_length_lower(headers[channel])) for channel in channels}
    missing = [headers[channel] for channel, start in starts.items() if start < 0]
    if missing:
        raise NotAllActiveChannelsInResponseError(f"the answer lacks {', '.join(map(repr, missing))}")
    ends = sorted(starts.values())
    ends.append(len(text))
    return {
        channel: text[start : next(end for end in ends if end > start)].strip() for channel, start in starts.items()
    }


def _same_length_lower(text: str) -> str:
    """Convert to lower case without changing offsets. A letter that would become two characters (İ) is not changed."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := c.lower()) == 1 else c for c in text)
