"""How sure a verifier is of its verdict: whether it is asked for, and a stated number as it is read."""

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
    """What is recorded of a verdict besides accept or reject."""

    confidence: Literal["stated", "logprob", "both"] | None = option(
        "Record verdicts as probabilities of accept. `stated`: with a decision the verifier writes how probable it is "
        "that the verdict is right (`Confidence: 0.8`; `80%` is the same); a decision without it is an invalid "
        "response. `logprob`: from the log-probabilities of the verdict's tokens, for which the verifier's model group "
        "needs `logprobs: true` and `top_logprobs`. null: neither.",
        default=None,
        example="both",
    )

    @property
    def states(self) -> bool:
        """Whether the verifier is to write how sure it is."""
        return self.confidence in ("stated", "both")

    @property
    def reads_logprobs(self) -> bool:
        return self.confidence in ("logprob", "both")


MAX_VALUE = 80
"""So much of what follows on the line is looked at."""

GAP = r"\s*_`~\"'"
"""Spacing and Markdown marks, as a set of characters."""

_VALUE = re.compile(
    r"(?P<open>[<(\[])?(?P<number>[0-9]{1,3}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?P<percent>[ \t]*(?:%|per ?cent\b))?"
    r"(?(open)[>)\]])"
    # No further digit, letter, comma or slash may go on with it, nor a second number make a range or a ratio of it.
    r"(?=[.,;:!*_`~\"']*(?:\s|\Z))(?!\W*(?:to|or|and|of|out of)?\W*[0-9])",
    re.ASCII | re.IGNORECASE,
)


def stated_confidence(text: str, marker: str) -> Decimal:
    """The probability, from 0 to 1, that an answer states after a marker, exactly as it is written.

    A marker before a word ("my confidence: high") is prose. One before anything with a digit states a number, and all
    that are stated must be readable and the same.

    Raises:
        InvalidConfidenceError: there is none, or several, or it is no probability.
    """
    found: Decimal | None = None
    for match in loosely(marker, whole=False).finditer(text):
        said = text[match.end() : match.end() + MAX_VALUE].partition("\n")[0].strip(" \t\r*_`~\"'")
        if not any(map(str.isnumeric, said.partition(" ")[0])):
            continue
        value = _probability(said)
        if value is None:
            raise InvalidConfidenceError(
                f"after {marker!r} stands {said[:20]!r}, which is no probability from 0 to 1, nor a percentage"
            )
        if found is not None and found != value:
            raise InvalidConfidenceError(f"the answer states two confidences, {found} and {value}")
        found = value
    if found is None:
        raise InvalidConfidenceError(f"the answer decides and holds no {marker!r} with a number")
    return found


def _probability(said: str) -> Decimal | None:
    """A number from 0 to 1, or a percentage; one between 0 and 1 % is None, since it may be meant as a probability."""
    found = _VALUE.match(said)
    if found is None:
        return None
    value = Decimal(found["number"])
    if found["percent"]:
        return None if 0 < value < 1 or value > 100 else value / 100
    return value if value <= 1 else None


@lru_cache
def loosely(pattern: str, whole: bool = True) -> re.Pattern[str]:
    """The pattern with any spacing and Markdown marks between its words and its colon."""
    return re.compile(r"(?<!\w)" + _spaced(pattern) + (r"(?!\w)" if whole else ""), re.IGNORECASE)


@lru_cache
def loosely_up_to(head: str) -> re.Pattern[str]:
    """The start of a pattern, with the spacing and the marks that may follow it."""
    return re.compile(_spaced(head) + f"[{GAP}]*", re.IGNORECASE)


def _spaced(pattern: str) -> str:
    return f"[{GAP}]*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", pattern)))
