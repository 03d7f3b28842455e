"""Search a release for private text before it is published: secrets, names of this machine, addresses of servers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import MANIFEST, Release
from runner.registry.draft import Draft
from runner.registry.redaction.draft_redaction import FREE_TEXT, build_rules
from runner.registry.redaction.location_patterns import is_public_host
from runner.registry.redaction.machine_names import MachineNames, compile_path_pattern
from runner.registry.redaction.rules import list_addresses
from runner.registry.redaction.secrets import ProcessSecrets, find_secret_forms, find_secret_settings
from runner.registry.redaction.text_search import Cause, Finder, group_by_cause, search
from runner.spec.trainer_files import FOLDER as TRAINERS

_API_PATH = re.compile(r"/?((api|openai)/)?(v\d+)?/?")
"""Matches the usual paths in the address of an API, which are not secret."""


def find_private_text(
    release: Release, contents: Mapping[str, Content], original: Draft, names: MachineNames
) -> Iterator[str]:
    """Yield a message for each private text in a redacted release. `original` is its draft before redaction."""
    rules = build_rules(original)
    private_names = names.with_terms(rules.host_words, "the host of a server in the spec").allow(
        {release.owner, *_parts_of_public_sources(release)}
    )
    finders: list[Finder] = [
        find_secret_forms,
        ProcessSecrets(),
        private_names,
        _ServerAddresses(rules.base_urls, names.allowed),
    ]
    published: Mapping[str, Content] = {**contents, MANIFEST: release.to_bytes()}
    yield from group_by_cause(search(published, finders))
    # Of the files with free text, only those of trainers can have settings with secret values.
    yield from find_secret_settings(
        {path: text for path, text in published.items() if not path.startswith(FREE_TEXT) or f"{TRAINERS}/" in path}
    )


def _parts_of_public_sources(release: Release) -> set[str]:
    """Return the parts of the public repository URLs in a release. They may be published, because the URLs are."""
    urls = [source.repository for source in release.sources.values() if source.repository and source.clean]
    split_urls = [re.split(r"[:/]+", re.sub(r"^[a-z+]+://", "", url)) for url in urls]
    parts = [(host.rpartition("@")[2], *path) for host, *path in split_urls]
    return {part for host, *path in parts if is_public_host(host) for part in (host, *path) if part}


def _has_more_than_host(address: str) -> bool:
    """Return whether an address has a part that may be secret: a login, a query or an unusual path."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    return "@" in parts.netloc or bool(parts.query) or not _API_PATH.fullmatch(parts.path)


class _ServerAddresses:
    """Finds the addresses of a spec's servers. One message reports all addresses of a host."""

    def __init__(self, base_urls: Collection[str], allowed: Collection[str]) -> None:
        by_host: dict[str, dict[str, None]] = {}
        for url in base_urls:
            by_host.setdefault(urlsplit(url).hostname or url, {}).update(dict.fromkeys(list_addresses([url])))
        # `compile_path_pattern` also finds an address in JSON or percent-encoded, as it has slashes like a path.
        self._patterns = {}
        for host, texts in by_host.items():
            private_texts = [text for text in texts if host.lower() not in allowed or _has_more_than_host(text)]
            if private_texts:
                pattern = b"|".join(compile_path_pattern(text).pattern for text in private_texts)
                self._patterns[host] = re.compile(pattern, re.IGNORECASE)

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        for host, pattern in self._patterns.items():
            for match in pattern.finditer(data):
                yield match.start(), Cause("an address of a server in the spec", host)
