"""Find the marked quotes of a message, and check each against the text that it quotes.

A quote is the text between `<quote>` and `</quote>`. It is verified if it occurs in the source, word for word and with
the same case, after this normalization of both texts:

- Each run of white space is one space. White space around a quote is ignored.
- All double quotation marks are equal, all single ones and apostrophes are equal, and so are hyphens and dashes.
- Characters are compared in Unicode form NFKD. Control and format characters, such as soft hyphens, are ignored.
- If the quote does not match yet, its code fence, then line numbers (`12:`, `12.`, `12)`, `12|`, `[12]`, `L12`) at the
  starts of lines of either text, and quotation marks around the quote are ignored.

A quote never starts or ends inside a word, a number or a character with accents: `able` is not a quote of `unable`.

All functions are pure. Their time is linear in the length of the message and, for each quote, of the source.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from runner.game.protocols.confidence import UNSPACED

Span = tuple[int, int]
"""The start and the end of a part of a text, as offsets of characters."""

VERIFIED = "verified_quote"
UNVERIFIED = "unverified_quote"
_SHOWN_MARKS = "“", "”"
"""The text that replaces a mark without a quote of its own: an opening and a closing one."""


@dataclass(frozen=True, slots=True)
class Quotation:
    """A quote in a message. Marks inside a quote are not quotes of their own, and are not in its text."""

    span: Span
    """The quote's place in the message, with its marks."""
    inner: Span
    """The place of the text between the marks."""
    text: str
    is_closed: bool
    """Whether the quote has a closing mark. Without one, it ends at the next mark or the end of the message."""
    source_span: Span | None
    """The place in the source where the text occurs first; None if it does not occur, or if the quote is not closed."""

    @property
    def is_verified(self) -> bool:
        return self.source_span is not None

    @property
    def words(self) -> int:
        """The number of words of the quote."""
        return len(self.text.split())


def find_quotations(message: str, source: str) -> list[Quotation]:
    """Return the quotes of a message, in order."""
    marks = list(_find_marks(message))
    return [_quotation(message, source, marks, first, last) for first, last in _pair_marks(marks)]


def show_quotations(message: str, quotations: Sequence[Quotation], verified: Sequence[bool]) -> str:
    """Return a message as others see it: each quote with marks that say whether it is verified.

    All other marks become quotation marks, and so do imitations of marks, in similar characters or other brackets.
    """
    parts, end = [], 0
    for quotation, is_verified in zip(quotations, verified, strict=True):
        name = VERIFIED if is_verified else UNVERIFIED
        inner = _replace_marks(message[slice(*quotation.inner)])
        parts += [_replace_marks(message[end : quotation.span[0]]), f"<{name}>{inner}</{name}>"]
        end = quotation.span[1]
    return "".join([*parts, _replace_marks(message[end:])])


def count_verified_words(visible_text: str) -> int:
    """Return the number of words in the verified quotes of a message as others see it."""
    return sum(len(part.partition(f"</{VERIFIED}>")[0].split()) for part in visible_text.split(f"<{VERIFIED}>")[1:])


def locate_quote(quote: str, source: str) -> Span | None:
    """Return the first place of a quote, without marks, in a source; None if the source does not have it."""
    for needle in dict.fromkeys(map(_normalize, _quote_variants(quote))):
        for prepared in _prepare_source(source) if needle != _EMPTY else ():
            position = prepared.text.find(needle)
            if position >= 0:
                return prepared.original_span(position + 1, position + len(needle) - 1)
    return None


# Marks

_INVISIBLE = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0001-\U000e007f"
)
"""Control and format characters, for use in a character class of a regular expression."""


def _spell(word: str) -> str:
    """Return a regex for a word whose letters may have invisible characters or accents between them."""
    ignored = f"[{_INVISIBLE}\u0300-\u036f]*+"
    spelled = "".join(f"{letter}{ignored}" for letter in word)
    return spelled.replace(f"f{ignored}i", f"(?:f{ignored}i|ﬁ)")


_MARK = re.compile(
    rf"<[\s{_INVISIBLE}]*+(?P<close>/?)[\s{_INVISIBLE}]*+(?:(?:{_spell('un')})?{_spell('verified')}[\s_{_INVISIBLE}-]*+)?"
    rf"{_spell('quote')}(?:[\s/][^<>]*+)?>"
)
"""A mark of any kind. A speaker's `<verified_quote>` is a mark too, which nip-run checks as any other."""
_IMITATION = re.compile(
    rf"(?:[<\[{{‹〈⟨❬❮˂ᐸ≺]|&lt;|&\#0*60;|&\#x0*3c;)[\s{_INVISIBLE}]*+(?P<close>[/⁄∕]?)[\s{_INVISIBLE}]*+"
    rf"(?:{_spell('un')})?{_spell('verified')}[\s_{_INVISIBLE}-]*+{_spell('quote')}"
    r"(?:[^<>\[\]{}‹›&\n]{0,100}+(?:[>\]}›〉⟩❭❯˃ᐳ≻]|&gt;|&\#0*62;|&\#x0*3e;))?"
)
"""A text that looks like a mark of a checked quote, such as `[verified_quote]` or `&lt;verified_quote&gt;`."""
_LOOKALIKES = {
    other: letter
    for letter, others in {
        "d": "ԁժᴅ", "e": "еєᴇ", "f": "ғꜰ", "i": "іιıɩӏ", "n": "пոηɴ", "o": "оοօσᴏ", "q": "ԛգǫ", "r": "гʀᴦ",
        "t": "тτᴛ", "u": "υսᴜ", "v": "вѵνᴠ",
    }.items()
    for other in others
}  # fmt: skip
"""Characters of other scripts that look like a letter of the marks."""


@dataclass(frozen=True, slots=True)
class _Mark:
    span: Span
    is_closing: bool


def _fold(text: str) -> str:
    """Return the text in lower case, with plain letters for similar characters, without changing offsets."""
    if text.isascii():
        return text.lower()
    return "".join(c.lower() if c.isascii() else _fold_character(c) for c in text)


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    folded = unicodedata.normalize("NFKD", character).lower()
    if len(folded) > 1 and all(map(unicodedata.combining, folded[1:])):
        folded = folded[0]  # without its accents
    return _LOOKALIKES.get(folded, folded) if len(folded) == 1 else character


def _find_marks(message: str, pattern: re.Pattern[str] = _MARK) -> Iterator[_Mark]:
    if "quote" in (folded := _fold(message)) or not message.isascii():
        yield from (_Mark(match.span(), bool(match["close"])) for match in pattern.finditer(folded))


def _pair_marks(marks: Sequence[_Mark]) -> list[tuple[int, int | None]]:
    """Return the opening and closing mark of each outermost quote, as indices; None for a missing closing mark."""
    open_marks: list[int] = []
    closing: dict[int, int | None] = {}
    for index, mark in enumerate(marks):
        if not mark.is_closing:
            open_marks.append(index)
        elif open_marks:
            closing[open_marks.pop()] = index
    closing |= dict.fromkeys(open_marks)
    pairs: list[tuple[int, int | None]] = []
    last = -1
    for first, end in sorted(closing.items(), key=lambda pair: pair[0]):
        if first > last:
            pairs.append((first, end))
            last = first if end is None else end
    return pairs


def _quotation(message: str, source: str, marks: Sequence[_Mark], first: int, last: int | None) -> Quotation:
    start, inner_start = marks[first].span
    if last is None:
        end = marks[first + 1].span[0] if first + 1 < len(marks) else len(message)
        return Quotation((start, end), (inner_start, end), message[inner_start:end], False, None)
    inner_end, end = marks[last].span
    pieces, position = [], inner_start
    for mark in marks[first + 1 : last]:
        pieces.append(message[position : mark.span[0]])
        position = mark.span[1]
    text = "".join([*pieces, message[position:inner_end]])
    return Quotation((start, end), (inner_start, inner_end), text, True, locate_quote(text, source))


def _replace_marks(text: str) -> str:
    """Return a text with a quotation mark for each mark, and for each text that looks like a mark."""
    for pattern in (_MARK, _IMITATION):
        parts, end = [], 0
        for mark in _find_marks(text, pattern):
            parts += [text[end : mark.span[0]], _SHOWN_MARKS[mark.is_closing]]
            end = mark.span[1]
        text = "".join([*parts, text[end:]])
    return text


# Normalization

_EQUIVALENT = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′‵`´ʼʹ‹›＇", "'"),
        **dict.fromkeys("“”„‟″‶«»〝〞〟＂", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
    }
)

_BREAK = "\0"
"""Separates the words and other characters of a normalized text. A quote is a substring that starts and ends with it.

The text itself has no such character, because it is a control character.
"""

_EMPTY = _BREAK * 2

_IGNORED = re.compile(f"[{_INVISIBLE}]+")
_SPACE = re.compile(r"\s+")


@cache
def _token_pattern(*, is_ascii: bool) -> re.Pattern[str]:
    """Return a regex for the parts of a text that a quote must not divide: a word, a number, a character with accents.

    An apostrophe between letters and a point or comma between digits do not end a word.
    """
    if is_ascii:
        return re.compile(r"[A-Za-z0-9]++(?:(?:'|(?<=[0-9])[.,](?=[0-9]))[A-Za-z0-9]++)*+|.", re.DOTALL)
    # The negative lookahead is fast, while the large classes are slow.
    accent = rf"(?![\x00-\x7f])[{_accents()}]"
    letters = rf"(?:[A-Za-z0-9]++|(?![\x00-\x7f])[^\W_{UNSPACED}])++"
    word = f"{letters}(?:(?:{accent})++(?:{letters})?+)*+"
    return re.compile(rf"{word}(?:(?:'|(?<=\d)[.,](?=\d)){word})*+|.(?:{accent})*+", re.DOTALL)


@cache
def _accents() -> str:
    """Return all characters that change the character before them, such as accents and vowel signs."""
    return "".join(chr(code) for code in range(0x300, 0x1E950) if unicodedata.category(chr(code))[0] == "M")


def _flatten(text: str) -> str:
    """Return the normalized text without breaks. White space around the text becomes at most one space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_EQUIVALENT))
    return _SPACE.sub(" ", _IGNORED.sub("", text.translate(_EQUIVALENT)))


def _normalize(text: str) -> str:
    """Return the normalized text, with a break before and after each part that must not be divided."""
    flat = _flatten(text).strip(" ")
    return _BREAK + _BREAK.join(_token_pattern(is_ascii=flat.isascii()).findall(flat)) + _BREAK


@dataclass(frozen=True)
class _PreparedText:
    """A source. `original` has the same length as the source, but spaces instead of ignored line numbers."""

    original: str

    @cached_property
    def text(self) -> str:
        return _normalize(self.original)

    def original_span(self, start: int, end: int) -> Span:
        """Return the place in the source of a part of the normalized text that neither starts nor ends with a break."""
        first = start - self.text.count(_BREAK, 0, start)
        last = end - 1 - self.text.count(_BREAK, 0, end)
        return self._offsets[first], self._offsets[last] + 1

    @cached_property
    def _offsets(self) -> Sequence[int]:
        """The offset in the source of each character of the normalized text without breaks."""
        offsets, after_space = array("L"), True
        for offset, character in enumerate(self.original):
            flat = character if character.isascii() and character.isalnum() else _flatten_character(character)
            if flat == " ":
                if not after_space:
                    offsets.append(offset)
            elif flat:
                offsets.extend([offset] * len(flat))
            after_space = flat == " " or (after_space and not flat)
        return offsets


@lru_cache(maxsize=4096)
def _flatten_character(character: str) -> str:
    return _flatten(character)


# Code fences, line numbers and quotation marks around a quote

_FENCE = re.compile(r"^[ \t]*+(?:```|~~~)[^\n`]*+(?=\n|\Z)", re.MULTILINE)
_NUMBER_FORMS = (
    r"\[L?(\d{1,7})\](?!\S)",
    r"\(L?(\d{1,7})\)(?!\S)",
    r"L?(\d{1,7})(?:\||[:.)](?!\S))",
    r"L(\d{1,7})(?!\S)",
)
_LINE_NUMBER = re.compile(rf"[ \t]*+(?:[Ll]ine )?(?:{'|'.join(_NUMBER_FORMS)})[ \t|]*+")


def _quote_variants(quote: str) -> Iterator[str]:
    """Yield a quote as it is, then without code fences, line numbers and quotation marks around it."""
    plain = _FENCE.sub("", quote)
    for variant in dict.fromkeys((quote, plain, _blank_line_numbers(plain, is_part=True))):
        yield variant
        trimmed = variant.strip()
        marks = trimmed[:1].translate(_EQUIVALENT), trimmed[-1:].translate(_EQUIVALENT)
        if len(trimmed) > 1 and marks in (("'", "'"), ('"', '"')):
            yield trimmed[1:-1]


@lru_cache(maxsize=32)
def _prepare_source(source: str) -> tuple[_PreparedText, ...]:
    """Return the source as it is and, if its lines are numbered, without the numbers."""
    return tuple(map(_PreparedText, dict.fromkeys((source, _blank_line_numbers(source, is_part=False)))))


def _blank_line_numbers(text: str, *, is_part: bool) -> str:
    """Return a text with spaces instead of its line numbers, or unchanged if its lines are not numbered.

    Lines are numbered if each line except for empty ones has a number that is greater than the one before. With
    `is_part`, the text may begin in the middle of a line.
    """
    previous, result, lines = -1, list[str](), text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        match = _LINE_NUMBER.match(line)
        if match is None and line.strip() and (index or not is_part):
            return text
        if match is not None:
            number = int(next(group for group in match.groups() if group))
            if number <= previous:
                return text
            previous = number
        result.append(line if match is None else " " * match.end() + line[match.end() :])
    return "".join(result) if is_part or len(lines) > 1 else text
