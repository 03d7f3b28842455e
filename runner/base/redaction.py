r"""Secrets taken out of whatever comes in from a server or goes out to a file or a terminal.

A secret is the value of a key that a spec uses, or of an environment variable whose name says that it holds one; in
headers and in texts of errors also whatever follows `Bearer`. Values of fewer than 12 characters are no secrets here:
they would be found in honest text.

What is found: a value as it is, escaped in JSON, percent-encoded, in hexadecimal, and in Base64 at any place of what
was encoded (`Bearer VALUE`, `user:VALUE`, a whole dump of headers). In texts of errors also with any of its characters
as `\u0041`, `%41` or `&#65;`, and in any of the other forms with white space anywhere in it: Base64 in lines of 76, a
header that was folded, hexadecimal in pairs (the stretch is removed, white space and all). What is not found: a value
in pieces with something else between, in other letters, compressed, encoded twice.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import quote

REMOVED = "[secret removed]"
MIN_LENGTH = 12
WIDEST = 16
"""Bytes of a text that one character of a value may take: `&#x0000073;`, and white space around it."""

_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
_HEADERS = re.compile(r"HEADERS", re.IGNORECASE)
_BEARER = re.compile(r"(bearer)(?>(?:[\s:=+]|%20|\\u0020)+)(?!\[secret removed\])[^\s\"'<>,;]+", re.IGNORECASE)
_GAP = r"(?:\s|\\[nrt])*"
_ASCII = re.compile(rb"\\u00([2-7][0-9a-fA-F])")
_HEX = rb"[0-9a-fA-F]"
_WIDE = re.compile(rb"\\u(?:[dD][89abAB]HH\\u[dD][c-fC-F]HH|[0-9a-cA-CefEF]HHH|[dD][0-7]HH)".replace(b"H", _HEX))
"""The escape of a character: of any but the halves of pairs that are alone."""
_ESCAPES = (b"\\u00", b"\\/")
"""How JSON may spell a character of ASCII that it need not escape."""

_used: set[str] = set()


def remember(value: str) -> None:
    """Take a value for a secret from now on, whatever the variable is called that holds it."""
    _used.add(value)


def remembered() -> int:
    """How many values that is."""
    return len(_used)


def secrets_in(environ: Mapping[str, str]) -> Iterator[str]:
    """The values of variables whose names say that they hold a secret; a path to where one lies is none."""
    for name, value in environ.items():
        found = [value] if _NAMES.search(name) else []
        if _HEADERS.search(name):  # as OPENAI_CUSTOM_HEADERS: a header a line
            found += [line.partition(":")[2] for line in value.splitlines()]
        for text in map(str.strip, found):
            if len(text) >= MIN_LENGTH and not (text.startswith(("/", "~", ".")) and os.path.exists(text)):  # noqa: PTH110 - of strings
                yield text


def current_redactor() -> Redactor:
    """That of every secret that this process knows now."""
    return redactor_of(frozenset((*_used, *secrets_in(os.environ))))


@lru_cache(maxsize=8)
def redactor_of(values: frozenset[str]) -> Redactor:
    """The redactor of these values."""
    return Redactor(values)


class Redactor:
    """Removes some values."""

    def __init__(self, values: Iterable[str]) -> None:
        # The longest first: one may be a part of another.
        known = sorted({value for value in values if len(value) >= MIN_LENGTH}, key=lambda v: (-len(v), v))
        self._forms = tuple(dict.fromkeys(form for value in known for form in _forms(value)))
        joined = (b"".join(form.split()) for form in self._forms)
        self._bare = tuple(dict.fromkeys(form for form in joined if len(form) >= MIN_LENGTH))
        self.reach = WIDEST * max(map(len, known), default=0)
        """The most that a value takes of a text, however it is spelled."""
        self._has_wide = not all(map(str.isascii, known))
        self._spelled = tuple(re.compile("".join(_spelled(c) for c in value)) for value in known)

    def finds(self, data: bytes) -> bool:
        """Whether one of the values stands in these bytes, in a form that needs no unescaping."""
        for form in self._forms:  # noqa: SIM110 - at each answer: half the time of any()
            if form in data:
                return True
        return False

    def first(self, data: bytes) -> int | None:
        """Where the first of the values stands in these bytes; of one that is spelled in escapes, where its line does.

        Looked for in all forms but those with white space in them.
        """
        found = [at for form in self._forms if (at := data.find(form)) >= 0]
        if found:
            return min(found)
        if self.may_be_escaped(data) and self.redact_escaped(data) is not data:
            return self._line(data, lambda line: self.redact_escaped(line) is not line)
        if b"%" in data or b"&#" in data or b"\\" in data:
            return self._line(data, lambda line: any(map(self._spelled_in(line), self._spelled)))
        return None

    @staticmethod
    def _spelled_in(line: bytes) -> Callable[[re.Pattern[str]], bool]:
        text = line.decode("utf-8", "replace")
        return lambda pattern: pattern.search(text) is not None

    @staticmethod
    def _line(data: bytes, holds: Callable[[bytes], bool]) -> int | None:
        """Where the first line begins that holds something."""
        at = 0
        for line in data.splitlines(keepends=True):
            if holds(line):
                return at
            at += len(line)
        return None

    def may_be_escaped(self, data: bytes) -> bool:
        """Whether JSON could hold a value with escapes, so that it must be looked at after they are undone."""
        return bool(self._forms) and has_escapes(data)

    def redact_escaped(self, data: bytes) -> bytes:
        """What is JSON, or was to be, without values that are spelled in escapes: the very same where it had none."""
        if not self._forms:
            return data
        plain = _without_escapes(data)
        if self._has_wide:
            plain = _WIDE.sub(_wide, plain)
        return self.redact(plain) if self.finds(plain) else data

    def redact(self, data: bytes) -> bytes:
        """The bytes without the values."""
        for form in self._forms:
            if form in data:
                data = data.replace(form, REMOVED.encode())
        return data

    def text(self, text: str) -> str:
        """A text of an error, or a line for a person, without the values and what follows `Bearer`."""
        data = text.encode("utf-8", "surrogatepass")
        if self.finds(data):
            text = self.redact(data).decode("utf-8", "surrogatepass")
        if "\\" in text or "%" in text or "&#" in text:
            for pattern in self._spelled:
                text = pattern.sub(REMOVED, text)
        text = self._joined(text)
        return _BEARER.sub(rf"\1 {REMOVED}", text) if "earer" in text.lower() else text

    def _joined(self, text: str) -> str:
        """A text without the values that have white space in them, be it spelled as JSON does."""
        words = text.replace("\\n", " ").replace("\\r", " ").replace("\\t", " ") if "\\" in text else text
        data = "".join(words.split()).encode("utf-8", "surrogatepass")
        if len(data) < MIN_LENGTH or not any(form in data for form in self._bare):
            return text
        for form in self._bare:
            if form in data:
                gaps = _GAP.join(map(re.escape, form.decode("utf-8", "surrogateescape")))
                text = re.sub(gaps, REMOVED, text)
        return text

    def start(self, data: bytes, length: int) -> str:
        """The first characters of a text without the values, however long it is: searched first, and cut then.

        Of a value that begins in what is searched and ends beyond, nothing is left.
        """
        searched = data[: length + self.reach]
        text = self.text(searched.decode("utf-8", "replace"))
        if len(searched) == length + self.reach:
            text = text[: max(len(text) - self.reach, 0)]
        return text[:length]

    def end(self, data: bytes, length: int) -> str:
        """The last characters of a text, as `start` gives the first."""
        searched = data[-(length + self.reach) :]
        text = self.text(searched.decode("utf-8", "replace"))
        return (text[self.reach :] if len(searched) == length + self.reach else text)[-length:]


def has_escapes(data: bytes) -> bool:
    """Whether JSON has an escape in which a character of a value may be spelled."""
    return _ESCAPES[0] in data or _ESCAPES[1] in data


def redacted(text: str) -> str:
    """A text without any secret that this process knows."""
    return current_redactor().text(text)


def _forms(value: str) -> Iterator[bytes]:
    """A value as it may stand in bytes."""
    raw = value.encode("utf-8", "surrogateescape")
    yield raw
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    for other in (escaped, escaped.replace("/", "\\/"), quote(value, safe=""), quote(value)):
        yield other.encode("utf-8", "surrogateescape")
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for offset in range(3):
        yield from _base64(raw, offset)


def _without_escapes(data: bytes) -> bytes:
    """JSON with each character of ASCII as itself. It may be of any depth, and damaged: no parser is asked."""
    # Backslashes in pairs are set aside, under an escape that there is not; each that is left then begins an escape.
    data = data.replace(b"\\\\", b"\\\0").replace(b"\\/", b"/")
    return _ASCII.sub(lambda found: _character(int(found[1], 16)), data).replace(b"\\\0", b"\\\\")


def _character(code: int) -> bytes:
    """A character as it stands in a text of JSON."""
    return b"\\%c" % code if code in b'"\\' else b"%c" % code


def _wide(found: re.Match[bytes]) -> bytes:
    """A character that is no ASCII as itself; those of control stay escaped."""
    character: str = json.loads(b'"%b"' % found[0])
    return found[0] if character.isascii() else character.encode()


def _base64(raw: bytes, offset: int) -> Iterator[bytes]:
    """What Base64 makes of a value that begins `offset` bytes into a group of three, without its torn ends."""
    start = -offset % 3
    inner = raw[start : start + (len(raw) - start) // 3 * 3]
    yield base64.b64encode(inner)
    yield base64.urlsafe_b64encode(inner)


def _spelled(character: str) -> str:
    """A pattern of a character as it is, and of its escapes in JSON, addresses and HTML."""
    code = ord(character)
    percent = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    html = rf"&#0{{0,4}}{code};|&#x0{{0,4}}{code:x};"
    # Bounded repeats: a text of backslashes alone must not cost the square of its length.
    return rf"(?:\\{{0,3}}{re.escape(character)}|(?i:\\{{1,4}}u{code:04x}|\\{{1,4}}x{code:02x}|{percent}|{html}))"
