"""Parses the answers, sub-claims and probabilities that messages state, and continues a game with one sub-claim.

A step of the protocol says what its message states (`states`), and whether one of the sub-claims is picked afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runner.base.errors import InvalidConfidenceError, StatementError
from runner.base.value_class import value_class
from runner.game.protocols.answer_verdicts import ANSWER_MARKER
from runner.game.protocols.confidence import GAP, lenient_pattern, stated_confidence

MIN_CLAIMS: Final = 2
CLAIM_MARKER: Final = "Claim"
"""The word before the number of a sub-claim."""

_MARKS = rf"{GAP}>#+-"
_CLAIM = re.compile(rf"(?:\A|(?<=[^{_MARKS}]))([{_MARKS}]*+){CLAIM_MARKER}[ \t]*([0-9]{{1,3}})[{GAP}]*:", re.IGNORECASE)
"""Matches a claim with all marks before it, so that the time is linear. They must contain the start of a line."""
_EMPTY_LINE = re.compile(r"\n[ \t\r]*\n")
_FENCE = re.compile(r"\A(?:```|~~~)[^\n]*\n(.*?)\n?(?:```|~~~)\s*\Z", re.DOTALL)


@value_class(frozen=True, slots=True)
class Statement:
    """An answer, or several sub-claims, that a prover has stated, with their labels if a checker labels them."""

    texts: tuple[str, ...]
    labels: tuple[int, ...] = ()
    """The label of each text: 1 if it is right, 0 if it is wrong; empty without a checker."""


@value_class(frozen=True, slots=True)
class StatedParts:
    """The statements of a round's messages, and the index of the sub-claim that was picked after it."""

    statement: Statement | None = None
    estimates: tuple[float, ...] = ()
    """The probability of each sub-claim."""
    picked: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the parts that are present as JSON data."""
        data = {} if self.statement is None else {"texts": self.statement.texts, "labels": self.statement.labels}
        values = {**data, "estimates": self.estimates, "picked": self.picked}
        return {name: value for name, value in values.items() if value not in (None, ())}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StatedParts:
        texts, labels = tuple(data.get("texts", ())), tuple(data.get("labels", ()))
        statement = Statement(texts, labels) if texts else None
        return cls(statement, tuple(data.get("estimates", ())), data.get("picked"))


class GameSubject(NamedTuple):
    """The answer or sub-claim that a game is about, if that is not the datapoint itself."""

    text: str | None = None
    """The answer that was stated, or the sub-claim that was picked; None before the first of them."""
    label: int | None = None
    """The label of this text; None if no checker labels it."""
    depth: int = 0
    """The number of sub-claims that were picked so far."""
    claims: Statement | None = None
    """The sub-claims that were stated since the last pick."""


def stated_texts(text: str, kind: str, max_claims: int) -> tuple[str, ...]:
    """Return the answer (`answer`) or the sub-claims (`claims`) that a message states.

    Raises:
        StatementError: the message does not state them in the form that the protocol requires.
    """
    return (_stated_answer(text),) if kind == "answer" else _stated_claims(text, max_claims)


def _stated_answer(text: str) -> str:
    """Return the rest of the line after the last `Answer:` or, if it is empty, all that follows, such as a program."""
    ends = [match.end() for match in lenient_pattern(ANSWER_MARKER, whole_words=False).finditer(text)]
    following = text[ends[-1] :].lstrip("*_ \t") if ends else ""
    line = following.partition("\n")[0].rstrip("* \t\r")
    answer = line if line and not line.startswith(("```", "~~~")) else following.strip()
    match = _FENCE.match(answer)
    answer = answer.strip() if match is None else match[1].strip("\n")
    if not answer:
        raise StatementError(f"the message must state its answer after {ANSWER_MARKER!r}")
    return answer


def _stated_claims(text: str, max_claims: int) -> tuple[str, ...]:
    numbers, claims = [list(part) for part in zip(*_numbered_parts(text), strict=True)] or [[], []]
    if not MIN_CLAIMS <= len(claims) <= max_claims or numbers != list(range(1, len(claims) + 1)) or not all(claims):
        raise StatementError(
            f"the message must state from {MIN_CLAIMS} to {max_claims} sub-claims, in lines that start with "
            f"'{CLAIM_MARKER} 1:', '{CLAIM_MARKER} 2:' and so on"
        )
    return tuple(claims)


def stated_estimates(text: str, count: int | None) -> tuple[float, ...]:
    """Return the probability that a message states for each of `count` sub-claims; None accepts any number of them.

    Raises:
        StatementError: a probability is missing, or stated twice.
    """
    parts = _numbered_parts(text)
    needed = max(len(parts), 1) if count is None else count
    if sorted(number for number, _ in parts) != list(range(1, needed + 1)):
        raise StatementError(
            f"the message must state one probability for each of the {needed} sub-claims, as in '{CLAIM_MARKER} 1: 80%'"
        )
    try:
        return tuple(float(stated_confidence(f"p: {body}", "p:")) for _, body in sorted(parts))
    except InvalidConfidenceError as error:
        raise StatementError(
            f"after each '{CLAIM_MARKER} NUMBER:', the message must state a probability from 0 to 1, or a percentage"
        ) from error


def _numbered_parts(text: str) -> list[tuple[int, str]]:
    """Return the number of each claim and the text after it, up to the next claim or an empty line."""
    matches = [match for match in _CLAIM.finditer(text) if match.start() == 0 or "\n" in match[1]]
    ends = [match.start() + match[1].index("\n") for match in matches[1:]]
    return [
        (int(match[2]), _EMPTY_LINE.split(text[match.end() : end].lstrip(" \t*_").strip(), 1)[0].strip())
        for match, end in zip(matches, [*ends, len(text)], strict=False)
    ]
