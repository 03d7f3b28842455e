"""Rules that replace private locations in structured data: addresses, users at hosts, buckets, sockets and paths.

The other modules of `runner.registry.redaction` apply them. The rules depend only on the run and its spec, not on the
machine that publishes, so every publisher of a run gets the same bytes.
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
from runner.models.settings import NOT_PUBLISHED
from runner.registry.redaction.answer_fields import MODEL_TEXT, select_known_fields
from runner.registry.redaction.location_patterns import ADDRESS, PATH, redact_locations
from runner.training.weights import is_path, public_model_name

MODEL, CACHE, ANSWER_FIELD, COMMENT = "model path", "cache path", "field of an answer", "comment"
"""Names of rules, in addition to "address" and "path". The fact `cleaned` has the number of replacements."""

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "0.0.0.0", "::1", "host.docker.internal"))  # noqa: S104 - a name
_ABSOLUTE = re.compile(r"(?:file:|~?/|~[a-z][\w-]*/|[A-Za-z]:[\\/])[^\s]+")
"""Matches an absolute path, or a path in a home folder, without blanks."""
_WITH_BLANKS = re.compile(r"(?:file:|~?/|[A-Za-z]:[\\/])[^\n]+")
"""Matches such a path with blanks. Only values of the keys in `_PATH_KEYS` are compared with this pattern, because it
could match sentences."""
_PATH_KEYS = frozenset(
    ("path", "model", "base_model", "from_model", "use", "prompts", "run", "cache", "extends", "file")
)
MODEL_KEYS = ("model", "base_model", "from_model")
"""Keys of specs, manifests and stages whose values are model names."""
_MESSAGE_KEYS = frozenset(("error", "message", "why", "why_stopped", "reason", "log"))
"""Keys whose values are messages from programs."""
_OPEN_KEYS = frozenset(("extra_body", "headers", "options", "environment", "env"))
"""Keys of *open* mappings: a user or a server chooses the keys inside them."""
_HOST_KEYS = re.compile(
    r"(?i)(?:.*[_-])?(?:hosts?|hostname|nodes?|nodename|servers?|addr|address|addresses|endpoints?|ur[il]s?|ips?|ports?|peers?)"
)
"""Matches keys in open mappings whose values are addresses of servers."""
_CLUSTER_KEY = "execution.address"
"""The key for the address of a Ray cluster. The values of other keys named `address` are not servers."""
_OVERRIDE_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.-]*")
_HOME = re.compile(r"(?:.*[\\/])?(?:home|users|homes)[\\/][^\\/]+[\\/]*", re.IGNORECASE)
"""Matches the path of a home folder, whose last part is a person's name."""


def is_open(key: str) -> bool:
    """Return whether a dotted key is in an open mapping; see `_OPEN_KEYS`."""
    return not _OPEN_KEYS.isdisjoint(key.split("."))


def strings_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each string at any depth, after the last part of its key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from strings_in(item, str(name).rpartition(".")[2])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item, key)
    elif isinstance(value, str):
        yield key, value


def choose_public_names(names: Iterable[str]) -> dict[str, str]:
    """Return the public name of each model name that is a path.

    It is the last part of the path, and also has a hash of the path if other paths have the same last part.
    """
    short_names = {name: public_model_name(name) or "path" for name in sorted(names) if is_path(name)}
    paths = {name: name.rstrip("\\/") for name in short_names}
    paths_by_short_name: dict[str, set[str]] = {}
    for name, short in short_names.items():
        paths_by_short_name.setdefault(short, set()).add(paths[name])
    return {
        name: short if len(paths_by_short_name[short]) == 1 else f"{short}-{tagged_hash('model path', paths[name])[:8]}"
        for name, short in short_names.items()
    }


def list_addresses(base_urls: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that identify servers: URLs, hosts with ports, and hosts except plain words. Longest first."""
    addresses: set[str] = set()
    for url in base_urls:
        addresses |= {url, url.rstrip("/")}
        parts = urlsplit(url)
        host = parts.hostname
        if host is None:
            continue
        host_and_port = parts.netloc.rpartition("@")[2]
        addresses |= {host_and_port} if ":" in host_and_port else set()
        if host not in _LOOPBACK and re.search(r"[.:\d-]", host):
            addresses |= {host, host_and_port, re.sub(r":\d*\Z", "", host_and_port), *_idna_forms(host)}
    return tuple(sorted((text for text in addresses if len(text) > 2), key=lambda text: (-len(text), text)))


def _idna_forms(host: str) -> Iterator[str]:
    """Yield the other spelling of an international host name: the ASCII form of a Unicode name, or vice versa."""
    with suppress(UnicodeError):
        yield host.encode("idna").decode() if not host.isascii() else host.encode().decode("idna")


def _address_pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"(?<![\w.-])" + re.escape(text) + r"(?![\w-])", re.IGNORECASE)


@dataclass
class RedactionRules:
    """The redaction rules for drafts that belong together, with counts of the replacements so far."""

    models: Mapping[str, str]
    """The public name of each model whose name is a path."""
    base_urls: tuple[str, ...]
    hashes: dict[str, str] = field(default_factory=dict)
    """The new value of each hash that depends on a redacted value."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of replacements so far, by the name of the rule."""

    def __post_init__(self) -> None:
        addresses = list_addresses(self.base_urls)
        hosts = {urlsplit(url).hostname or "" for url in self.base_urls} - {"", *_LOOPBACK, *addresses}
        self.host_words = sorted(hosts, key=lambda host: (-len(host), host))
        """Hosts that are plain words. In free text such a word may have another meaning."""
        longest_first = sorted(self.models.items(), key=lambda item: (-len(item[0]), item[0]))
        self._models = [(re.compile(re.escape(path) + r"(?![\w-])"), name) for path, name in longest_first]
        self._addresses = [_address_pattern(text) for text in addresses]
        self._hosts = [_address_pattern(host) for host in self.host_words]

    def redact_value(self, value: Any, key: str = "", *, in_open_mapping: bool = False) -> Any:
        """Return structured data redacted, such as a manifest or a spec.

        `key` is the key of the value. `in_open_mapping` says whether the value is in an open mapping; see `_OPEN_KEYS`.
        """
        if isinstance(value, Mapping):
            prefix = "execution." if key == "execution" else ""
            return {
                name: self.redact_value(item, f"{prefix}{name}", in_open_mapping=in_open_mapping or is_open(str(name)))
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.redact_value(item, key, in_open_mapping=in_open_mapping) for item in value]
        return self.redact_string(value, key, in_open_mapping=in_open_mapping) if isinstance(value, str) else value

    def redact_string(self, text: str, key: str = "", *, in_open_mapping: bool = False) -> str:
        """Return one string of structured data redacted; `key` and `in_open_mapping` are those of `redact_value`."""
        is_cluster = key == _CLUSTER_KEY
        in_open_mapping, key = in_open_mapping or is_open(key), key.rpartition(".")[2]
        if text in ("", NOT_PUBLISHED):
            return text
        if is_cluster or key == "base_url" or (in_open_mapping and _HOST_KEYS.fullmatch(key)):
            return self._replace_all(ADDRESS, NOT_PUBLISHED)
        if text in self.models:
            return self._replace_all(MODEL, self.models[text])
        if text in self.hashes:
            return self.hashes[text]
        if key in _MESSAGE_KEYS:
            return self.redact_message(text)
        # In an open mapping, a text such as `/no_think` may be a command to a model.
        may_be_path = key in _PATH_KEYS or not in_open_mapping
        has_blanks = " " in text and key in _PATH_KEYS
        if may_be_path and (_ABSOLUTE.fullmatch(text) or (has_blanks and _WITH_BLANKS.fullmatch(text))):
            return self._replace_all(PATH, key if key == "cache" else _last_part(text))
        return self._redact_text(text)

    def redact_message(self, text: str) -> str:
        """Return a message from a program redacted, including the hosts that are plain words."""
        text = self._redact_text(text)
        for pattern in self._hosts:
            text = self._substitute(pattern, NOT_PUBLISHED, text, ADDRESS)
        return text

    def redact_lines(self, text: str) -> str:
        """Return a text redacted line by line. A line may be an override, `KEY=VALUE`, or any text."""
        return "".join(self._redact_line(line) for line in text.splitlines(keepends=True))

    def _redact_line(self, line: str) -> str:
        key, equals, value = line.partition("=")
        if not equals or not _OVERRIDE_KEY.fullmatch(key):
            return self._redact_text(line)
        stripped = value.strip()
        is_quoted = len(stripped) > 1 and stripped[0] == stripped[-1] and stripped[0] in "\"'"
        unquoted = stripped[1:-1] if is_quoted else stripped
        redacted = self.redact_string(unquoted, key.lstrip("+~"))
        return line if redacted == unquoted else key + equals + value.replace(unquoted, redacted)

    def redact_answer(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Return a server's answer without unknown fields, and with all fields redacted that a model did not write."""
        selected, removed = select_known_fields(answer)
        self.counts[ANSWER_FIELD] += removed
        return {name: item if name in MODEL_TEXT else self._redact_field(name, item) for name, item in selected.items()}

    def _redact_field(self, name: str, value: Any) -> Any:
        is_message = isinstance(value, str) and name not in MODEL_KEYS
        return self.redact_message(value) if is_message else self.redact_value(value, name)

    def _redact_text(self, text: str) -> str:
        """Replace first model paths, then private locations, the spec's addresses, and changed hashes in a text."""
        for pattern, name in self._models:
            text = self._substitute(pattern, name, text, MODEL)
        text = redact_locations(text, lambda rule: self.counts.update([rule]))
        for pattern in self._addresses:
            text = self._substitute(pattern, NOT_PUBLISHED, text, ADDRESS)
        for old, new in self.hashes.items():
            text = text.replace(old, new)
        return text

    def _substitute(self, pattern: re.Pattern[str], replacement: str, text: str, rule: str) -> str:
        text, count = pattern.subn(lambda _: replacement, text)
        self.counts[rule] += count
        return text

    def _replace_all(self, rule: str, replacement: str) -> str:
        self.counts[rule] += 1
        return replacement

    def summary(self) -> list[dict[str, Any]]:
        """Return the number of replacements by rule."""
        return [{"rule": rule, "count": count} for rule, count in sorted(self.counts.items()) if count]


def _last_part(path: str) -> str:
    """Return the last part of a path; "path" if it is the only part, or a home folder, whose name is a person's."""
    path = path.removeprefix("file:").removeprefix("//")
    if _HOME.fullmatch(path) or re.fullmatch(r"~[^\\/]*|[\\/][^\\/]+[\\/]?", path):
        return "path"
    return public_model_name(path) or "path"
