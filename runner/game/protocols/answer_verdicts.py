"""Parse a verdict on listed answers: a letter, a distribution over the answers, or a score for each answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from runner.base.errors import InvalidDecisionError
from runner.game.protocols.ballot import letter_of
from runner.game.protocols.confidence import GAP, lenient_pattern

VerdictForm = Literal["answer", "distribution", "scores"]

ANSWER_MARKER: Final = "Answer:"
"""The text before the letter of the answer that an agent with the stance `open` chooses to argue for."""
MAX_SCORE: Final = 100.0
_SUM_TOLERANCE = 0.02
"""Rounded probabilities may differ from a sum of 1 by this much. They are then divided by their sum."""
_ROUNDING = 0.005
"""The same for each answer, because many numbers with two decimals may all be rounded up."""

_CHOICE = re.compile(rf"[{GAP}(\[<]*([A-Za-z])(?![\w'’])")
_CONTINUED = re.compile(rf"[{GAP})\].]*(?:\bor\b|\band\b|[/,&])[{GAP}(\[]*[A-Z]\b")
"""A second letter that makes a choice ambiguous, as in `A or B`."""
_WORD = re.compile(r"[ \t]+[a-z]")
_PAIR = re.compile(
    rf"(?<![\w'’])([A-Za-z])(?:[{GAP}:=)\]>(|\x24]|[-–](?=\s))*"
    r"([0-9]+/[0-9]+|0,[0-9]+|[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?|\.[0-9]+)([ \t]*\\?%)?(?![\w])",
    re.ASCII,
)


class AnswerVerdict(NamedTuple):
    """The answer that a verdict chooses, and the number that it gives each answer, if its form has numbers."""

    position: int
    numbers: tuple[float, ...] | None = None


def decision_line(marker: str, count: int, form: VerdictForm) -> str:
    """Return the line that a verdict must have, for use in prompts."""
    start = display_marker(marker)
    if form == "answer":
        return f"{start} <letter>"
    kind = "probability" if form == "distribution" else "score"
    return f"{start} " + ", ".join(f"{letter_of(i)} <{kind}>" for i in range(count))


def certain_verdict(position: int, count: int, form: VerdictForm) -> str:
    """Return what a verdict that is certain of an answer states after the marker."""
    if form == "answer":
        return letter_of(position)
    highest = 1 if form == "distribution" else MAX_SCORE
    return ", ".join(f"{letter_of(i)} {highest if i == position else 0:g}" for i in range(count))


def display_marker(marker: str) -> str:
    """Return a marker with an upper-case first letter."""
    return marker[:1].upper() + marker[1:]


def parse_verdict(text: str, marker: str, count: int, form: VerdictForm) -> AnswerVerdict | None:
    """Return the verdict of an answer on `count` answers; None if the marker is missing, so that there is no verdict.

    Spacing, Markdown and the case of the marker do not matter. The answer with the highest number is chosen; in a tie,
    the first of them in the game's order.

    Raises:
        InvalidDecisionError: the marker is there, but no verdict of this form follows.
    """
    ends = [match.end() for match in lenient_pattern(marker, whole_words=False).finditer(text)]
    if not ends:
        return None
    if form == "answer":
        return AnswerVerdict(_only_choice(text, ends, display_marker(marker), count))
    numbers = _numbers(text[ends[-1] :], count, form)
    return AnswerVerdict(numbers.index(max(numbers)), numbers)


def check_letter_alone(text: str, marker: str, answers: Iterable[str]) -> None:
    """Check that nothing but punctuation or one of these answers follows the letter of a verdict in its line.

    Raises:
        InvalidDecisionError: other words follow, so that the verdict may not be meant, as in `A - no wait, B`.
    """
    words = words_after_letter(text, marker)
    if words and words not in map(_plain_words, answers):
        raise InvalidDecisionError(f"after {display_marker(marker)!r} and the letter, other words follow: {words!r}")


def words_after_letter(text: str, marker: str) -> str:
    """Return the words after the letters of all verdicts, in lower case; empty if there are none."""
    words = list[str]()
    for match in lenient_pattern(marker, whole_words=False).finditer(text):
        letter = _CHOICE.match(text, match.end())
        if letter is not None:
            is_json_string = "{" in text[: match.start()] and text[letter.start(1) - 1] == '"'
            words.append(_plain_words(text[letter.end() :].partition('"' if is_json_string else "\n")[0]))
    return " ".join(filter(None, dict.fromkeys(words)))


def _plain_words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.replace("_", " "))).casefold()


def stated_answer(text: str, count: int) -> int | None:
    """Return the position of the answer that a prover states after `ANSWER_MARKER`; None if it states none clearly."""
    ends = [match.end() for match in lenient_pattern(ANSWER_MARKER, whole_words=False).finditer(text)]
    try:
        return _only_choice(text, ends, ANSWER_MARKER, count) if ends else None
    except InvalidDecisionError:
        return None


def _only_choice(text: str, ends: list[int], marker: str, count: int) -> int:
    """Return the position that the letters after all markers name."""
    choices = {_choice(text, end, count) for end in ends}
    if len(choices) > 1:
        raise InvalidDecisionError(f"the answer has several letters after {marker!r}; write one")
    (position,) = choices
    if position is None:
        raise InvalidDecisionError(f"after {marker!r}, the answer has no letter from A to {letter_of(count - 1)}")
    return position


def _choice(text: str, start: int, count: int) -> int | None:
    match = _CHOICE.match(text, start)
    if match is None or _CONTINUED.match(text, match.end()):
        return None
    letter = match[1].upper()
    is_word = letter in "AI" and _WORD.match(text, match.end()) is not None  # "a good answer", "I think"
    rest_of_line = text[match.end() :].partition("\n")[0]
    is_small_word = match[1].islower() and any(map(str.isalnum, rest_of_line))
    position = ord(letter) - ord("A")
    return position if position < count and not is_word and not is_small_word else None


def _numbers(text: str, count: int, form: VerdictForm) -> tuple[float, ...]:
    """Return the number of each answer."""
    stated: dict[int, tuple[float, bool]] = {}
    for position, number, is_percentage in _pairs(text, count):
        if position >= count or stated.setdefault(position, (number, is_percentage)) != (number, is_percentage):
            problem = "is not an answer" if position >= count else "has two different numbers"
            raise InvalidDecisionError(f"{letter_of(position)} {problem}")
    missing = [letter_of(i) for i in range(count) if i not in stated]
    if missing:
        raise InvalidDecisionError(f"the verdict has no number for {', '.join(missing)}; give each answer one")
    numbers = tuple(stated[i][0] for i in range(count))
    percentages = {stated[i][1] for i in range(count)}
    return _scores(numbers) if form == "scores" else _distribution(numbers, percentages)


def _pairs(text: str, count: int) -> Iterator[tuple[int, float, bool]]:
    """Yield the position, the number and whether it is a percentage, up to the line in which all answers have one."""
    positions, end = set[int](), 0
    for match in _PAIR.finditer(text):
        if len(positions) == count and "\n" in text[end : match.start()]:
            return
        position, end = ord(match[1].upper()) - ord("A"), match.end()
        positions.add(position)
        dividend, _, divisor = match[2].replace(",", ".").partition("/")
        if not float(divisor or 1):
            continue
        yield position, float(dividend) / float(divisor or 1), match[3] is not None


def _scores(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if max(numbers) > MAX_SCORE:
        raise InvalidDecisionError(f"a score is {max(numbers):g}; scores are from 0 to {MAX_SCORE:g}")
    return numbers


def _distribution(numbers: tuple[float, ...], percentages: set[bool]) -> tuple[float, ...]:
    if len(percentages) > 1:
        raise InvalidDecisionError("some probabilities are percentages and others are not; use one form")
    total = sum(numbers)
    tolerance = max(_SUM_TOLERANCE, _ROUNDING * len(numbers))
    scale = 100.0 if percentages == {True} or (max(numbers) > 1 and abs(total / 100 - 1) <= tolerance) else 1.0
    if abs(total / scale - 1) > tolerance:
        raise InvalidDecisionError(f"the probabilities sum to {total / scale:g}, not to 1")
    return tuple(number / total for number in numbers)
