"""Secrets in bytes that are about to leave: by the forms of keys that are known, and by the values this machine holds.

What is found is told by its kind and place, and never shown. What is not found: a secret of no known form that no
variable of this process holds, and anything inside a compressed file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.base.redaction import Redactor, current_redactor
from runner.registry.redaction.text_search import Cause


@dataclass(frozen=True)
class _Form:
    """A form of keys: `hints` are texts without one of which there is none, so that most bytes are not looked at."""

    what: str
    hints: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


_BEFORE = rb"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrtbf]))"
"""Where a word may begin; in JSON also behind an escape, which ends in a letter."""
_MIXED = rb"(?=[A-Za-z_-]{0,80}[0-9])"
"""With a digit somewhere near: words in a row have none."""

_VALUE = rb"(?:" + _MIXED + rb"[A-Za-z0-9+/=._~-]{8,}|[A-Za-z+/=]{20,})"


def _form(what: str, hints: tuple[str, ...], pattern: bytes, *, word: bool = True) -> _Form:
    return _Form(what, tuple(hint.encode() for hint in hints), re.compile((_BEFORE if word else b"") + pattern))


FORMS: tuple[_Form, ...] = (
    _form(
        "a key of OpenAI, or of who writes keys like it", ("sk-",),
        rb"sk-(?:(?:proj|svcacct|admin|ant|or)-[A-Za-z0-9_-]{0,8})?" + _MIXED + rb"[A-Za-z0-9_-]{0,24}[A-Za-z0-9]{20}",
    ),
    _form("a token of Hugging Face", ("hf_",), rb"hf_[A-Za-z0-9]{30,}"),
    _form("a token of GitHub", ("gh",), rb"gh[pousr]_[A-Za-z0-9]{30,}"),
    _form("a token of GitHub", ("github_pat_",), rb"github_pat_[A-Za-z0-9_]{40,}"),
    _form("a token of GitLab", ("glpat-",), rb"glpat-[A-Za-z0-9_-]{20,}"),
    _form("a key of AWS", ("AKIA", "ASIA"), rb"A[KS]IA(?!IOSFODNN7EXAMPLE)[A-Z0-9]{16}(?![A-Z0-9])"),
    _form("a key of Google", ("AIza",), rb"AIza[A-Za-z0-9_-]{35}"),
    _form("a token of Slack", ("xox", "xapp-"), rb"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}[A-Za-z0-9]"),
    _form("a key of Groq", ("gsk_",), rb"gsk_[A-Za-z0-9]{40,}"),
    _form("a key of Replicate", ("r8_",), rb"r8_[A-Za-z0-9]{30,}"),
    _form("a key of NVIDIA", ("nvapi-",), rb"nvapi-[A-Za-z0-9_-]{40,}"),
    _form("a token of PyPI", ("pypi-AgE",), rb"pypi-AgE[A-Za-z0-9_-]{40,}"),
    _form("a token of npm", ("npm_",), rb"npm_[A-Za-z0-9]{36}"),
    _form("a key of Stripe", ("k_live_",), rb"[rs]k_live_[A-Za-z0-9]{20,}"),
    _form("a private key", ("PRIVATE KEY",), rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----", word=False),
    _form("a JSON web token", ("eyJ",), rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    _form(
        "the value of an Authorization header", ("uthorization", "UTHORIZATION"),
        rb"(?i:authorization)[\"'\\]{0,4}\s{0,4}[:=]\s{0,4}[\"'\\]{0,4}"
        rb"(?!\[secret removed\])(?i:basic|bearer|token|digest|apikey)\s+(?!\[secret removed\])"
        + _VALUE,
    ),
    _form(
        "a bearer token", ("earer", "EARER"),
        rb"(?i:bearer)\s{1,4}(?!\[secret removed\])(?=[^\s]{16})" + _VALUE,
    ),
    _form("a password in an address", ("://",), rb"[a-z][a-z0-9+.-]{1,20}://[^\s/@:\"'<>]{1,80}:[^\s/@\"'<>]{3,80}@[\w.-]",
          word=False),
)  # fmt: skip


def known_forms(data: bytes) -> Iterator[tuple[int, Cause]]:
    """Find keys by the forms that are known."""
    for form in FORMS:
        if any(hint in data for hint in form.hints):
            for found in form.pattern.finditer(data):
                yield found.start(), Cause(form.what)


class HeldSecrets:
    """Finds the values that this process holds as secrets: of variables by whose names they are, and of used keys."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or current_redactor()

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        at = self._redactor.first(data)
        if at is not None:
            yield at, Cause("the value of a key or a token that this process has in its environment")
