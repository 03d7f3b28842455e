r"""Removal of secrets from text that comes from a server, or goes to a file or a terminal.

A secret is the value of a key that a spec uses, or of an environment variable whose name suggests a secret. In headers
and error texts, the word after `Bearer` is a secret too. Values of fewer than 12 characters are not treated as secrets,
because they would match innocent text.

In any text, a value is recognized verbatim, escaped in JSON, percent-encoded, in hexadecimal digits, and in Base64 at
any offset of the encoded text (`Bearer VALUE`, `user:VALUE`, a dump of all headers). In error texts, a value is also
recognized if characters are spelled as `\u0041`, `%41` or `&#65;`, or if white space interrupts it, as in Base64 with
lines of 76 characters; the white space is removed with the value. A value is not recognized if it is split by other
text, if its letters change, if it is compressed, or if it is encoded twice.
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
"""Maximum number of bytes that spell one character of a value: `&#x0000073;` with white space around it."""

_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
_HEADER_NAMES = re.compile(r"HEADERS", re.IGNORECASE)
_BEARER = re.compile(r"(bearer)(?>(?:[\s:=+]|%20|\\u0020)+)(?!\[secret removed\])[^\s\"'<>,;]+", re.IGNORECASE)
_GAP = r"(?:\s|\\[nrt])*"
_ASCII_ESCAPE = re.compile(rb"\\u00([2-7][0-9a-fA-F])")
_HEX = rb"[0-9a-fA-F]"
_WIDE_ESCAPE = re.compile(rb"\\u(?:[dD][89abAB]HH\\u[dD][c-fC-F]HH|[0-9a-cA-CefEF]HHH|[dD][0-7]HH)".replace(b"H", _HEX))
"""A JSON escape of any character, but not of an unpaired surrogate."""
_ESCAPES = (b"\\u00", b"\\/")
"""Beginnings of the escapes with which JSON can spell an ASCII character that needs no escape."""

_remembered: set[str] = set()


def remember_secret(value: str) -> None:
    """Treat a value as a secret from now on, regardless of the name of its variable."""
    _remembered.add(value)


def count_remembered() -> int:
    """Return the number of values passed to `remember_secret`."""
    return len(_remembered)


def secrets_in(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables whose names suggest a secret, except paths of existing files."""
    for name, value in environ.items():
        candidates = [value] if _SECRET_NAMES.search(name) else []
        if _HEADER_NAMES.search(name):  # such as OPENAI_CUSTOM_HEADERS: one header per line
            candidates += [line.partition(":")[2] for line in value.splitlines()]
        for text in map(str.strip, candidates):
            if len(text) >= MIN_LENGTH and not (text.startswith(("/", "~", ".")) and os.path.exists(text)):  # noqa: PTH110 - of strings
                yield text


def current_redactor() -> Redactor:
    """Return the redactor of all secrets that this process knows now."""
    return redactor_of(frozenset((*_remembered, *secrets_in(os.environ))))


@lru_cache(maxsize=8)
def redactor_of(values: frozenset[str]) -> Redactor:
    """Return the cached redactor of these values."""
    return Redactor(values)


class Redactor:
    """Replaces secret values with `REMOVED`. Values shorter than `MIN_LENGTH` are ignored."""

    def __init__(self, values: Iterable[str]) -> None:
        # Longest first, because one value may be a part of another.
        secrets = sorted({value for value in values if len(value) >= MIN_LENGTH}, key=lambda v: (-len(v), v))
        self._encoded_forms = tuple(dict.fromkeys(form for value in secrets for form in _encoded_forms(value)))
        without_space = (b"".join(form.split()) for form in self._encoded_forms)
        self._compact_forms = tuple(dict.fromkeys(form for form in without_space if len(form) >= MIN_LENGTH))
        self.reach = WIDEST * max(map(len, secrets), default=0)
        """Maximum number of bytes that a value takes, in any spelling."""
        self._has_non_ascii = not all(map(str.isascii, secrets))
        self._spelling_patterns = tuple(re.compile("".join(_spelling_pattern(c) for c in value)) for value in secrets)

    def contains(self, data: bytes) -> bool:
        """Return whether `data` contains a value in a form that needs no unescaping."""
        for form in self._encoded_forms:  # noqa: SIM110 - runs for every answer, and takes half the time of any()
            if form in data:
                return True
        return False

    def find_first(self, data: bytes) -> int | None:
        """Return the offset of the first value in `data`, or None. If the value has escapes, return its line's offset.

        Values that white space interrupts are not found.
        """
        offsets = [offset for form in self._encoded_forms if (offset := data.find(form)) >= 0]
        if offsets:
            return min(offsets)
        if self.may_be_escaped(data) and self.redact_escaped(data) is not data:
            return self._line_offset(data, lambda line: self.redact_escaped(line) is not line)
        if b"%" in data or b"&#" in data or b"\\" in data:
            return self._line_offset(data, lambda line: any(map(self._searcher(line), self._spelling_patterns)))
        return None

    @staticmethod
    def _searcher(line: bytes) -> Callable[[re.Pattern[str]], bool]:
        text = line.decode("utf-8", "replace")
        return lambda pattern: pattern.search(text) is not None

    @staticmethod
    def _line_offset(data: bytes, is_match: Callable[[bytes], bool]) -> int | None:
        """Return the offset of the first line that satisfies `is_match`, or None."""
        offset = 0
        for line in data.splitlines(keepends=True):
            if is_match(line):
                return offset
            offset += len(line)
        return None

    def may_be_escaped(self, data: bytes) -> bool:
        """Return whether JSON may contain a value with escapes, so that it must be searched after unescaping."""
        return bool(self._encoded_forms) and has_escapes(data)

    def redact_escaped(self, data: bytes) -> bytes:
        """Remove values spelled in escapes from JSON, even malformed JSON. Return `data` itself if there are none."""
        if not self._encoded_forms:
            return data
        plain = _unescape_ascii(data)
        if self._has_non_ascii:
            plain = _WIDE_ESCAPE.sub(_unescape_wide, plain)
        return self.redact(plain) if self.contains(plain) else data

    def redact(self, data: bytes) -> bytes:
        """Replace the values in `data`, in the forms that need no unescaping."""
        for form in self._encoded_forms:
            if form in data:
                data = data.replace(form, REMOVED.encode())
        return data

    def redact_text(self, text: str) -> str:
        """Replace the values, and the word after `Bearer`, in an error text or in a line for the user."""
        data = text.encode("utf-8", "surrogatepass")
        if self.contains(data):
            text = self.redact(data).decode("utf-8", "surrogatepass")
        if "\\" in text or "%" in text or "&#" in text:
            for pattern in self._spelling_patterns:
                text = pattern.sub(REMOVED, text)
        text = self._redact_spaced(text)
        return _BEARER.sub(rf"\1 {REMOVED}", text) if "earer" in text.lower() else text

    def _redact_spaced(self, text: str) -> str:
        """Replace values that are interrupted by white space, raw or escaped as in JSON."""
        unescaped = text.replace("\\n", " ").replace("\\r", " ").replace("\\t", " ") if "\\" in text else text
        data = "".join(unescaped.split()).encode("utf-8", "surrogatepass")
        if len(data) < MIN_LENGTH or not any(form in data for form in self._compact_forms):
            return text
        for form in self._compact_forms:
            if form in data:
                gaps = _GAP.join(map(re.escape, form.decode("utf-8", "surrogateescape")))
                text = re.sub(gaps, REMOVED, text)
        return text

    def redact_start(self, data: bytes, length: int) -> str:
        """Return up to `length` redacted characters from the start of a text of any length.

        The text is redacted before it is truncated, so the result never ends with a part of a value.
        """
        searched = data[: length + self.reach]
        text = self.redact_text(searched.decode("utf-8", "replace"))
        if len(searched) == length + self.reach:
            text = text[: max(len(text) - self.reach, 0)]
        return text[:length]

    def redact_end(self, data: bytes, length: int) -> str:
        """Return up to `length` redacted characters from the end of a text, as `redact_start` does."""
        searched = data[-(length + self.reach) :]
        text = self.redact_text(searched.decode("utf-8", "replace"))
        return (text[self.reach :] if len(searched) == length + self.reach else text)[-length:]


def has_escapes(data: bytes) -> bool:
    """Return whether JSON contains an escape that may spell a character of a value."""
    return _ESCAPES[0] in data or _ESCAPES[1] in data


def redacted(text: str) -> str:
    """Remove every secret that this process knows from a text."""
    return current_redactor().redact_text(text)


def _encoded_forms(value: str) -> Iterator[bytes]:
    """Yield the forms that a value can take in bytes."""
    raw = value.encode("utf-8", "surrogateescape")
    yield raw
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    for form in (escaped, escaped.replace("/", "\\/"), quote(value, safe=""), quote(value)):
        yield form.encode("utf-8", "surrogateescape")
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for offset in range(3):
        yield from _base64(raw, offset)


def _unescape_ascii(data: bytes) -> bytes:
    """Unescape the ASCII characters of JSON without parsing, which fails on malformed or deeply nested JSON."""
    # First replace pairs of backslashes by an escape that JSON lacks. Then every other backslash begins an escape.
    data = data.replace(b"\\\\", b"\\\0").replace(b"\\/", b"/")
    return _ASCII_ESCAPE.sub(lambda escape: _json_character(int(escape[1], 16)), data).replace(b"\\\0", b"\\\\")


def _json_character(code: int) -> bytes:
    """Return an ASCII character as it appears unescaped in a JSON string."""
    return b"\\%c" % code if code in b'"\\' else b"%c" % code


def _unescape_wide(escape: re.Match[bytes]) -> bytes:
    """Unescape a character outside ASCII; keep the escapes of control characters."""
    character: str = json.loads(b'"%b"' % escape[0])
    return escape[0] if character.isascii() else character.encode()


def _base64(raw: bytes, offset: int) -> Iterator[bytes]:
    """Yield the part of a value's Base64 that does not depend on neighbors, if `offset` bytes precede the value."""
    start = -offset % 3
    inner = raw[start : start + (len(raw) - start) // 3 * 3]
    yield base64.b64encode(inner)
    yield base64.urlsafe_b64encode(inner)


def _spelling_pattern(character: str) -> str:
    """Return a pattern of a character and of its escapes in JSON, URLs and HTML."""
    code = ord(character)
    percent = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    html = rf"&#0{{0,4}}{code};|&#x0{{0,4}}{code:x};"
    # Bounded repeats, because a text of backslashes must not take quadratic time.
    return rf"(?:\\{{0,3}}{re.escape(character)}|(?i:\\{{1,4}}u{code:04x}|\\{{1,4}}x{code:02x}|{percent}|{html}))"
