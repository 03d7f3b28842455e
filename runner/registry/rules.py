"""What of a run is not for others, by rule: addresses of its servers, and paths; and what stands in their places.

A rule looks at what the run and its spec say, never at the machine that publishes: the same run is cleaned to the same
bytes by everybody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from runner.models.settings import NOT_PUBLISHED
from runner.training.weights import is_path, without_path

ADDRESS, PATH, MODEL, CACHE = "address", "path", "model path", "cache path"
"""The rules, as `facts.cleaned` names them."""

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "0.0.0.0", "::1", "host.docker.internal"))  # noqa: S104 - a name
_ABSOLUTE = re.compile(r"(?:file:|~?/|~[a-z][\w-]*/|[A-Za-z]:[\\/])[^\s]+")
_WITH_BLANKS = re.compile(r"(?:file:|~?/|[A-Za-z]:[\\/])[^\n]+")
_OF_PATHS = frozenset(
    ("path", "model", "base_model", "from_model", "use", "prompts", "run", "cache", "extends", "file")
)
_PATH = re.compile(r"(?<![\w.~/%-])(?:file://)?(?:~?(?:/[\w.@+~-]+){2,}/?|[A-Za-z]:\\[\w.@+~\\-]+)")
"""An absolute path in a text for people."""
_PRIVATE_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[^\s/@'\"<>]+@)?"
    r"(?:\[[0-9a-fA-F:.]+\]|\d{1,3}(?:\.\d{1,3}){3}|[\w-]+|[\w.-]+\.(?:local|lan|internal|intranet|corp|home|localdomain)"
    r"|[\w.-]+(?=:\d))(?::\d+)?(?![\w.-])[^\s'\"<>)\]]*"
)
"""An address that is nobody's but ours: of a number, of a name without a domain, with a port."""
_NUMBER = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]\d)(?:(?::|', ?)\d{1,5})?|\[[0-9a-fA-F]*:[0-9a-fA-F:.]+\](?::\d+)?"
)
_COMMENT = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_AT_HOST = re.compile(r"(?<![\w/.@-])[A-Za-z_][\w.-]*@[A-Za-z][\w-]*(?:\.[\w-]+)*")


def renamed_models(names: Iterable[str]) -> dict[str, str]:
    """For each model whose name is a path, its last part."""
    return {name: without_path(name) or "path" for name in names if is_path(name)}


def addresses_of(base_urls: Iterable[str]) -> tuple[str, ...]:
    """What tells of servers, the longest first: addresses, hosts with ports, and hosts that are more than a word."""
    found: set[str] = set()
    for url in base_urls:
        found |= {url, url.rstrip("/")}
        split = urlsplit(url)
        host = split.hostname
        if host is None:
            continue
        found.add(split.netloc.rpartition("@")[2])
        if host not in _LOOPBACK and re.search(r"[.:\d-]", host):
            found |= {host, split.netloc.rpartition("@")[2].partition(":")[0]} - {""}
    return tuple(sorted((text for text in found if len(text) > 2), key=lambda text: (-len(text), text)))


@dataclass
class Rules:
    """The rules for one publish: the runs that go out together, and what was taken out so far."""

    models: Mapping[str, str]
    """For each model name that is a path, what it is called."""
    base_urls: tuple[str, ...]
    hashes: dict[str, str] = field(default_factory=dict)
    """Identities that hash a model's name, each with the one that it has by its new name."""
    taken: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._addresses = [(text, self._pattern(text)) for text in addresses_of(self.base_urls)]
        hosts = {urlsplit(url).hostname or "" for url in self.base_urls} - {"", *_LOOPBACK}
        self._hosts = [self._pattern(host) for host in sorted(hosts, key=lambda host: (-len(host), host))]
        self._models = [(re.compile(re.escape(path) + r"(?![\w-])"), name) for path, name in _longest(self.models)]

    @staticmethod
    def _pattern(text: str) -> re.Pattern[str]:
        return re.compile(r"(?<![\w.-])" + re.escape(text) + r"(?![\w-])")

    @property
    def addresses(self) -> list[str]:
        """What must stand nowhere, not even in what somebody wrote."""
        return [text for text, _ in self._addresses]

    def value(self, value: Any, key: str = "") -> Any:
        """Data whose texts are names, numbers, places: what a manifest has, and a spec."""
        if isinstance(value, Mapping):
            return {name: self.value(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, key) for item in value]
        return self.scalar(value, key) if isinstance(value, str) else value

    def scalar(self, text: str, key: str = "") -> str:
        """One text of such data, under a key."""
        if key.rpartition(".")[2] == "base_url" and text not in ("", NOT_PUBLISHED):
            return self._took(ADDRESS, NOT_PUBLISHED)
        if text in self.models:
            return self._took(MODEL, self.models[text])
        if text in self.hashes:
            return self.hashes[text]
        if _ABSOLUTE.fullmatch(text) or (" " in text and key in _OF_PATHS and _WITH_BLANKS.fullmatch(text)):
            return self._took(PATH, _last_part(text))
        return self.text(text)

    def text(self, text: str) -> str:
        """A text in which only what the spec itself says can tell: its models' paths, its servers, its hashes."""
        for pattern, name in self._models:
            text = self._replaced(pattern, name, text, MODEL)
        for _, pattern in self._addresses:
            text = self._replaced(pattern, NOT_PUBLISHED, text, ADDRESS)
        for old, new in self.hashes.items():
            text = text.replace(old, new)
        return text

    def error(self, text: str) -> str:
        """The words of an error, in which whatever looks like an address of ours, or a path, tells of a machine."""
        text = self.text(self._replaced(_AT_HOST, NOT_PUBLISHED, text, ADDRESS))
        for pattern in (*self._hosts, _PRIVATE_URL, _NUMBER):
            text = self._replaced(pattern, NOT_PUBLISHED, text, ADDRESS)
        return self._replaced_paths(text)

    def written(self, text: str) -> str:
        """A file that somebody wrote: in its comments, a user at a host is an address, too."""
        return self._replaced_paths(self.text(_COMMENT.sub(self._comment, text)))

    def _comment(self, found: re.Match[str]) -> str:
        return self._replaced(_AT_HOST, NOT_PUBLISHED, found[0], ADDRESS)

    def _replaced_paths(self, text: str) -> str:
        return _PATH.sub(lambda found: self._took(PATH, _last_part(found[0])), text)

    def _replaced(self, pattern: re.Pattern[str], by: str, text: str, rule: str) -> str:
        text, count = pattern.subn(lambda _: by, text)
        self.taken[rule] += count
        return text

    def _took(self, rule: str, text: str) -> str:
        self.taken[rule] += 1
        return text

    def told(self) -> list[dict[str, Any]]:
        """What was taken out: by rule, how often."""
        return [{"rule": rule, "count": count} for rule, count in sorted(self.taken.items()) if count]


def _last_part(path: str) -> str:
    return without_path(path.removeprefix("file:").removeprefix("//")) or "path"


def _longest(models: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return iter(sorted(models.items(), key=lambda pair: (-len(pair[0]), pair[0])))
