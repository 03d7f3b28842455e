"""Computes log-probabilities of a span of an answer, and the probability of its verdict, from the server's tokens.

Servers report tokens in different ways. If a token is a part of a character, its bytes are in `bytes`. Some servers
spell tokens as the pieces of their tokenizer (`▁accept`, `Ġaccept`), or send the lists of the older completions API.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Final

import orjson

from runner.game.protocols.answer_parser import VerdictFork
from runner.game.protocols.confidence import GAP
from runner.models.answers import message_choices
from runner.models.interface import Completion

_HAS_TOKENS = re.compile(rb'"(?:logprob|token_logprobs)"')
"""Matches a key of every token or, in the older API, of the list of tokens."""

_PIECE_CHARACTERS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n"})
"""Spaces and line ends as tokenizers spell them in their pieces (SentencePiece, byte-level BPE)."""

NO_LOGPROBS: Final = "the server told no log-probabilities of the answer"
OTHER_TOKENS: Final = "the tokens that the server told do not spell the answer"
NO_FORK: Final = "no token tells the two verdicts apart"
INVALID_LOGPROB: Final = "the log-probability of the verdict is no number"
UNBOUNDED: Final = "the other verdict is not among the top log-probabilities, which leave too much open to bound it"
BOUND: Final = "a bound: the other verdict is not among the top log-probabilities"
# The tables of finished runs have these texts, so the texts must not change.

_MAX_LOGPROB: Final = 1e-3
"""Maximum valid log-probability. It is above 0, because servers that compute in single precision round upward."""


@dataclass(frozen=True, slots=True)
class PAccept:
    """The probability of accept, or None if it is unknown; `note` says why it is unknown or only a bound."""

    value: float | None
    note: str | None = None


def has_logprobs(completion: Completion) -> bool:
    """Return whether an answer may have log-probabilities. This is fast, because it does not parse the answer."""
    return completion.body is not None and _HAS_TOKENS.search(completion.body.json) is not None


def logprobs_of_span(completion: Completion, index: int, span: tuple[int, int]) -> str | None:
    """Return the tokens that overlap a span of characters of a choice's text, as JSON with token, logprob and top.

    `index` is the index of the choice. Return None if the server reported no tokens, or tokens that do not spell the
    text. Tokens before the text (reasoning) or after it (an end mark) are skipped.
    """
    try:
        aligned = _align_tokens(completion, index)
        if aligned is None:
            return None
        span_start, span_end = map(aligned.offset, span)
        first = bisect_right(aligned.ends, span_start)
        tokens = zip(aligned.tokens[first:], aligned.starts[first:], strict=True)
        return orjson.dumps([_summary(token) for token, start in tokens if start < span_end]).decode()
    except (AttributeError, KeyError, TypeError, ValueError):  # the tokens have an unknown form
        return None


def p_accept(completion: Completion, index: int, fork: VerdictFork | None) -> PAccept:
    """Return the probability of accept at the token where the texts of the two verdicts diverge: A / (A + R).

    A is the total probability of all alternatives for this token that start or continue the accepting text, and R is
    the same for the rejecting text. Case, spacing and Markdown marks do not count (` Accept`, `acc`, `accept.`).
    Alternatives that fit neither or both texts are ignored. If no alternative fits the other verdict, its probability
    is at most 1 minus the probabilities of all alternatives. The result is then a bound, if the verdict in the answer
    remains the more likely one. `index` is the index of the choice, and `fork` has the two texts and their place.
    """
    if not has_logprobs(completion):
        return PAccept(None, NO_LOGPROBS)
    try:
        aligned = _align_tokens(completion, index)
        if aligned is None:
            return PAccept(None, OTHER_TOKENS)
        return PAccept(None, NO_FORK) if fork is None else _p_accept(aligned, fork)
    except (AttributeError, KeyError, TypeError, ValueError):
        return PAccept(None, OTHER_TOKENS)


def _p_accept(aligned: _AlignedTokens, fork: VerdictFork) -> PAccept:

    accept, reject = fork.accept.encode(), fork.reject.encode()
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(accept, reject, strict=False)))
    offset = aligned.offset(fork.at) + common
    position = bisect_right(aligned.ends, offset)
    chosen, chosen_bytes = aligned.tokens[position], aligned.token_bytes[position]
    prefix = aligned.joined[aligned.starts[position] : offset]
    verdict_texts = _normalize(prefix + accept[common:]), _normalize(prefix + reject[common:])
    verdict = _matching_verdict(chosen_bytes, verdict_texts)
    if verdict is None:
        return PAccept(None, NO_FORK)
    alternatives = list(_alternatives(chosen, aligned))
    if not any(token_bytes == chosen_bytes for token_bytes, _ in alternatives):
        chosen_probability = _probability(chosen["logprob"])
        if chosen_probability is None:
            return PAccept(None, INVALID_LOGPROB)
        alternatives.append((chosen_bytes, chosen_probability))
    shares = [0.0, 0.0]  # of accept and of reject
    unclear = 0.0  # of tokens that could begin either verdict
    for token_bytes, probability in alternatives:
        index = _matching_verdict(token_bytes, verdict_texts)
        if index is not None:
            shares[index] += probability
        elif any(text.startswith(_normalize(token_bytes)) for text in verdict_texts):
            unclear += probability
    unreported = max(0.0, 1 - sum(probability for _, probability in alternatives))
    return _probability_of_accept(shares, verdict, unclear + unreported)


def _probability_of_accept(shares: Sequence[float], verdict: int, unassigned: float) -> PAccept:
    """Return the probability of accept from the probabilities of accept and reject (`shares`).

    `verdict` is the index of the answer's verdict. The probability `unassigned` may belong to either verdict.
    """
    verdict_share, other_share = shares[verdict], shares[1 - verdict]
    if verdict_share + other_share <= 0:
        return PAccept(None, INVALID_LOGPROB)
    note = None
    if other_share <= 0:
        if verdict_share <= unassigned:
            return PAccept(None, UNBOUNDED)
        other_share, note = unassigned, BOUND
    probability = verdict_share / (verdict_share + other_share)
    return PAccept(probability if verdict == 0 else other_share / (verdict_share + other_share), note)


def _matching_verdict(token_bytes: bytes, texts: tuple[bytes, bytes]) -> int | None:
    """Return the index of the text that a token starts or continues; None if it fits neither or both texts."""
    token = _normalize(token_bytes)
    fits = [text.startswith(token) or token.startswith(text) for text in texts]
    return fits.index(True) if fits[0] != fits[1] else None


_IGNORED = re.compile(f"[{GAP}]+")


def _normalize(token_bytes: bytes) -> bytes:
    """Return bytes in lower case without spacing and Markdown marks. Parts of characters stay unchanged."""
    return _IGNORED.sub("", token_bytes.decode("utf-8", "surrogateescape").lower()).encode("utf-8", "surrogateescape")


def _alternatives(token: Mapping[str, Any], aligned: _AlignedTokens) -> Iterator[tuple[bytes, float]]:
    """Yield the most likely tokens at the position of `token`, each with its probability."""
    for alternative in token.get("top_logprobs") or ():
        probability = _probability(alternative["logprob"])
        if probability is not None:
            yield _bytes_of(alternative, uses_pieces=aligned.uses_pieces), probability


def _probability(logprob: object) -> float | None:
    """Return the probability for a log-probability; None if it is not a valid number."""
    if isinstance(logprob, bool) or not isinstance(logprob, (int, float)) or not logprob <= _MAX_LOGPROB:
        return None
    return math.exp(min(float(logprob), 0.0))


@dataclass(frozen=True, slots=True)
class _AlignedTokens:
    """The tokens of a choice, aligned with its text."""

    tokens: Sequence[Mapping[str, Any]]
    token_bytes: Sequence[bytes]
    """The bytes of each token, in the same order."""
    joined: bytes
    """The bytes of all tokens."""
    text: str
    """The text of the choice, which is a part of the joined bytes."""
    start: int
    """The offset of the text in the joined bytes."""
    ends: Sequence[int]
    """The offset of each token's end in the joined bytes."""
    uses_pieces: bool
    """Whether the tokens are spelled as their tokenizer's pieces."""

    @property
    def starts(self) -> list[int]:
        """The offset of each token's start in the joined bytes."""
        return [0, *self.ends[:-1]]

    def offset(self, character: int) -> int:
        """Return the byte offset of a character of the text."""
        return self.start + len(self.text[:character].encode())


def _align_tokens(completion: Completion, index: int) -> _AlignedTokens | None:
    """Return the tokens of a choice; None if there are none, or if they do not spell its text."""
    body, text = completion.body, completion.choices[index].text
    if body is None or text is None:
        return None
    choice = message_choices(orjson.loads(body.json))[index if body.choice is None else body.choice]
    tokens = _tokens(choice.get("logprobs"))
    for uses_pieces in (False, True):
        token_bytes = [_bytes_of(token, uses_pieces=uses_pieces) for token in tokens]
        joined, ends = b"".join(token_bytes), list(accumulate(map(len, token_bytes)))
        start = joined.rfind(text.encode())
        if start >= 0 and tokens:
            return _AlignedTokens(tokens, token_bytes, joined, text, start, ends, uses_pieces)
    return None


def _tokens(logprobs: object) -> Sequence[Mapping[str, object]]:
    """Return the tokens in a choice's `logprobs`; empty if there are none."""
    if not isinstance(logprobs, dict):
        return ()
    content = logprobs.get("content")
    if content is None and isinstance(logprobs.get("token_logprobs"), list):
        content = list(_tokens_from_lists(logprobs))
    return content if isinstance(content, list) and all(isinstance(token, dict) for token in content) else ()


def _tokens_from_lists(logprobs: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield the tokens of the older API, which has a list for each field, and a mapping of alternatives per token."""
    tokens, logprobs_of_tokens = logprobs["tokens"], logprobs["token_logprobs"]
    top_mappings = logprobs.get("top_logprobs") or [None] * len(tokens)
    for token, logprob, top in zip(tokens, logprobs_of_tokens, top_mappings, strict=True):
        alternatives = [{"token": name, "logprob": value} for name, value in (top or {}).items()]
        yield {"token": token, "logprob": logprob, "top_logprobs": alternatives}


def _bytes_of(token: Mapping[str, Any], *, uses_pieces: bool) -> bytes:
    """Return a token's bytes. They may be a part of a character, which the token's text cannot represent."""
    values = token.get("bytes")
    text: str = token["token"]
    if uses_pieces:
        return text.translate(_PIECE_CHARACTERS).encode()
    return bytes(values) if isinstance(values, list) else text.encode()


def _summary(token: Mapping[str, Any]) -> dict[str, object]:
    """Return the facts about a token that are stored: its text, its log-probability and its top alternatives."""
    top = token.get("top_logprobs") or ()
    return {
        "token": token["token"],
        "logprob": token["logprob"],
        "top": {alternative["token"]: alternative["logprob"] for alternative in reversed(top)},
    }
