"""The log-probabilities of a stretch of an answer, and the probability of a verdict in it, from the server's tokens.

How servers differ: a token may be a part of a character (`bytes` has it), be spelled as its tokenizer's piece
(`▁accept`, `Ġaccept`), or stand in the lists of the older completions API.
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
from runner.models.answers import counted
from runner.models.interface import Completion

_HAS_TOKENS = re.compile(rb'"(?:logprob|token_logprobs)"')
"""A key of each token, or of all."""

_PIECES = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n"})
"""How tokenizers write spaces and line ends in their pieces (SentencePiece, byte-level BPE)."""

NO_LOGPROBS: Final = "the server told no log-probabilities of the answer"
OTHER_TOKENS: Final = "the tokens that the server told do not spell the answer"
NOT_TOLD_APART: Final = "no token tells the two verdicts apart"
NO_NUMBER: Final = "the log-probability of the verdict is no number"
OPEN: Final = "the other verdict is not among the top log-probabilities, which leave too much open to bound it"
BOUND: Final = "a bound: the other verdict is not among the top log-probabilities"

_MOST: Final = 1e-3
"""Servers that compute in single precision tell a log-probability a little above 0."""


@dataclass(frozen=True, slots=True)
class PAccept:
    """The probability of accept, or None; and why it is not known, or a bound only."""

    value: float | None
    note: str | None = None


def has_logprobs(completion: Completion) -> bool:
    """Whether an answer may have log-probabilities; most have none, and need not be read again to know it."""
    return completion.body is not None and _HAS_TOKENS.search(completion.body.json) is not None


def logprobs_of_span(completion: Completion, index: int, span: tuple[int, int]) -> str | None:
    """The tokens that overlap a span of the characters of a choice's text: a list of token, logprob and top, in JSON.

    None where the server told no tokens, or not those of this text. What it tells besides, as of reasoning before the
    text and of an end after it, is passed over.
    """
    try:
        told = _told(completion, index)
        if told is None:
            return None
        first, last = map(told.offset, span)
        begin, starts = bisect_right(told.ends, first), told.starts
        found = [_shown(token) for token, at in zip(told.tokens[begin:], starts[begin:], strict=True) if at < last]
        return orjson.dumps(found).decode()
    except (AttributeError, KeyError, TypeError, ValueError):  # tokens of another form
        return None


def p_accept(completion: Completion, index: int, fork: VerdictFork | None) -> PAccept:
    """The probability of accept at the token where the two verdicts part, given all before it: A / (A + R).

    A is the probability of all alternatives there that spell the beginning of the accepting text, or go on after it,
    and R that of those of the rejecting text; case, spacing and Markdown marks do not count (` Accept`, `acc`,
    `accept.`). What fits neither, or both, is left out. Where the other verdict has no alternative, its share is at
    most what the alternatives leave of 1; that bound is given where it leaves the verdict the likelier one.
    """
    if not has_logprobs(completion):
        return PAccept(None, NO_LOGPROBS)
    try:
        told = _told(completion, index)
        if told is None:
            return PAccept(None, OTHER_TOKENS)
        return PAccept(None, NOT_TOLD_APART) if fork is None else _p_accept(told, fork)
    except (AttributeError, KeyError, TypeError, ValueError):
        return PAccept(None, OTHER_TOKENS)


def _p_accept(told: _Told, fork: VerdictFork) -> PAccept:
    accept, reject = fork.accept.encode(), fork.reject.encode()
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(accept, reject, strict=False)))
    at = told.offset(fork.at) + common
    place = bisect_right(told.ends, at)
    chosen = told.tokens[place]
    head = told.joined[told.starts[place] : at]
    ways = _folded(head + accept[common:]), _folded(head + reject[common:])
    given = _way(told.spelled[place], ways)
    if given is None:
        return PAccept(None, NOT_TOLD_APART)
    alternatives = list(_alternatives(chosen, told))
    if not any(spelled == told.spelled[place] for spelled, _ in alternatives):
        own = _probability(chosen["logprob"])
        if own is None:
            return PAccept(None, NO_NUMBER)
        alternatives.append((told.spelled[place], own))
    shares = [0.0, 0.0]
    unclear = 0.0
    for spelled, probability in alternatives:
        way = _way(spelled, ways)
        if way is not None:
            shares[way] += probability
        elif any(goal.startswith(_folded(spelled)) for goal in ways):
            unclear += probability
    return _of_shares(shares, given, unclear + max(0.0, 1 - sum(probability for _, probability in alternatives)))


def _of_shares(shares: Sequence[float], given: int, left: float) -> PAccept:
    """`shares`: of accept and of reject; `left`: what either may have besides."""
    own, other = shares[given], shares[1 - given]
    if own + other <= 0:
        return PAccept(None, NO_NUMBER)
    note = None
    if other <= 0:
        if own <= left:
            return PAccept(None, OPEN)
        other, note = left, BOUND
    likely = own / (own + other)
    return PAccept(likely if given == 0 else other / (own + other), note)


def _way(spelled: bytes, ways: tuple[bytes, bytes]) -> int | None:
    """Which of two texts a token begins, or goes on after: 0, 1, or None for neither and both."""
    token = _folded(spelled)
    fits = [goal.startswith(token) or token.startswith(goal) for goal in ways]
    return fits.index(True) if fits[0] != fits[1] else None


_GAPS = re.compile(f"[{GAP}]+")


def _folded(spelled: bytes) -> bytes:
    """Without case, spacing and marks; a part of a character stays as it is."""
    return _GAPS.sub("", spelled.decode("utf-8", "surrogateescape").lower()).encode("utf-8", "surrogateescape")


def _alternatives(token: Mapping[str, Any], told: _Told) -> Iterator[tuple[bytes, float]]:
    """The likeliest tokens in the place of one, each with its probability."""
    for other in token.get("top_logprobs") or ():
        probability = _probability(other["logprob"])
        if probability is not None:
            yield _bytes_of(other, pieces=told.pieces), probability


def _probability(logprob: object) -> float | None:
    if isinstance(logprob, bool) or not isinstance(logprob, (int, float)) or not logprob <= _MOST:
        return None
    return math.exp(min(float(logprob), 0.0))


@dataclass(frozen=True, slots=True)
class _Told:
    """The tokens of a choice, where they spell its text: `text` begins at the byte `start` of all."""

    tokens: Sequence[Mapping[str, Any]]
    spelled: Sequence[bytes]
    joined: bytes
    text: str
    start: int
    ends: Sequence[int]
    pieces: bool
    """Whether they are spelled as their tokenizer's pieces."""

    @property
    def starts(self) -> list[int]:
        return [0, *self.ends[:-1]]

    def offset(self, at: int) -> int:
        """The byte at which a character of the text begins."""
        return self.start + len(self.text[:at].encode())


def _told(completion: Completion, index: int) -> _Told | None:
    body, text = completion.body, completion.choices[index].text
    if body is None or text is None:
        return None
    choice = counted(orjson.loads(body.json))[index if body.choice is None else body.choice]
    tokens = _tokens(choice.get("logprobs"))
    for pieces in (False, True):
        spelled = [_bytes_of(token, pieces=pieces) for token in tokens]
        joined = b"".join(spelled)
        start = joined.rfind(text.encode())
        if start >= 0 and tokens:
            return _Told(tokens, spelled, joined, text, start, list(accumulate(map(len, spelled))), pieces)
    return None


def _tokens(logprobs: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(logprobs, dict):
        return ()
    content = logprobs.get("content")
    if content is None and isinstance(logprobs.get("token_logprobs"), list):
        content = list(_of_lists(logprobs))
    return content if isinstance(content, list) and all(isinstance(token, dict) for token in content) else ()


def _of_lists(logprobs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The tokens of the older form: a list of each, and of the likeliest a mapping for each."""
    tokens, numbers = logprobs["tokens"], logprobs["token_logprobs"]
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    for token, number, top in zip(tokens, numbers, tops, strict=True):
        others = [{"token": name, "logprob": value} for name, value in (top or {}).items()]
        yield {"token": token, "logprob": number, "top_logprobs": others}


def _bytes_of(token: Mapping[str, Any], *, pieces: bool = False) -> bytes:
    """A token's bytes: it may be a part of a character, which its text cannot say."""
    raw = token.get("bytes")
    spelled: str = token["token"]
    if pieces:
        return spelled.translate(_PIECES).encode()
    return bytes(raw) if isinstance(raw, list) else spelled.encode()


def _shown(token: Mapping[str, Any]) -> dict[str, Any]:
    top = token.get("top_logprobs") or ()
    return {
        "token": token["token"],
        "logprob": token["logprob"],
        "top": {other["token"]: other["logprob"] for other in reversed(top)},
    }
