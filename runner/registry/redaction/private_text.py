"""Find what must not be published: secrets, names of this machine and its user, addresses of servers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import MANIFEST, Release
from runner.registry.draft import Draft
from runner.registry.redaction.draft_redaction import FREE, rules_of
from runner.registry.redaction.location_patterns import is_public
from runner.registry.redaction.machine_names import Names, path_pattern
from runner.registry.redaction.rules import Rules, addresses_of
from runner.registry.redaction.secret_keys import secret_values
from runner.registry.redaction.secrets import HeldSecrets, known_forms
from runner.registry.redaction.text_search import Cause, Finder, group_by_cause, search
from runner.spec.trainer_files import FOLDER


def private_in(release: Release, contents: Mapping[str, Content], raw: Draft, names: Names) -> Iterator[str]:
    """Find private text in a release, one line for each cause; `raw` is the release before it was cleaned."""
    rules = rules_of(raw)
    own = names.also(rules.host_words, "the host of a server that the spec names")
    spared = own.but({release.owner, *_published_words(release)})
    finders: list[Finder] = [known_forms, HeldSecrets(), spared, _Addresses(rules, names.spared)]
    leaving: Mapping[str, Content] = {**contents, MANIFEST: release.to_bytes()}
    yield from group_by_cause(search(leaving, finders))
    yield from secret_values(
        {path: text for path, text in leaving.items() if not path.startswith(FREE) or f"{FOLDER}/" in path}
    )


def _published_words(release: Release) -> set[str]:
    """The words of the addresses that its files come from, which tell nothing new where anybody knows their hosts."""
    urls = [source.repository for source in release.sources.values() if source.repository and source.clean]
    words = [[word for word in re.split(r"[:/]+", re.sub(r"^[a-z+]+://", "", url)) if word] for url in urls]
    public = [(at.rpartition("@")[2], *path) for at, *path in filter(None, words) if is_public(at.rpartition("@")[2])]
    return {word for said in public for word in said}


def _tells_more(address: str) -> bool:
    """Whether an address has more than a host, such as a user, a query, or a path that may be a secret."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    return "@" in parts.netloc or bool(parts.query) or not _USUAL_PATH.fullmatch(parts.path)


_USUAL_PATH = re.compile(r"/?((api|openai)/)?(v\d+)?/?")
"""Of an address that serves models."""


class _Addresses:
    """Finds the addresses of a spec's servers, grouped by host."""

    def __init__(self, rules: Rules, allowed: Collection[str]) -> None:
        by_host: dict[str, dict[str, None]] = {}
        for url in rules.base_urls:
            by_host.setdefault(urlsplit(url).hostname or url, {}).update(dict.fromkeys(addresses_of([url])))
        self._patterns = {
            host: re.compile(b"|".join(path_pattern(text).pattern for text in found), re.IGNORECASE)
            for host, texts in by_host.items()
            if (found := [text for text in texts if host.lower() not in allowed or _tells_more(text)])
        }

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        for host, pattern in self._patterns.items():
            for found in pattern.finditer(data):
                yield found.start(), Cause("an address of a server that the spec names", host)
