"""Find the quotations in messages without quote tags, and compare each with the texts that it may come from.

A quotation is a text in quotation marks of any kind, in a Markdown block quote, code span or code block, or between
quote tags. The outermost quotation counts; what it contains is no quotation of its own. A text of fewer than
`MIN_WORDS` words in quotation marks or a code span counts only if a source has it, because it may be a term. Longer
code always counts, because no mark distinguishes code that an agent proposes from code that it quotes.

`runner.game.protocols.quotations` decides whether a source has a text. In addition, an ellipsis may replace a part, and
punctuation at the end may be the writer's. The marks are found in a time that is linear in the length of the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from runner.analysis.instructions import column_texts
from runner.analysis.results import TextSpan
from runner.analysis.units import Unit, UnitMessage
from runner.base.text import counted, in_one_line, shortened
from runner.game.protocols.quotations import Span, find_quotations, locate_quote

MIN_WORDS = 3
MAX_PARTS = 50
"""Maximum number of parts between ellipses. Each is searched for in the source, so more would take too much time."""
MAX_QUOTED = 80
"""Maximum number of characters of a quotation in a reason."""


class MarkedText(NamedTuple):
    """A text that a message marks as quoted."""

    span: Span
    """The place in the message, with the marks."""
    text: str
    is_term: bool = False
    """Whether the text is so short that it may be a term."""
    is_complete: bool = True
    """Whether the closing mark exists."""


@dataclass(frozen=True)
class CheckedQuotation:
    """A quotation in a message, and its place in a source."""

    span: Span
    text: str
    source: str | None
    """The name of the source; None if no source has the text."""
    source_span: Span | None


_FENCE = re.compile(
    r"[ \t]*+(?P<mark>`{3,}+|~{3,}+)[^\n]*+\n(?P<text>.*?)(?:^[ \t]*(?P=mark)[`~]*[ \t]*(?=\n|\Z)|\Z)",
    re.MULTILINE | re.DOTALL,
)
_BLOCK = re.compile(r"(?:[ \t]{0,3}>[^\n]*(?:\n|\Z))+")
_BLOCK_MARK = re.compile(r"^[ \t]{0,3}(?:>[ \t]?)+", re.MULTILINE)
_TICKS = re.compile(r"\n[ \t]*+\n|`+")
"""An empty line, which ends all code spans, or a mark of a code span."""
_CLOSING: Mapping[str, str] = {
    '"': '"', "'": "'", "＂": "＂", "“": "”", "„": "“”", "‟": "”", "‘": "’", "‚": "‘’", "«": "»", "»": "«", "‹": "›",
    "›": "‹", "「": "」", "『": "』", "〝": "〞〟", "｢": "｣",
}  # fmt: skip
"""The closing marks of each opening quotation mark."""
_ELLIPSIS = re.compile(r"[\[(]?(?:\.{3}|…|\. \. \.)[\])]?")
_FINAL = ".,;:!?…"


def find_marked_texts(message: str) -> list[MarkedText]:
    """Return the texts that a message marks as quoted, in order, without those inside another one."""
    tags = {quotation.span[0]: quotation for quotation in find_quotations(message, "")}
    spans, quotation_ends = _code_spans(message), _quotation_ends(message)
    marked_texts, position = list[MarkedText](), 0
    while position < len(message):
        if (tag := tags.get(position)) is not None:
            marked: MarkedText | None = MarkedText(tag.span, tag.text, is_complete=tag.is_closed)
        else:
            marked = _block_at(message, position) or _inline_text_at(message, position, spans, quotation_ends)
        if marked is not None and any(map(str.isalnum, marked.text)):
            marked_texts.append(marked)
        position = position + 1 if marked is None else max(marked.span[1], position + 1)
    return marked_texts


def _block_at(message: str, start: int) -> MarkedText | None:
    """Return the code block or block quote that starts at a position, if there is one."""
    if start > 0 and message[start - 1] != "\n":
        return None
    if fence := _FENCE.match(message, start):
        return MarkedText(fence.span(), fence["text"])
    if block := _BLOCK.match(message, start):
        return MarkedText(block.span(), _BLOCK_MARK.sub("", block[0]))
    return None


def _inline_text_at(
    message: str, start: int, spans: Mapping[int, tuple[int, int]], quotation_ends: Mapping[int, int]
) -> MarkedText | None:
    """Return the code span or the text in quotation marks that starts at a position, if there is one."""
    if start in spans:
        length, closing = spans[start]
        text = message[start + length : closing]
        return MarkedText((start, closing + length), text, _is_short(text))
    if start in quotation_ends and not _is_in_word(message, start) and not message[start + 1].isspace():
        end = quotation_ends[start]
        text = message[start + 1 : end]
        return MarkedText((start, end + 1), text, _is_short(text))
    return None


def _code_spans(message: str) -> dict[int, tuple[int, int]]:
    """Return the length of each mark that opens a code span, and the place of the equal mark that closes it."""
    spans: dict[int, tuple[int, int]] = {}
    next_marks: dict[int, int] = {}
    for match in reversed(list(_TICKS.finditer(message))):
        if match[0][0] != "`":
            next_marks.clear()
            continue
        length = len(match[0])
        if length in next_marks:
            spans[match.start()] = length, next_marks[length]
        next_marks[length] = match.start()
    return spans


def _quotation_ends(message: str) -> dict[int, int]:
    """Return the place of the mark that closes each quotation mark in the same paragraph, if there is one."""
    ends: dict[int, int] = {}
    for opening in _CLOSING.keys() & set(message):
        closing, open_marks = _CLOSING[opening], list[int]()
        for match in re.finditer(rf"\n[ \t]*+\n|[{opening}{closing}]", message):
            mark, position = match[0], match.start()
            if mark[0] == "\n":
                open_marks.clear()
            elif mark in closing and _can_close(message, position):
                # An equal mark cannot open a nested quotation, so it closes all before.
                closed = [open_marks.pop() for _ in range(len(open_marks) if mark == opening else bool(open_marks))]
                ends.update(dict.fromkeys(closed, position))
            if mark == opening:
                open_marks.append(position)
    return ends


def _can_close(message: str, position: int) -> bool:
    is_apostrophe = message[position] in "'’‘" and message[position + 1 : position + 2].isalnum()
    return not is_apostrophe and not message[position - 1].isspace()


def _is_in_word(message: str, position: int) -> bool:
    """Return whether a mark follows a word directly, so that it is an apostrophe, a prime or a closing mark."""
    return position > 0 and message[position - 1].isalnum() and message[position] in "\"'’‘»›＂"


def _is_short(text: str) -> bool:
    return len(re.findall(r"\w+", text)) < MIN_WORDS


def check_quotations(message: str, sources: Sequence[tuple[str, str]]) -> list[CheckedQuotation]:
    """Return the quotations of a message, each with its place in the first source (name, text) that has it."""
    checked, find_place = [], cache(lambda text: _find_place(text, sources))
    for marked in find_marked_texts(message):
        place = find_place(marked.text) if marked.is_complete else None
        if place is not None:
            checked.append(CheckedQuotation(marked.span, marked.text, *place))
        elif not marked.is_term:
            checked.append(CheckedQuotation(marked.span, marked.text, None, None))
    return checked


def _find_place(text: str, sources: Sequence[tuple[str, str]]) -> tuple[str, Span] | None:
    for name, source in sources:
        for variant in dict.fromkeys((text, text.rstrip().rstrip(_FINAL))):
            span = locate_quote(variant, source) if variant.strip() else None
            if span is not None or (span := _locate_parts(variant, source)) is not None:
                return name, span
    return None


def _locate_parts(text: str, source: str) -> Span | None:
    """Return the place of a text with ellipses: from its first to its last part, if the source has all in order."""
    parts = [part for part in _ELLIPSIS.split(text) if part.strip()]
    if len(parts) > MAX_PARTS or (len(parts) < 2 and not (parts and _ELLIPSIS.search(text))):
        return None
    start, position = None, 0
    for part in parts:
        span = locate_quote(part, source[position:])
        if span is None:
            return None
        start = position + span[0] if start is None else start
        position += span[1]
    return None if start is None else (start, position)


def exact_quotation(unit: Unit) -> Mapping[str, object]:
    """Answer whether all quotations of a unit's agent are exact. A unit without quotations is not applicable."""
    material = tuple(column_texts(unit))
    spans, missing = list[TextSpan](), list[str]()
    for message in unit.own_messages:
        for quotation in check_quotations(message.text, (*material, *_earlier_messages(unit, message))):
            source_start, source_end = quotation.source_span or (None, None)
            spans.append(
                TextSpan(
                    message.agent,
                    message.channel,
                    message.round,
                    *quotation.span,
                    quotation.source is not None,
                    quotation.source,
                    source_start,
                    source_end,
                )
            )
            if quotation.source is None:
                missing.append(shortened(in_one_line(quotation.text.strip()), MAX_QUOTED))
    if not spans:
        return {"answer": "not applicable", "reason": "the agent quotes nothing"}
    reason = f"{len(spans) - len(missing)} of {counted(len(spans), 'quotation')} exact"
    reason += "".join(f"; not found: {text!r}" for text in missing)
    return {"answer": "no" if missing else "yes", "reason": reason, "spans": spans}


def _earlier_messages(unit: Unit, message: UnitMessage) -> Iterator[tuple[str, str]]:
    for other in (*unit.context, *unit.messages):
        if other.round < message.round and other.agent != message.agent:
            yield f"message of {other.agent} in round {other.round}", other.text
