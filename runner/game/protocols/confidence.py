"""A verifier's confidence in its verdict: the settings of the spec, and the parser of a stated number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Literal

from runner.base.errors import InvalidConfidenceError
from runner.documents.dataclass_schema import option


@dataclass(frozen=True, kw_only=True)
class VerdictSettings:
    """Settings for data that is recorded with a verdict."""

    confidence: Literal["stated", "logprob", "both"] | None = option(
        "Record the verifier's probability of accept with each verdict. `stated`: the verifier writes the probability "
        "that its verdict is right (`Confidence: 0.8` or `Confidence: 80%`); a verdict without it is an invalid "
        "answer. `logprob`: nip-run computes it from the log-probabilities of the verdict's tokens; the verifier's "
        "model group needs `logprobs: true` and `top_logprobs`. `both`: record both values. null: record neither.",
        default=None,
        example="both",
    )

    form: Literal["answer", "distribution", "scores"] = option(
        "For protocols with `answers: listed`, what a verdict states after the marker. `answer`: the letter of an "
        "answer. `distribution`: a probability for each answer. `scores`: a score from 0 to 100 for each answer. "
        "The answer with the highest number is the verdict; in a tie, the first of them in the game's order.",
        default="answer",
        example="distribution",
    )

    @property
    def states(self) -> bool:
        """Whether the verifier must state its confidence."""
        return self.confidence in ("stated", "both")

    @property
    def reads_logprobs(self) -> bool:
        return self.confidence in ("logprob", "both")

    @property
    def confidence_kinds(self) -> tuple[str, ...]:
        """The kinds of confidence that the run records."""
        return tuple(kind for kind in ("stated", "logprob") if self.confidence in (kind, "both"))


MAX_VALUE = 80
"""Maximum number of characters after the marker in which the number is searched."""

GAP = r"\s*_`~\"'"
"""White space and Markdown marks, for use in a character class of a regular expression."""

UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u31f0-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""

_VALUE = re.compile(
    r"(?P<open>[<(\[])?(?P<number>[0-9]{1,3}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?P<percent>[ \t]*(?:%|per ?cent\b))?"
    r"(?(open)[>)\]])"
    # A digit, letter, comma or slash must not follow, nor a second number that makes it a range or a ratio.
    r"(?=[.,;:!*_`~\"']*(?:\s|\Z))(?!\W*(?:to|or|and|of|out of)?\W*[0-9])",
    re.ASCII | re.IGNORECASE,
)


def stated_confidence(text: str, marker: str) -> Decimal:
    """Return the probability, from 0 to 1, that an answer states after a marker, exactly as written.

    A marker before a word without digits ("my confidence: high") is ignored. The numbers after all other markers must
    be valid and equal.

    Raises:
        InvalidConfidenceError: the answer states no number, different numbers, or one that is not a probability.
    """
    confidence: Decimal | None = None
    for match in lenient_pattern(marker, whole_words=False).finditer(text):
        following = text[match.end() : match.end() + MAX_VALUE].partition("\n")[0].strip(" \t\r*_`~\"'")
        if not any(map(str.isnumeric, following.partition(" ")[0])):
            continue
        value = _probability(following)
        if value is None:
            raise InvalidConfidenceError(
                f"after {marker!r} stands {following[:20]!r}, which is no probability from 0 to 1, nor a percentage"
            )
        if confidence is not None and confidence != value:
            raise InvalidConfidenceError(f"the answer states two confidences, {confidence} and {value}")
        confidence = value
    if confidence is None:
        raise InvalidConfidenceError(f"the answer has a verdict, but no {marker!r} with a number")
    return confidence


def _probability(text: str) -> Decimal | None:
    """The number (0 to 1) or percentage in the text. None if neither, or between 0 % and 1 %, which is ambiguous."""
    match = _VALUE.match(text)
    if match is None:
        return None
    value = Decimal(match["number"])
    if match["percent"]:
        return None if 0 < value < 1 or value > 100 else value / 100
    return value if value <= 1 else None


@lru_cache
def lenient_pattern(text: str, whole_words: bool = True) -> re.Pattern[str]:
    """Return a regex for the text that allows white space and Markdown marks between its words and punctuation.

    It matches no part of a word, except in scripts without spaces between words.
    """
    letter = rf"[^\W{UNSPACED}]"
    after = f"(?!{letter})" if whole_words else ""
    return re.compile(f"(?<!{letter}){_pattern_with_gaps(text)}{after}", re.IGNORECASE)


@lru_cache
def lenient_prefix(head: str) -> re.Pattern[str]:
    """Return a regex for the start of a text and the white space and Markdown marks that may follow."""
    return re.compile(_pattern_with_gaps(head) + f"[{GAP}]*", re.IGNORECASE)


def _pattern_with_gaps(text: str) -> str:
    """Return a regular expression that matches the text, also with gaps between its words and punctuation marks."""
    parts = map(re.escape, re.findall(r"\w+|[^\w\s]", text))
    return f"[{GAP}]*".join(part.replace(":", "[:：]") for part in parts)
