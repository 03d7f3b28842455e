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
from runner.registry.redaction.secrets import ProcessSecretFinder, find_secret_forms, find_secret_settings
from runner.registry.redaction.text_search import Cause, Finder, group_by_cause, search
from runner.spec.trainer_files import FOLDER as TRAINERS

_API_PATH = re.compile(r"/?((api|openai)/)?(v\d+)?/?")
"""Matches the usual paths in the address of an API, which are not secret."""


def find_private_text(
    release: Release, contents: Mapping[str, Content], original: Draft, names: MachineNames
) -> Iterator[str]:
    """Yield a message for each private text in a redacted release. `original` is its draft before redaction."""
    rules = build_rules(original)
    name_finder = names.with_terms(rules.host_words, description="the host of a server in the spec")
    name_finder = name_finder.without({release.owner, *_words_of_public_repositories(release)})
    address_finder = _ServerAddressFinder(rules.base_urls, names.allowed)
    finders: list[Finder] = [find_secret_forms, ProcessSecretFinder(), name_finder, address_finder]
    published: Mapping[str, Content] = {**contents, MANIFEST: release.to_bytes()}
    yield from group_by_cause(search(published, finders))
    # Skip files of free text, except those of trainers: no other ones can contain settings.
    yield from find_secret_settings(
        {path: text for path, text in published.items() if not path.startswith(FREE_TEXT) or f"{TRAINERS}/" in path}
    )


def _words_of_public_repositories(release: Release) -> set[str]:
    """Return the host and the folders in each public repository URL of a release. They may be published as the URL."""
    words: set[str] = set()
    for url in (source.repository for source in release.sources.values() if source.repository and source.clean):
        login_and_host, *folders = re.split(r"[:/]+", re.sub(r"^[a-z+]+://", "", url))
        host = login_and_host.rpartition("@")[2]
        words |= {host, *folders} - {""} if is_public_host(host) else set()
    return words


def _may_contain_secret(address: str) -> bool:
    """Return whether an address has a part that may be secret: a login, a query or an unusual path."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    return "@" in parts.netloc or bool(parts.query) or not _API_PATH.fullmatch(parts.path)


class _ServerAddressFinder:
    """Finds the addresses of a spec's servers. One message reports all addresses of a host."""

    def __init__(self, base_urls: Collection[str], allowed: Collection[str]) -> None:
        addresses_by_host: dict[str, dict[str, None]] = {}  # the keys of the inner dictionary are an ordered set
        for url in base_urls:
            addresses = addresses_by_host.setdefault(urlsplit(url).hostname or url, {})
            addresses.update(dict.fromkeys(list_addresses([url])))
        # `compile_path_pattern` also matches the forms of an address that are escaped for JSON or a URL.
        self._patterns = {}
        for host, addresses in addresses_by_host.items():
            private = [text for text in addresses if host.lower() not in allowed or _may_contain_secret(text)]
            if private:
                pattern = b"|".join(compile_path_pattern(address).pattern for address in private)
                self._patterns[host] = re.compile(pattern, re.IGNORECASE)

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        for host, pattern in self._patterns.items():
            for match in pattern.finditer(data):
                yield match.start(), Cause("an address of a server in the spec", host)
