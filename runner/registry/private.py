"""What must stand in no byte that leaves: secrets, names of this machine and its user, addresses of servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from runner.registry.clean import FREE, rules_of
from runner.registry.draft import Draft
from runner.registry.names import Names, path_pattern
from runner.registry.rules import Rules
from runner.registry.searching import Finder, search
from runner.registry.secret_keys import secret_values
from runner.registry.secrets import HeldSecrets, known_forms
from runner.registry.strict import is_public
from runner.releases.bundle import Content
from runner.releases.manifest import MANIFEST, Release


def private_in(release: Release, contents: Mapping[str, Content], raw: Draft, names: Names) -> Iterator[str]:
    """What is private in a release, by file and line; `raw` is it as its run or file has it, before it was cleaned."""
    rules = rules_of(raw)
    own = names.also(rules.host_words, "the host of a server that the spec names")
    spared = own.but({release.owner, *_published_words(release)})
    finders: list[Finder] = [known_forms, HeldSecrets(), spared, _Addresses(rules)]
    leaving: Mapping[str, Content] = {**contents, MANIFEST: release.to_bytes()}
    for found in search(leaving, finders):
        yield f"{found}; take it out, and publish again"
    yield from secret_values({path: text for path, text in leaving.items() if not path.startswith(FREE)})


def _published_words(release: Release) -> set[str]:
    """The words of the addresses that its files come from, which tell nothing new where anybody knows their hosts."""
    urls = [source.repository for source in release.sources.values() if source.repository and source.clean]
    words = [[word for word in re.split(r"[:/]+", re.sub(r"^[a-z+]+://", "", url)) if word] for url in urls]
    public = [(at.rpartition("@")[2], *path) for at, *path in filter(None, words) if is_public(at.rpartition("@")[2])]
    return {word for said in public for word in said}


class _Addresses:
    """Finds the addresses of a spec's servers."""

    def __init__(self, rules: Rules) -> None:
        self._patterns = [re.compile(path_pattern(text).pattern, re.IGNORECASE) for text in rules.addresses]

    def __call__(self, data: bytes) -> Iterator[tuple[int, str]]:
        for pattern in self._patterns:
            for found in pattern.finditer(data):
                yield found.start(), "an address of a server that the spec names"
