"""Find private paths and words: the paths of the home and results folders, and the names of the user and of machines.

`runner.registry.redaction.private_text` uses this module to search each release before it is published.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from runner.base.storage.safe_files import read_bounded
from runner.registry.redaction.text_search import Cause

MIN_LENGTH = 3
"""Minimum length of a name to search for. Shorter names would occur in any text."""
_MIN_HOST_LENGTH = 2
"""Minimum length of a server's name in an experiment spec, such as `g7`. Even a short name identifies a server."""

GENERIC = frozenset(
    (
        "root", "user", "users", "admin", "administrator", "ubuntu", "debian", "runner", "test", "guest", "nobody",
        "daemon", "build", "builder", "docker", "vagrant", "jovyan", "developer", "agent", "model", "data", "home",
        "work", "worker", "student", "localhost", "localdomain", "ip6-localhost", "ip6-loopback", "host", "container",
        "server", "machine", "computer", "laptop", "main", "node", "prover", "verifier", "none", "vllm", "ollama",
        "sglang", "litellm", "llama", "llm", "gpu", "api", "proxy", "gateway", "inference", "cluster", "qwen",
        "mistral", "deepseek", "gemma", "models", "chat", "openai", "broadcasthost",
    )
)  # fmt: skip
"""Names that are not searched for, because they are common in texts and identify no one."""

_HOSTS_FILE = Path("/etc/hosts")
_NO_OTHER_MACHINE = re.compile(r"127\.|0\.0\.0\.0|255\.|::1?(?![0-9a-f:])|f[ef][0-9a-f]{2}:", re.IGNORECASE)
"""Addresses in the hosts file that belong to no other single machine: loopback, broadcast, multicast and local ones."""
MAX_NEIGHBORS = 500
"""Maximum number of other machines whose names are searched for."""


@dataclass(frozen=True)
class MachineNames:
    """Paths and words that must not be published. An instance is a function that finds them in the bytes of a file."""

    paths: Mapping[str, str]
    """The private paths, each with a description for messages."""
    terms: Mapping[str, str]
    """The private words, each with a description for messages."""
    allowed: frozenset[str] = frozenset()
    """Words and complete paths that may be published, in lower case."""

    @classmethod
    def of_process(cls, runs_folder: Path | None = None) -> MachineNames:
        """Return the names of this machine and its user. The network is not used."""
        paths: dict[str, str] = {}
        folders = ((_home(), "the path of your home"), (runs_folder, "the path of the results folder"))
        for path, description in folders:
            for spelling in () if path is None else (str(path.absolute()), os.path.realpath(path)):
                if len(Path(spelling).parts) > 1:
                    paths.setdefault(spelling, description)
        terms = {
            **dict.fromkeys(_neighbor_hosts(), "the name of a machine in the file of hosts"),
            **dict.fromkeys(_own_hosts(), "the name of this machine"),
            **dict.fromkeys(_users(), "your user name"),
        }
        return cls(paths, _identifying_names(terms))

    def without(self, allowed: Collection[str]) -> MachineNames:
        """Return these names without words and paths that may be published."""
        return replace(self, allowed=self.allowed | {name.lower() for name in allowed})

    def with_terms(self, terms: Collection[str], description: str) -> MachineNames:
        """Return these names with additional words that must not be published, such as hosts."""
        return replace(
            self, terms={**_identifying_names(dict.fromkeys(terms, description), _MIN_HOST_LENGTH), **self.terms}
        )

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        """Yield the offset of each private path or word in `data`, and the `Cause` that a message shows."""
        for pattern, cause in self._patterns:
            for match in pattern.finditer(data):
                yield match.start(), cause

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[bytes], Cause]]:
        return [
            (compile_pattern(name), Cause(description, name))
            for compile_pattern, names in ((compile_path_pattern, self.paths), (compile_term_pattern, self.terms))
            for name, description in names.items()
            if name.lower() not in self.allowed
        ]


def _identifying_names(names: Mapping[str, str], min_length: int = MIN_LENGTH) -> dict[str, str]:
    return {key: names[key] for key in names if len(key) >= min_length and key.lower() not in GENERIC}


def compile_path_pattern(path: str) -> re.Pattern[bytes]:
    """Return a pattern for a path in plain text, in JSON or percent-encoded.

    The pattern for /data/runs finds /data/runs/x, but not /data/runs2.
    """
    encoded = quote(path, safe="")
    lower = re.sub("%..", lambda match: match[0].lower(), encoded)
    forms = {path, path.replace("/", "\\/"), path.replace("\\", "\\\\"), encoded, lower, quote(encoded, safe="")}
    joined = b"|".join(re.escape(form.encode("utf-8", "surrogateescape")) for form in sorted(forms))
    return re.compile(b"(?:" + joined + b")(?![A-Za-z0-9_-])")


def compile_term_pattern(term: str) -> re.Pattern[bytes]:
    """Return a pattern for a complete word, also in lower case, and also directly after an escape in JSON or a URL."""
    before = rb"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2})"
    before += rb"|(?<=%25[0-9a-fA-F]{2}))"
    joined = b"|".join(re.escape(form.encode("utf-8", "surrogateescape")) for form in sorted({term, term.lower()}))
    return re.compile(before + b"(?:" + joined + b")(?![A-Za-z0-9_])")


def _home() -> Path | None:
    with suppress(RuntimeError):
        return Path.home()
    return None


def _users() -> Iterator[str]:
    with suppress(Exception):  # a container may have no entry for the user
        yield getpass.getuser()
    yield from filter(None, (os.environ.get(name) for name in ("USER", "LOGNAME", "SUDO_USER")))
    home = _home()
    if home is not None and len(home.parts) > 2:  # in a home such as /root, the last part is not a person's name
        yield home.name


def _host_entries() -> Iterator[list[str]]:
    """Yield each entry of the hosts file: an address and its names."""
    with suppress(OSError):
        for line in read_bounded(_HOSTS_FILE, 1 << 20).decode("utf-8", "replace").splitlines():
            if entry := line.partition("#")[0].split():
                yield entry


def _neighbor_hosts() -> list[str]:
    """Return the names of other machines in the hosts file. Names with a dot are omitted: they may be public."""
    entries = (names for address, *names in _host_entries() if not _NO_OTHER_MACHINE.match(address))
    return list(dict.fromkeys(name for name in chain.from_iterable(entries) if "." not in name))[:MAX_NEIGHBORS]


def _own_hosts() -> Iterator[str]:
    """Yield the names of this machine, also without their domain. No name server is asked."""
    hosts = {socket.gethostname(), os.environ.get("HOSTNAME", "")} - {""}
    for _, *names in _host_entries():
        if hosts & set(names):
            hosts |= set(names)
    for name in sorted(hosts):
        yield name
        if "." in name and not name.replace(".", "").isdigit():
            yield name.partition(".")[0]
