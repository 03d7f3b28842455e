"""The names of this machine and its user, which are nobody else's business: home, user, host, where results lie."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from runner.base.storage.safe_files import read_bounded
from runner.registry.redaction.text_search import Cause

SHORTEST = 3
"""A name of fewer characters would be found in any text."""
_SHORTEST_HOST = 2
"""Of a server that the spec itself names, such as `g7`."""

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
"""Names that say nothing of anybody, and that honest texts are full of."""

_HOSTS = Path("/etc/hosts")
_NOBODY = re.compile(r"127\.|0\.0\.0\.0|255\.|::1?(?![0-9a-f:])|f[ef][0-9a-f]{2}:", re.IGNORECASE)
"""Addresses of this machine itself, and of none or many."""
MOST_NEIGHBOURS = 500


@dataclass(frozen=True)
class Names:
    """What must not stand in anything that leaves: paths by what they are, and words likewise."""

    paths: Mapping[str, str]
    words: Mapping[str, str]
    spared: frozenset[str] = frozenset()
    """Words and whole paths, in lower case, that are allowed."""

    @classmethod
    def here(cls, lies_in: Path | None = None) -> Names:
        """Those of this process: its home, user and host, and the results folder it reads. No network is asked."""
        paths: dict[str, str] = {}
        for path, what in ((_home(), "the path of your home"), (lies_in, "the path of the results folder")):
            for spelled in () if path is None else (str(path.absolute()), os.path.realpath(path)):
                if len(Path(spelled).parts) > 1:
                    paths.setdefault(spelled, what)
        users = dict.fromkeys(_users(), "your user name")
        hosts = dict.fromkeys(_hosts(), "the name of this machine")
        near = dict.fromkeys(_neighbours(), "the name of a machine in the file of hosts")
        return cls(paths, _telling({**near, **hosts, **users}))

    def but(self, allowed: Collection[str]) -> Names:
        """Without words that may stand there: a user name that is the release's owner, say."""
        return Names(self.paths, self.words, self.spared | {word.lower() for word in allowed})

    def also(self, words: Collection[str], what: str) -> Names:
        """With further words, such as hosts, where these say something and are not spared."""
        return Names(self.paths, {**_telling(dict.fromkeys(words, what), _SHORTEST_HOST), **self.words}, self.spared)

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        """Find them in bytes."""
        for pattern, cause in self._patterns:
            for found in pattern.finditer(data):
                yield found.start(), cause

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[bytes], Cause]]:
        of_kind = ((path_pattern, self.paths), (word_pattern, self.words))
        return [
            (pattern(text), Cause(description, text))
            for pattern, texts in of_kind
            for text, description in texts.items()
            if text.lower() not in self.spared
        ]


def _telling(words: Mapping[str, str], shortest: int = SHORTEST) -> dict[str, str]:
    return {word: what for word, what in words.items() if len(word) >= shortest and word.lower() not in GENERIC}


def path_pattern(path: str) -> re.Pattern[bytes]:
    """A path in text, JSON, or percent-encoded, where it does not go on in the same name."""
    encoded = quote(path, safe="")
    lower = re.sub("%..", lambda found: found[0].lower(), encoded)
    forms = {path, path.replace("/", "\\/"), path.replace("\\", "\\\\"), encoded, lower, quote(encoded, safe="")}
    joined = b"|".join(re.escape(form.encode("utf-8", "surrogateescape")) for form in sorted(forms))
    return re.compile(b"(?:" + joined + b")(?![A-Za-z0-9_-])")


def word_pattern(word: str) -> re.Pattern[bytes]:
    """A word that is no part of a longer one, as it is and in lower case; in JSON an escape may stand before it."""
    before = rb"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2})"
    before += rb"|(?<=%25[0-9a-fA-F]{2}))"
    spelled = sorted({word, word.lower()})
    joined = b"|".join(re.escape(one.encode("utf-8", "surrogateescape")) for one in spelled)
    return re.compile(before + b"(?:" + joined + b")(?![A-Za-z0-9_])")


def _home() -> Path | None:
    with suppress(RuntimeError):
        return Path.home()
    return None


def _users() -> Iterator[str]:
    with suppress(Exception):  # no such user, in a container
        yield getpass.getuser()
    yield from filter(None, (os.environ.get(name) for name in ("USER", "LOGNAME", "SUDO_USER")))
    home = _home()
    if home is not None and len(home.parts) > 2:  # the home of a user who is not the system's own
        yield home.name


def _listed() -> Iterator[list[str]]:
    """The lines of the file of hosts: an address and its names."""
    with suppress(OSError):
        for line in read_bounded(_HOSTS, 1 << 20).decode("utf-8", "replace").splitlines():
            yield line.partition("#")[0].split()


def _neighbours() -> Iterator[str]:
    """Names without a dot that the file of hosts has for other machines; with one, they may be anybody's."""
    others = [words for words in _listed() if words and not _NOBODY.match(words[0])]
    names = dict.fromkeys(name for _, *names in others for name in names if "." not in name)
    yield from list(names)[:MOST_NEIGHBOURS]


def _hosts() -> Iterator[str]:
    """The host by all names that it has by itself, without asking a server for them."""
    own = {socket.gethostname(), os.environ.get("HOSTNAME", "")} - {""}
    for _, *names in filter(None, _listed()):
        if own & set(names):
            own |= set(names)
    for name in sorted(own):
        yield name
        if "." in name and not name.replace(".", "").isdigit():
            yield name.partition(".")[0]
