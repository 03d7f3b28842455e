"""An answer's text into a decision or the messages for the channels in which its agent speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from runner.documents.fields import option
from runner.errors import AgentNotActiveInChannelError, InvalidDecisionError, NotAllActiveChannelsInResponseError
from runner.protocols.protocol import Decision, Protocol


@dataclass(frozen=True, kw_only=True)
class DecisionFormat:
    """How a verifier writes a decision. The default is the paper's."""

    marker: str = option(
        "An answer that holds this text, in any case, announces a decision.", default="decision:", minLength=1
    )
    accept: str = option("The text that accepts.", default="Decision: accept", minLength=1)
    reject: str = option("The text that rejects.", default="Decision: reject", minLength=1)
    lenient: bool = option(
        "Forgive spacing and Markdown around the words (`**Decision:** Accept`), and call an answer with both "
        "verdicts invalid. Otherwise the texts must match exactly, and an answer with both accepts.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class Parsed:
    """What an answer says: the message for each channel, or none where it decides."""

    messages: Mapping[str, str] | None
    decision: Decision


def parse_answer(protocol: Protocol, agent: str, round_: int, text: str, format_: DecisionFormat) -> Parsed:
    """Read an agent's answer in a round.

    Only a verifier where it may decide is read for a decision; a prover's text is a message, whatever it
    says. In several channels the text is cut at their headers; what stands before the first is dropped.

    Raises:
        InvalidDecisionError: a decision is announced and is neither an accept nor a reject.
        NotAllActiveChannelsInResponseError: a channel's header is missing.
        AgentNotActiveInChannelError: the agent does not speak in this round.
    """
    channels = protocol.can_be_active(round_).get(agent) if round_ < protocol.max_message_rounds else None
    if not channels:
        raise AgentNotActiveInChannelError(f"{agent} does not speak in round {round_} of {protocol.name}")
    if agent == protocol.verifier_name and protocol.step(round_).may_decide:
        decision = _decision(text, format_)
        if decision is not Decision.NONE:
            return Parsed(None, decision)
    if len(channels) == 1:
        return Parsed({channels[0]: text}, Decision.NONE)
    return Parsed(_split_at_headers(text, channels, protocol.agent_spec(agent).headers), Decision.NONE)


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


def verdict_span(text: str, format_: DecisionFormat) -> tuple[int, int] | None:
    """From where to where the verdict stands in an answer that gives one: its characters, at their first place."""
    try:
        decision = _decision(text, format_)
    except InvalidDecisionError:
        return None
    if decision is Decision.NONE:
        return None
    verdict = format_.accept if decision is Decision.ACCEPT else format_.reject
    if format_.lenient:
        found = _loosely(verdict).search(text)
        return None if found is None else found.span()
    start = _same_length_lower(text).find(_same_length_lower(verdict))
    return None if start < 0 else (start, start + len(verdict))


def _lenient_decision(text: str, format_: DecisionFormat) -> Decision:
    if not _loosely(format_.marker, whole=False).search(text):
        return Decision.NONE
    accepts = bool(_loosely(format_.accept).search(text))
    rejects = bool(_loosely(format_.reject).search(text))
    if accepts == rejects:
        which = "both verdicts" if accepts else "neither verdict"
        raise InvalidDecisionError(f"the answer announces a decision and holds {which}")
    return Decision.ACCEPT if accepts else Decision.REJECT


@lru_cache
def _loosely(pattern: str, whole: bool = True) -> re.Pattern[str]:
    """The pattern with any spacing and Markdown marks between its words and its colon."""
    gap = r"[\s*_`~\"']*"
    tokens = re.findall(r"\w+|[^\w\s]", pattern)
    body = gap.join(map(re.escape, tokens))
    return re.compile(r"(?<!\w)" + body + (r"(?!\w)" if whole else ""), re.IGNORECASE)


def _split_at_headers(text: str, channels: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    folded = _same_length_lower(text)
    starts = {channel: folded.find(_same_length_lower(headers[channel])) for channel in channels}
    missing = [headers[channel] for channel, start in starts.items() if start < 0]
    if missing:
        raise NotAllActiveChannelsInResponseError(f"the answer lacks {', '.join(map(repr, missing))}")
    ends = sorted(starts.values())
    ends.append(len(text))
    return {
        channel: text[start : next(end for end in ends if end > start)].strip() for channel, start in starts.items()
    }


def _same_length_lower(text: str) -> str:
    """Lower case that keeps every offset: a few letters (İ) lower to two characters and stay as they are."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := c.lower()) == 1 else c for c in text)
