"""Which variable goes where: shown before anything is sent, and asked about where a spec came from elsewhere.

A spec says which server it asks, and by which variable's value. One that came from elsewhere could so send any variable
to any server: each pair must be allowed by hand. `runner.spec.origin` says which specs came from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from runner.errors import UsageError
from runner.models.settings import ModelSettings

OPTION = "--allow-key"
ALL = "*"
"""The whole environment, as a program gets it."""
OPENAI = "api.openai.com"

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\*)=(\S+)")


@dataclass(frozen=True, order=True)
class KeyUse:
    """One variable, and the host or the program that gets its value."""

    variable: str
    host: str

    def __str__(self) -> str:
        return f"{self.variable} -> {self.host}"

    @property
    def option(self) -> str:
        return (
            f"{OPTION} '{self.variable}={self.host}'"
            if self.variable == ALL
            else f"{OPTION} {self.variable}={self.host}"
        )


def host_of(base_url: str | None) -> str:
    """The host of a server, with its port where that is not the usual one.

    `http://` stands before a host that is not this machine and gets keys in the clear: whoever allows it by `https` has
    not allowed that.
    """
    if base_url is None:
        return OPENAI
    parts = urlsplit(base_url)
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or base_url
    in_the_clear = parts.scheme == "http" and not _LOOPBACK.fullmatch(host)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{'http://' if in_the_clear else ''}{host}{port}"


def key_uses(models: Iterable[ModelSettings], commands: Iterable[Sequence[str]] = ()) -> tuple[KeyUse, ...]:
    """What these models send to their servers, and what trainers of one's own get."""
    found = {KeyUse(s.key_variable, host_of(s.base_url)) for s in models if s.key_variable is not None}
    found.update(KeyUse(ALL, f"command:{command[0]}") for command in commands)
    return tuple(sorted(found))


def parse_allowed(words: Sequence[str]) -> frozenset[KeyUse]:
    """The words `VAR=HOST` of `--allow-key` and `allow_keys` as pairs.

    Raises:
        UsageError: one is none.
    """
    allowed = set()
    for word in words:
        pair = _PAIR.fullmatch(word)
        if pair is None:
            raise UsageError(
                f"{OPTION} {word!r}: VAR=HOST belongs here, as in {OPTION} OPENAI_API_KEY={OPENAI} "
                f"(in Python: allow_keys=['OPENAI_API_KEY={OPENAI}'])"
            )
        allowed.add(KeyUse(pair[1], pair[2].lower() if pair[1] != ALL else pair[2]))
    return frozenset(allowed)


def check_allowed(uses: Collection[KeyUse], allowed: Collection[KeyUse], fetched_to: Path) -> None:
    """See that each use of a spec that was fetched into a folder is allowed.

    Raises:
        UsageError: some are not; which, and how they would be.
    """
    missing = sorted(set(uses) - set(allowed))
    if missing:
        pairs = "\n".join(f"  {use}" for use in missing)
        options = " ".join(use.option for use in missing)
        pairs_there = [f"{use.variable}={use.host}" for use in missing]
        raise UsageError(
            f"this spec came from elsewhere (it is in {fetched_to}) and would send:\n{pairs}\nNothing was sent. If "
            f"you trust whoever gets that, allow it: {options} (in Python: allow_keys={pairs_there})"
        )
