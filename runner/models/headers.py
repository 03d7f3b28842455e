"""The headers that a model group sends of its own: which names may stand in a spec, and values from the environment.

A value is a secret, as a key is: it goes to the group's servers and nowhere else, and is removed from whatever comes
back. A header that would change how a call is made or read is refused: it has a key of its own, or is the client's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from runner.base.errors import ProviderRefusal
from runner.base.redaction import remember
from runner.models.settings import ModelSettings

SESSION_ID = "X-Session-ID"
MOST = 32
"""Headers of one group; a server's own limit is some hundred lines."""
MAX_BYTES = 4096
"""The longest value; servers refuse heads of 8 KB and more."""

_NAME = re.compile(r"[A-Za-z0-9!#\$%&'*+.^_`|~-]{1,128}")

_OWN = {"authorization": "api_key_env", SESSION_ID.lower(): "session_id"}
"""Headers with a key of their own."""

_PROTOCOL = frozenset(
    (
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "date",
        "expect", "host", "idempotency-key", "if-match", "if-none-match", "keep-alive", "max-forwards", "origin",
        "proxy-authenticate", "proxy-authorization", "proxy-connection", "range", "te", "trailer", "transfer-encoding",
        "upgrade", "via",
    )
)  # fmt: skip
"""What says how a message is framed, packed or passed on: the client's to say."""


def header_problems(headers: Mapping[str, str], group: str) -> Iterator[tuple[str, str]]:
    """Each header that must not stand in a group's `headers`, and why."""
    seen: dict[str, str] = {}
    for number, name in enumerate(headers):
        folded = name.lower()
        if not _NAME.fullmatch(name):
            yield name, "no name of a header: letters, digits and - belong here, in ASCII, at most 128"
        elif folded in _OWN:
            yield name, f"this has a key of its own; set models.{group}.{_OWN[folded]}"
        elif folded in _PROTOCOL or folded.startswith(":"):
            yield name, "this says how a call is sent and read, which the client does itself; leave it out"
        elif folded in seen:
            yield name, f"this is {seen[folded]} again: names of headers are the same in capitals; leave one out"
        elif number >= MOST:
            yield name, f"a group sends at most {MOST} headers of its own; leave some out"
        seen.setdefault(folded, name)


def headers_of(settings: ModelSettings, group: str) -> dict[str, str]:
    """A group's own headers with their values, which are secrets from now on.

    Raises:
        ProviderRefusal: a variable holds none, or what no header can hold; all of them are told at once.
    """
    found, wrong = {}, []
    for name, variable in settings.header_variables.items():
        value = os.environ.get(variable, "").strip()
        remember(value)
        problem = _problem(value)
        if problem is None:
            found[name] = value
        else:
            wrong.append(f"models.{group}.headers.{name}: the environment variable {variable} {problem}; set it again")
    if wrong:
        raise ProviderRefusal("\n".join(wrong))
    return found


def key_of(settings: ModelSettings, group: str) -> str:
    """Return a group's key, which is a secret from now on; `none` if it sends no key.

    Raises:
        ProviderRefusal: the environment holds no key.
    """
    variable = settings.key_variable
    if variable is None:
        return "none"
    key = os.environ.get(variable, "").strip()
    remember(key)
    problem = "holds no key" if not key else _problem(key)
    if problem is not None:
        raise ProviderRefusal(
            f"models.{group}: the environment variable {variable} {problem}; set it again, or name another with "
            f"models.{group}.api_key_env"
        )
    return key


def _problem(value: str) -> str | None:
    if not value:
        return "holds nothing"
    if len(value) > MAX_BYTES:
        return f"holds more than {MAX_BYTES} characters"
    if not (value.isascii() and value.isprintable()):
        return "holds a character that cannot be sent: a line break, an invisible one, or one that is not ASCII"
    return None


def remember_secrets(settings: ModelSettings) -> None:
    """Keep what the environment holds for a group, its key and its headers, out of all that is written here."""
    for variable in (settings.key_variable, *settings.header_variables.values()):
        if variable is not None:
            remember(os.environ.get(variable, "").strip())
