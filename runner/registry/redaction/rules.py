"""What of a run is not for others, by rule: addresses of its servers, and paths; and what stands in their places.

A rule looks at what the run and its spec say, never at the machine that publishes: the same run is cleaned to the same
bytes by everybody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from runner.base.hashing import tagged_hash
from runner.models.answers import CHOICES
from runner.models.settings import NOT_PUBLISHED
from runner.registry.redaction.answer_fields import clean_answer
from runner.registry.redaction.location_patterns import Strictness, without_places
from runner.training.weights import is_path, without_path

ADDRESS, PATH, MODEL, CACHE = "address", "path", "model path", "cache path"
ANSWER_FIELD, COMMENT = "field of an answer", "comment"
"""The rules, as `facts.cleaned` names them."""

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "0.0.0.0", "::1", "host.docker.internal"))  # noqa: S104 - a name
_ABSOLUTE = re.compile(r"(?:file:|~?/|~[a-z][\w-]*/|[A-Za-z]:[\\/])[^\s]+")
_WITH_BLANKS = re.compile(r"(?:file:|~?/|[A-Za-z]:[\\/])[^\n]+")
_OF_PATHS = frozenset(
    ("path", "model", "base_model", "from_model", "use", "prompts", "run", "cache", "extends", "file")
)
MODEL_KEYS = ("model", "base_model", "from_model")
"""Keys of specs, manifests and stages under which a model's name stands."""
_FREE = frozenset(("extra_body", "headers", "options", "environment", "env"))
"""Keys of mappings whose own keys are anybody's."""
_OF_HOSTS = re.compile(
    r"(?i)(?:.*[_-])?(?:hosts?|hostname|nodes?|nodename|servers?|addr|address|addresses|endpoints?|ur[il]s?|ips?|ports?|peers?)"
)
_OF_FILES = re.compile(r"(?i)(?:.*[_-])?(?:path|paths|dir|dirs|directory|folder|folders|file|files|root)")
_READ_AS = {"description": Strictness.PROSE}
_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.-]*")
_HOMES = re.compile(r"(?:.*[\\/])?(?:home|users|homes)[\\/][^\\/]+[\\/]*", re.IGNORECASE)


def is_free(key: str) -> bool:
    """Whether what stands under a key, which may be many joined by dots, is anybody's."""
    return not _FREE.isdisjoint(key.split("."))


def renamed_models(names: Iterable[str]) -> dict[str, str]:
    """For each model whose name is a path, its last part; of several that end in the same, each with a hash."""
    paths = sorted({name for name in names if is_path(name)})
    called = {name: without_path(name) or "path" for name in paths}
    ends: dict[str, set[str]] = {}
    for name in paths:
        ends.setdefault(called[name], set()).add(name.rstrip("\\/"))
    return {
        name: short if len(ends[short]) == 1 else f"{short}-{tagged_hash('model path', name.rstrip(chr(92) + '/'))[:8]}"
        for name, short in called.items()
    }


def addresses_of(base_urls: Iterable[str]) -> tuple[str, ...]:
    """What tells of servers, the longest first: addresses, hosts with ports, and hosts that are more than a word."""
    found: set[str] = set()
    for url in base_urls:
        found |= {url, url.rstrip("/")}
        split = urlsplit(url)
        host = split.hostname
        if host is None:
            continue
        at = split.netloc.rpartition("@")[2]
        found |= {at} if ":" in at else set()
        if host not in _LOOPBACK and re.search(r"[.:\d-]", host):
            found |= {host, at, re.sub(r":\d*\Z", "", at), *_encoded(host)}
    return tuple(sorted((text for text in found if len(text) > 2), key=lambda text: (-len(text), text)))


def _encoded(host: str) -> Iterator[str]:
    """A host whose name has letters that addresses do not have, as they have it, and the other way round."""
    with suppress(UnicodeError):
        yield host.encode("idna").decode() if not host.isascii() else host.encode().decode("idna")


_CLUSTER = "execution.address"
"""Where a Ray cluster is; other keys named `address` are of files."""


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
        self._words = sorted(hosts, key=lambda host: (-len(host), host))
        self._hosts = [self._pattern(host) for host in self._words]
        self._models = [(re.compile(re.escape(path) + r"(?![\w-])"), name) for path, name in _longest(self.models)]

    @staticmethod
    def _pattern(text: str) -> re.Pattern[str]:
        return re.compile(r"(?<![\w.-])" + re.escape(text) + r"(?![\w-])", re.IGNORECASE)

    @property
    def addresses(self) -> list[str]:
        """What must stand nowhere, not even in what somebody wrote."""
        return [text for text, _ in self._addresses]

    @property
    def host_words(self) -> list[str]:
        """Hosts that are a word: in what somebody wrote they may mean something else."""
        return [host for host in self._words if host not in self.addresses]

    def value(self, value: Any, key: str = "", *, free: bool = False) -> Any:
        """Data whose texts are names, numbers, places: what a manifest has, and a spec."""
        if isinstance(value, Mapping):
            above = "execution." if key == "execution" else ""
            return {
                name: self.value(item, f"{above}{name}", free=free or is_free(str(name)))
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, key, free=free) for item in value]
        return self.scalar(value, key, free=free) if isinstance(value, str) else value

    def scalar(self, text: str, key: str = "", *, free: bool = False) -> str:
        """One text of such data, under a key; `free`: in a mapping whose keys are anybody's."""
        is_cluster = key == _CLUSTER
        free, key = free or is_free(key), key.rpartition(".")[2]
        if text in ("", NOT_PUBLISHED):
            return text
        if is_cluster or key == "base_url" or (free and _OF_HOSTS.fullmatch(key)):
            return self._took(ADDRESS, NOT_PUBLISHED)
        if text in self.models:
            return self._took(MODEL, self.models[text])
        if text in self.hashes:
            return self.hashes[text]
        is_place = key in _OF_PATHS or not free  # a word to a model may begin with a stroke
        if is_place and (
            _ABSOLUTE.fullmatch(text) or (" " in text and key in _OF_PATHS and _WITH_BLANKS.fullmatch(text))
        ):
            return self._took(PATH, key if key == "cache" else _last_part(text))
        if free and _OF_FILES.fullmatch(key) and re.search(r"[\\/]", text) and "://" not in text:
            return self._took(PATH, _last_part(f"./{text}"))
        return self._without(text, Strictness.FREE if free else _READ_AS.get(key, Strictness.NAMES))

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
        """The words of an error, in which whatever looks like an address, a host or a path tells of a machine."""
        text = self._without(text, Strictness.WORDS)
        for pattern in self._hosts:
            text = self._replaced(pattern, NOT_PUBLISHED, text, ADDRESS)
        return text

    def written(self, text: str) -> str:
        """Lines that somebody wrote, `KEY=VALUE` or any; comments are read as the words of an error."""
        return "".join(self._line(line) for line in text.splitlines(keepends=True))

    def _line(self, line: str) -> str:
        if line.lstrip().startswith("#"):
            return self.error(line)
        key, equals, value = line.partition("=")
        if not equals or not _KEY.fullmatch(key):
            return self._without(line, Strictness.NAMES)
        bare = value.strip()
        quoted = bare[:1] if len(bare) > 1 and bare[:1] == bare[-1:] and bare[:1] in "\"'" else ""
        inner = bare.removeprefix(quoted).removesuffix(quoted) if quoted else bare
        cleaned = self.scalar(inner, key.lstrip("+~"))
        return line if cleaned == inner else key + equals + value.replace(inner, cleaned)

    def answer(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """A server's answer, of which what the wire format does not have is taken out."""
        kept, gone = clean_answer(said)
        self.taken[ANSWER_FIELD] += gone
        return {name: item if name == CHOICES else self.value(item, name) for name, item in kept.items()}

    def _without(self, text: str, reading: Strictness) -> str:
        """Models first, whose paths get names; what the spec says of its servers last, in what is left."""
        for pattern, name in self._models:
            text = self._replaced(pattern, name, text, MODEL)
        return self.text(without_places(text, lambda rule: self.taken.update([rule]), reading))

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
    """A path's last part, unless that is somebody's home, or all of it."""
    path = path.removeprefix("file:").removeprefix("//")
    if _HOMES.fullmatch(path) or re.fullmatch(r"~[^\\/]*|[\\/][^\\/]+[\\/]?", path):
        return "path"
    return without_path(path) or "path"


def _longest(models: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return iter(sorted(models.items(), key=lambda pair: (-len(pair[0]), pair[0])))
