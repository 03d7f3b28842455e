"""The rules for what others see of an answer: private notes, the limit of words, and checked quotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.base.errors import ScratchpadError
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import MessageCounts, Reply, Round


def visible_start(text: str, marker: str | None) -> int:
    """Return the offset in an answer where the part for others starts: after the last marker of the scratchpad.

    Raises:
        ScratchpadError: the answer has no marker, so that all of it may be private.
    """
    if marker is None:
        return 0
    position = _find_last(text, marker)
    if position < 0:
        raise ScratchpadError(f"the answer has no {marker!r}, which separates private notes from the message")
    return position + len(marker)


def without_notes(text: str, marker: str | None) -> str:
    """Return an answer from its marker on, as the agent sees it in later rounds; only the marker if it has none."""
    if marker is None:
        return text
    position = _find_last(text, marker)
    return marker if position < 0 else text[position:]


def private_notes(text: str, marker: str | None) -> str:
    """Return the private notes of an answer: the text before its marker; empty if the agent has no notes."""
    return "" if marker is None else text[: max(_find_last(text, marker), 0)].strip()


def _find_last(text: str, marker: str) -> int:
    position = text.rfind(marker)
    return position if position >= 0 or len(text.lower()) != len(text) else text.lower().rfind(marker.lower())


def count_words(messages: Mapping[str, str] | None) -> int:
    """Return the number of words in the messages of an answer."""
    return sum(len(text.split()) for text in (messages or {}).values())


def deliver(
    protocol: Protocol,
    agent: str,
    reply: Reply,
    *,
    rounds: Sequence[Round],
    columns: Mapping[str, object],
    max_words: int,
) -> Reply:
    """Return a reply with its messages as others see them: within the word limit, and with checked quotes.

    `rounds` are the earlier rounds, and `columns` the datapoint's columns.
    """
    limits_words, quotes = protocol.agent_spec(agent).word_limit != "stated", protocol.file.quotes
    if not reply.messages or not (limits_words or quotes):
        return reply
    messages, counts, words_left = {}, {}, max_words
    quoted = 0 if quotes is None else _words_quoted(agent, rounds)
    for channel, text in reply.messages.items():
        visible_text, count = text, MessageCounts()
        if limits_words:
            visible_text, count = _truncate(text, words_left)
            words_left -= count.words or 0
        if quotes is not None:
            visible_text, count = _check_quotes(protocol, visible_text, str(columns[quotes.source]), quoted, count)
            quoted += count.quoted_words or 0
        messages[channel], counts[channel] = visible_text, count
    return replace(reply, messages=messages, counts=counts)


def _truncate(text: str, max_words: int) -> tuple[str, MessageCounts]:
    """Return the first words of a text, with their white space."""
    words = len(text.split())
    if words <= max_words:
        return text, MessageCounts(words, 0)
    rest = text.split(maxsplit=max_words)[max_words] if max_words else text
    return text[: len(text) - len(rest)].rstrip(), MessageCounts(max_words, words - max_words)


def _words_quoted(agent: str, rounds: Sequence[Round]) -> int:
    from runner.game.protocols.quotations import count_verified_words

    return sum(
        count_verified_words(message.text) for played in rounds for message in played.messages if message.agent == agent
    )


def _check_quotes(
    protocol: Protocol, text: str, source: str, quoted: int, counts: MessageCounts
) -> tuple[str, MessageCounts]:
    """Return a message with checked quotes, from an agent that has quoted this number of words before."""
    from runner.game.protocols.quotations import find_quotations, show_quotations

    quotes = protocol.file.quotes
    assert quotes is not None
    quotations = find_quotations(text, source)
    in_message, verified = 0, []
    for quotation in quotations:
        total = in_message + quotation.words
        fits = total <= (quotes.max_words_per_message or total) and quoted + total <= (
            quotes.max_words_per_game or quoted + total
        )
        verified.append(quotation.is_verified and fits)
        in_message += quotation.words if verified[-1] else 0
    in_source = sum(quotation.is_verified for quotation in quotations)
    return show_quotations(text, quotations, verified), replace(
        counts, verified_quotes=sum(verified), unverified_quotes=len(verified) - sum(verified),
        over_limit_quotes=in_source - sum(verified), quoted_words=in_message,
    )  # fmt: skip
