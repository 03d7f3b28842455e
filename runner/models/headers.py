"""The API keys and headers that a model group sends: checks their names in a spec, and reads their values.

The values come from environment variables. A header's value is a secret, like an API key: it is sent only to the
group's servers, and is redacted in everything that servers send back. A spec must not set headers that have their own
key in a model group, or that the client sets itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from runner.base.errors import ProviderRefusal
from runner.base.redaction import remember_secret
from runner.models.settings import ModelSettings

SESSION_ID = "X-Session-ID"
MAX_HEADERS = 32
"""Maximum number of headers of one group. (Servers accept about a hundred header lines.)"""
MAX_BYTES = 4096
"""Maximum length of a value. (Servers refuse requests with 8 KB or more of headers.)"""

_NAME = re.compile(r"[A-Za-z0-9!#\$%&'*+.^_`|~-]{1,128}")

_SPEC_KEYS = {"authorization": "api_key_env", SESSION_ID.lower(): "session_id"}
"""Headers that have their own key in a model group."""

_CLIENT_HEADERS = frozenset(
    (
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "date",
        "expect", "host", "idempotency-key", "if-match", "if-none-match", "keep-alive", "max-forwards", "origin",
        "proxy-authenticate", "proxy-authorization", "proxy-connection", "range", "te", "trailer", "transfer-encoding",
        "upgrade", "via",
    )
)  # fmt: skip
"""Headers that the client sets, because they control the framing, encoding or routing of a message."""


def header_problems(headers: Mapping[str, str], group: str) -> Iterator[tuple[str, str]]:
    """Yield each header that a group's `headers` must not contain, with the reason."""
    first_names: dict[str, str] = {}
    for number, name in enumerate(headers):
        folded = name.lower()
        if not _NAME.fullmatch(name):
            yield name, "not a valid header name: use at most 128 ASCII letters, digits and -"
        elif folded in _SPEC_KEYS:
            yield name, f"this header has its own key; set models.{group}.{_SPEC_KEYS[folded]}"
        elif folded in _CLIENT_HEADERS or folded.startswith(":"):
            yield name, "the client sets this header itself; leave it out"
        elif folded in first_names:
            yield (
                name,
                f"the same header as {first_names[folded]}, as names are case-insensitive; remove one of the two",
            )
        elif number >= MAX_HEADERS:
            yield name, f"a group can send at most {MAX_HEADERS} headers; remove some"
        first_names.setdefault(folded, name)


def headers_of(settings: ModelSettings, group: str) -> dict[str, str]:
    """Return a group's headers with their values, and redact these values in all texts from now on.

    Raises:
        ProviderRefusal: some variables are empty or have an invalid value; the message lists all of them.
    """
    headers, errors = {}, []
    for name, variable in settings.header_variables.items():
        value = os.environ.get(variable, "").strip()
        remember_secret(value)
        problem = _value_problem(value)
        if problem is None:
            headers[name] = value
        else:
            errors.append(
                f"models.{group}.headers.{name}: the environment variable {variable} {problem}; set {variable} to the "
                "header's value"
            )
    if errors:
        raise ProviderRefusal("\n".join(errors))
    return headers


def key_of(settings: ModelSettings, group: str) -> str:
    """Return a group's API key, or `none` if the group sends no key, and redact the key in all texts from now on.

    Raises:
        ProviderRefusal: the environment variable is empty or has an invalid value.
    """
    variable = settings.key_variable
    if variable is None:
        return "none"
    key = os.environ.get(variable, "").strip()
    remember_secret(key)
    problem = "is empty or not set" if not key else _value_problem(key)
    if problem is not None:
        raise ProviderRefusal(
            f"models.{group}: the environment variable {variable} {problem}; set {variable} to the API key, or name "
            f"another variable in models.{group}.api_key_env"
        )
    return key


def _value_problem(value: str) -> str | None:
    """Return why a value cannot be sent in a header; None if it can. The text continues the name of the variable."""
    if not value:
        return "is empty or not set"
    if len(value) > MAX_BYTES:
        return f"has more than {MAX_BYTES} characters"
    if not (value.isascii() and value.isprintable()):
        return "has a character that headers cannot contain: a line break, an invisible one, or one outside ASCII"
    return None


def remember_secrets(settings: ModelSettings) -> None:
    """Redact the values of a group's API key and headers in the environment from now on."""
    for variable in (settings.key_variable, *settings.header_variables.values()):
        if variable is not None:
            remember_secret(os.environ.get(variable, "").strip())
