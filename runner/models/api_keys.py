"""Which variable goes where: shown before anything is sent, and asked about where a spec came from elsewhere.

A spec says which server it asks, and by which variable's value. One that came from elsewhere could so send any variable
to any server, ask any server of the user's own network, and run any program: each pair, each server and each program
must be allowed by hand. `runner.spec.origin` says which
specs came from elsewhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from runner.base.errors import UsageError
from runner.base.text import in_one_line
from runner.models.provider_traits import PROVIDERS
from runner.models.settings import ModelSettings

OPTION = "--allow-key"
COMMAND_OPTION = "--allow-command"
HOST_OPTION = "--allow-host"
ALL = "*"
"""The whole environment, as a program gets it."""
NO_KEY = ""
"""A server that is asked without a key: it gets the prompts."""
OPENAI = "api.openai.com"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_COMMAND = "command:"
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")
_HOST = re.compile(r"(http://)?[^\s/]+")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\*)=(\S+)")


@dataclass(frozen=True, order=True)
class KeyUse:
    """One variable, and the host or the program that gets its value."""

    variable: str
    host: str
    command: str | None = field(default=None, compare=False)
    """Of a program: how it is called."""
    files: tuple[str, ...] | None = field(default=None, compare=False)
    """Of a program: lines that show the files that it runs."""

    def __str__(self) -> str:
        return f"{self.variable or 'prompts, without a key,'} -> {self.host}"

    @property
    def program(self) -> str | None:
        """What is run, which gets the whole environment; None: it is a server."""
        return self.host.removeprefix(_COMMAND) if self.variable == ALL else None

    @property
    def told(self) -> str:
        """What is sent where, with how a program is called: a stranger's words, in one line."""
        return in_one_line(str(self) if self.command is None else f"{self}   (it runs: {self.command})")


def host_of(base_url: str) -> str:
    """The host of a server, with its port where that is not the usual one.

    `http://` stands before a host that is not this machine and gets keys in the clear: whoever allows it by `https` has
    not allowed that.
    """
    parts = urlsplit(base_url)
    usual = _DEFAULT_PORTS.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or base_url
    in_the_clear = parts.scheme == "http" and not _LOOPBACK.fullmatch(host)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{'http://' if in_the_clear else ''}{host}{port}"


@lru_cache(maxsize=1024)
def same_server(url: str) -> str:
    """Return the normal form of an address, by which a server is recognized; calls use the address as written.

    Scheme and host are in lower case; there is no default port, no dot after the host and no repeated or final slash.
    """
    parts = urlsplit(url)
    scheme, host = parts.scheme.lower(), (parts.hostname or "").removesuffix(".")
    named = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(scheme)) else f":{parts.port}"
    return f"{scheme}://{named}{port}{re.sub('/+', '/', parts.path).rstrip('/')}"


def key_uses(
    models: Iterable[ModelSettings], commands: Iterable[tuple[Sequence[str], Sequence[str]]] = ()
) -> tuple[KeyUse, ...]:
    """Return what these models send to their servers, and what trainers of one's own get: their commands, each with
    lines that show its files.
    """
    found = {KeyUse(variable, host_of(url)) for s in models for variable in s.variables for url in s.server_urls}
    programs: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for command, files in commands:
        programs.setdefault(_COMMAND + command[0], []).append((shlex.join(command), files))
    for program, calls in programs.items():  # two groups may have one command, and different files
        lines = tuple(line for _, files in calls for line in files)
        found.add(KeyUse(ALL, program, "; ".join(dict.fromkeys(command for command, _ in calls)), lines or None))
    return tuple(sorted(found))


def host_uses(models: Iterable[ModelSettings]) -> tuple[KeyUse, ...]:
    """The servers that these models ask without a key."""
    asked = (settings for settings in models if settings.traits.remote and not settings.variables)
    return tuple(sorted({KeyUse(NO_KEY, host_of(url)) for settings in asked for url in settings.server_urls}))


def forms_of(uses: Iterable[KeyUse]) -> list[str]:
    """Return the options that allow uses, without values from the spec: users type those themselves.

    Only a provider's own key for its own server is written out.
    """
    forms = {ALL: f"{COMMAND_OPTION} PROGRAM", NO_KEY: f"{HOST_OPTION} HOST"}
    own = {
        KeyUse(traits.key_variable, host_of(traits.base_url)) for traits in PROVIDERS.values() if traits.key_variable
    }
    return list(
        dict.fromkeys(
            f"{OPTION} {use.variable}={use.host}" if use in own else forms.get(use.variable, f"{OPTION} VAR=HOST")
            for use in uses
        )
    )


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


def allowed_commands(programs: Sequence[str]) -> frozenset[KeyUse]:
    """The programs of `--allow-command` and `allow_commands`, each as a spec names it.

    Raises:
        UsageError: a name is empty.
    """
    if not all(programs):
        raise UsageError(f"{COMMAND_OPTION} '': the name of a program belongs here, as the spec has it")
    return frozenset(KeyUse(ALL, _COMMAND + program) for program in programs)


def allowed_hosts(hosts: Sequence[str]) -> frozenset[KeyUse]:
    """The servers of `--allow-host` and `allow_hosts`, each as `host_of` has it.

    Raises:
        UsageError: one is no host.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UsageError(
                f"{HOST_OPTION} {host!r}: HOST or HOST:PORT belongs here, with http:// before it where it is in the "
                f"clear, as in {HOST_OPTION} 127.0.0.1:8000"
            )
    return frozenset(KeyUse(NO_KEY, host.lower()) for host in hosts)


def all_allowed(
    keys: str | Sequence[str], commands: str | Sequence[str], hosts: str | Sequence[str] = ()
) -> frozenset[KeyUse]:
    """What the user allows a spec that came from elsewhere; one word or several of each. Raises as those above."""
    keys, commands, hosts = ([words] if isinstance(words, str) else words for words in (keys, commands, hosts))
    return parse_allowed(keys) | allowed_commands(commands) | allowed_hosts(hosts)


def check_allowed(uses: Collection[KeyUse], allowed: Collection[KeyUse], spec: str) -> None:
    """See that each use of a spec that has to do with what came from elsewhere is allowed; a server that may get a key,
    too. `spec` says which one it is, and how.

    Raises:
        UsageError: some are not; which, and how they would be.
    """
    hosts = {use.host for use in allowed if use.program is None}
    missing = [use for use in sorted(set(uses) - set(allowed)) if use.variable != NO_KEY or use.host not in hosts]
    if missing:
        pairs = "\n".join(
            line for use in missing for line in (f"  {use.told}", *(f"    {one}" for one in use.files or ()))
        )
        options = forms_of(missing)
        in_python = [f"{_IN_PYTHON[word]}=['{value}']" for word, value in (option.split(" ", 1) for option in options)]
        raise UsageError(
            f"{spec} and would send, as it says:\n{pairs}\nNothing was "
            f"sent. If you trust whoever gets that, allow each by its name: {' '.join(options)} (in Python: "
            f"{', '.join(in_python)})"
        )


_IN_PYTHON = {OPTION: "allow_keys", COMMAND_OPTION: "allow_commands", HOST_OPTION: "allow_hosts"}
