"""Bytes as text that may stand in a script element of HTML: 5 characters for 4 bytes, where base64 takes 5 1/3."""

from __future__ import annotations

import numpy as np

ALPHABET = "".join(chr(code) for code in range(33, 127) if chr(code) not in "\"&'<>\\`$-")
"""85 characters that HTML, JavaScript and attributes take as they are. The page's script has it, too."""

_POWERS = np.array([85**4, 85**3, 85**2, 85, 1], dtype=np.uint64)
_CHARACTERS = np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)


def encoded(data: bytes) -> str:
    """Bytes as text; the last group is as much shorter as bytes are missing."""
    missing = -len(data) % 4
    words = np.frombuffer(data + bytes(missing), dtype=">u4").astype(np.uint32)
    digits = np.empty((len(words), 5), dtype=np.uint8)
    for place in range(4, -1, -1):
        rest = words // np.uint32(85)
        digits[:, place] = words - rest * np.uint32(85)
        words = rest
    text = _CHARACTERS.take(digits).tobytes().decode("ascii")
    return text[: len(text) - missing]


def decoded(text: str) -> bytes:
    """`encoded` backwards, as the page's script does it.

    Raises:
        ValueError: it is not such a text.
    """
    missing = -len(text) % 5
    values = np.full(128, 255, dtype=np.uint8)
    values[_CHARACTERS] = np.arange(85, dtype=np.uint8)
    try:
        codes = np.frombuffer((text + ALPHABET[84] * missing).encode("ascii"), dtype=np.uint8)
    except UnicodeEncodeError as error:
        raise ValueError("not base 85: a character is not ASCII") from error
    digits = values[codes]
    if (digits == 255).any():
        raise ValueError("not base 85: a character is not of its alphabet")
    words = digits.reshape(-1, 5).astype(np.uint64) @ _POWERS
    if (words > 0xFFFFFFFF).any():
        raise ValueError("not base 85: a group is more than four bytes")
    data = words.astype(">u4").tobytes()
    return data[: len(data) - missing]
