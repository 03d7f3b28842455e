"""Checks which environment variables a spec sends to which servers and programs, and whether the user has allowed it.

A spec names the servers that it calls, and the variables that it sends to them. So a spec from somebody else could send
any variable to any server, call servers in the user's own network, and run programs. The user must allow each pair of
variable and server, each server, and each program. `runner.spec.origin` decides which specs need permission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from runner.base.batches import group_pairs
from runner.base.errors import UsageError
from runner.base.text import in_one_line
from runner.models.provider_traits import PLUGIN_SCHEME, PROVIDERS
from runner.models.settings import ModelSettings

OPTION = "--allow-key"
COMMAND_OPTION = "--allow-command"
HOST_OPTION = "--allow-host"
ALL = "*"
"""Stands for the whole environment, which a program receives."""
NO_KEY = ""
"""Stands for no variable: the server receives only prompts."""
OPENAI = "api.openai.com"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_COMMAND = "command:"
"""Prefix of `KeyUse.host` if the receiver is a program."""
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")
_HOST = re.compile(r"(http://)?[^\s/]+")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\*)=(\S+)")


@dataclass(frozen=True, order=True)
class KeyUse:
    """A use of an environment variable: its name, and the server or program that receives its value."""

    variable: str
    host: str
    command: str | None = field(default=None, compare=False)
    """The command line, if a program receives the value."""
    files: tuple[str, ...] | None = field(default=None, compare=False)
    """Lines that show the files of the program to the user."""

    def __str__(self) -> str:
        return f"{self.variable or 'prompts, without a key,'} -> {self.host}"

    @property
    def program(self) -> str | None:
        """The program that receives the whole environment; None if the receiver is a server."""
        return self.host.removeprefix(_COMMAND) if self.variable == ALL else None

    @property
    def description(self) -> str:
        """Description for the user in one line. Control characters are escaped, because it quotes the spec."""
        return in_one_line(str(self) if self.command is None else f"{self}   (command line: {self.command})")


def host_of(base_url: str) -> str:
    """Return the host of a server, with the port unless it is the default port.

    The result starts with `http://` if the server is remote and would receive keys unencrypted, because a permission
    for the `https` server does not include this.
    """
    parts = urlsplit(base_url)
    usual = _DEFAULT_PORTS.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or base_url
    is_unencrypted = parts.scheme == "http" and not _LOOPBACK.fullmatch(host)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{'http://' if is_unencrypted else ''}{host}{port}"


@lru_cache(maxsize=1024)
def normalize_url(url: str) -> str:
    """Return the normal form of an address, which identifies a server. (Calls use the address as the spec has it.)

    Scheme and host are in lower case. A default port, a dot after the host, and repeated or final slashes are removed.
    """
    parts = urlsplit(url)
    scheme, host = parts.scheme.lower(), (parts.hostname or "").removesuffix(".")
    bracketed_host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(scheme)) else f":{parts.port}"
    return f"{scheme}://{bracketed_host}{port}{re.sub('/+', '/', parts.path).rstrip('/')}"


def key_uses(
    models: Iterable[ModelSettings], commands: Iterable[tuple[Sequence[str], Sequence[str]]] = ()
) -> tuple[KeyUse, ...]:
    """Return the variables that models send to their servers, and the programs that trainers run.

    `commands` has the command line of each trainer, and lines that show its files.
    """
    uses = {KeyUse(variable, host_of(url)) for s in models for variable in s.variables for url in s.server_urls}
    programs = group_pairs((_COMMAND + command[0], (shlex.join(command), files)) for command, files in commands)
    for program, calls in programs.items():  # several groups may use the same program with different files
        lines = tuple(line for _, files in calls for line in files)
        uses.add(KeyUse(ALL, program, "; ".join(dict.fromkeys(command for command, _ in calls)), lines or None))
    return tuple(sorted(uses))


def host_uses(models: Iterable[ModelSettings]) -> tuple[KeyUse, ...]:
    """Return the servers that these models call without sending a variable."""
    without_key = (settings for settings in models if settings.traits.remote and not settings.variables)
    urls = {url for settings in without_key for url in settings.server_urls if not url.startswith(PLUGIN_SCHEME)}
    return tuple(sorted(KeyUse(NO_KEY, host_of(url)) for url in urls))


def allow_options(uses: Iterable[KeyUse]) -> list[str]:
    """Return the command-line options that allow `uses`, with placeholders for values from the spec.

    Users must type these values themselves. Only the usual key of a provider's own server is written out.
    """
    forms = {ALL: f"{COMMAND_OPTION} PROGRAM", NO_KEY: f"{HOST_OPTION} HOST"}
    own_keys = {KeyUse(t.key_variable, host_of(t.base_url)) for t in PROVIDERS.values() if t.key_variable}
    options = (
        f"{OPTION} {use.variable}={use.host}" if use in own_keys else forms.get(use.variable, f"{OPTION} VAR=HOST")
        for use in uses
    )
    return list(dict.fromkeys(options))


def parse_allowed(pairs: Sequence[str]) -> frozenset[KeyUse]:
    """Parse the `VAR=HOST` pairs of `--allow-key` and `allow_keys`.

    Raises:
        UsageError: a pair is invalid.
    """
    allowed = set()
    for pair_text in pairs:
        pair = _PAIR.fullmatch(pair_text)
        if pair is None:
            raise UsageError(
                f"{OPTION} {pair_text!r}: write VAR=HOST, such as {OPTION} OPENAI_API_KEY={OPENAI} "
                f"(in Python: allow_keys=['OPENAI_API_KEY={OPENAI}'])"
            )
        allowed.add(KeyUse(pair[1], pair[2].lower() if pair[1] != ALL else pair[2]))
    return frozenset(allowed)


def allowed_commands(programs: Sequence[str]) -> frozenset[KeyUse]:
    """Return the uses that `--allow-command` and `allow_commands` permit, by the programs' names in a spec.

    Raises:
        UsageError: a name is empty.
    """
    if not all(programs):
        raise UsageError(f"{COMMAND_OPTION} '': write {COMMAND_OPTION} PROGRAM, with the program's name in the spec")
    return frozenset(KeyUse(ALL, _COMMAND + program) for program in programs)


def allowed_hosts(hosts: Sequence[str]) -> frozenset[KeyUse]:
    """Return the uses that `--allow-host` and `allow_hosts` permit, by hosts in the form of `host_of`.

    Raises:
        UsageError: a host is invalid.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UsageError(
                f"{HOST_OPTION} {host!r}: write HOST or HOST:PORT, such as {HOST_OPTION} 127.0.0.1:8000; start with "
                "http:// if the connection to a remote server is not encrypted"
            )
    return frozenset(KeyUse(NO_KEY, host.lower()) for host in hosts)


def all_allowed(
    keys: str | Sequence[str], commands: str | Sequence[str], hosts: str | Sequence[str] = ()
) -> frozenset[KeyUse]:
    """Return all uses that the user allows a fetched spec. Each argument is one value or a list of values.

    Raises:
        UsageError: a value is invalid.
    """
    keys, commands, hosts = ([values] if isinstance(values, str) else values for values in (keys, commands, hosts))
    return parse_allowed(keys) | allowed_commands(commands) | allowed_hosts(hosts)


def check_allowed(uses: Collection[KeyUse], allowed: Collection[KeyUse], spec: str) -> None:
    """Check that the user has allowed every use of a fetched spec. A server that may get a key may also get prompts.

    `spec` is the start of the error message, which describes the spec and its origin.

    Raises:
        UsageError: some uses are not allowed; the message lists them with the options that allow them.
    """
    hosts = {use.host for use in allowed if use.program is None}
    missing = [use for use in sorted(set(uses) - set(allowed)) if use.variable != NO_KEY or use.host not in hosts]
    if missing:
        missing_lines = "\n".join(
            line for use in missing for line in (f"  {use.description}", *(f"    {file}" for file in use.files or ()))
        )
        options = allow_options(missing)
        in_python = [f"{_IN_PYTHON[name]}=['{value}']" for name, value in (option.split(" ", 1) for option in options)]
        raise UsageError(
            f"{spec} and would send:\n{missing_lines}\nNothing was "
            f"sent. If you trust these receivers, allow each of them by its name: {' '.join(options)} (in Python: "
            f"{', '.join(in_python)})"
        )


_IN_PYTHON = {OPTION: "allow_keys", COMMAND_OPTION: "allow_commands", HOST_OPTION: "allow_hosts"}
