"""References, or a lock, into installed releases: the whole walk over what they need first, and then all of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from runner.base.errors import NotPublished, ReleaseError, UsageError
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import COMPONENTS, Digest, Reference, parse
from runner.registry.components.lockfile import Lock, LockedPin
from runner.registry.components.store import Store
from runner.registry.transports.locations import VARIABLE, to_read
from runner.registry.transports.registry import Registry, ReleaseEntry

MAX_DEPENDENCIES = 1_000


@dataclass(frozen=True)
class Install:
    """What became of one release."""

    reference: Reference
    sha256: str
    where: str
    was_there: bool
    notes: tuple[str, ...] = ()


_Wanted = dict[Reference, tuple[Registry | None, ReleaseEntry]]
"""Releases by name, each with the registry that has it; None where it is installed already."""


class Installer:
    """Installs into a store, and pins in a lock. The registries that it opens are closed with it."""

    def __init__(self, store: Store, lock: Lock, where: str | None = None) -> None:
        self.store, self.lock, self.where = store, lock, where
        self._open: dict[str, Registry] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def install(self, named: Sequence[str]) -> list[Install]:
        """Releases by reference, with all that they need; pinned, by their versions.

        Raises:
            UsageError: one is no reference to a component; or no registry is named.
            NotPublished: one, or one that it needs, is in no registry; nothing was installed.
            TakenError: the store, or the lock, has another release of this name; the lock is as it was.
            ReleaseError: a file is damaged.
        """
        wanted: _Wanted = {}
        for text in named:
            meant = parse(text)
            registry, entry = self._found(meant)
            _check_component(entry.reference)
            self._walk(registry, entry, wanted)
        return self._take(wanted)

    def restore(self) -> list[Install]:
        """All that the lock pins, by its hashes; those that are there are checked.

        Raises:
            NotPublished, ReleaseError: as `install`; also where a registry has another release than is pinned.
        """
        wanted: _Wanted = {}
        for reference, pin in sorted(self.lock.pins.items(), key=lambda one: str(one[0])):
            if self.store.has(reference) and self.store.check(reference).sha256 == pin.sha256:
                wanted[reference] = (None, ReleaseEntry(reference, pin.sha256))
                continue
            registry = self._registry(self.where or self.lock.where(reference))
            entry = registry.find(reference)
            if entry.sha256 != pin.sha256:
                raise ReleaseError(
                    f"{reference} in {registry.where} is sha256:{entry.sha256[:12]}, and {self.lock.path} pins "
                    f"sha256:{pin.sha256[:12]}: it is not what was installed before"
                )
            wanted[reference] = (registry, entry)
        return self._take(wanted)

    def _registry(self, where: str | None) -> Registry:
        key = where or ""
        if key not in self._open:
            self._open[key] = self._stack.enter_context(to_read(where))
        return self._open[key]

    def _found(self, meant: Reference | Digest) -> tuple[Registry | None, ReleaseEntry]:
        """The release that is meant; one that is installed, or pinned, is not looked for in another registry."""
        if self.where is None and isinstance(meant, Reference) and meant in self.lock.pins:
            registry = self._registry(self.lock.where(meant))
            return registry, registry.find(meant)
        if self.where is None and isinstance(meant, Reference) and meant.version and self.store.has(meant):
            return None, ReleaseEntry(meant, self.store.check(meant).sha256)
        registry = self._registry(self.where or self._usual())
        return registry, registry.find(meant)

    def _usual(self) -> str | None:
        """The registry of those who name none; without one, that of all which the lock pins."""
        return None if os.environ.get(VARIABLE) else self.lock.only_where()

    def _walk(self, registry: Registry | None, entry: ReleaseEntry, wanted: _Wanted) -> None:
        """Add a release, and those that it needs, which are where it is."""
        pending = [(registry, entry)]
        while pending:
            registry, entry = pending.pop()
            if entry.reference in wanted:
                continue
            wanted[entry.reference] = (registry, entry)
            if len(wanted) > MAX_DEPENDENCIES:
                raise ReleaseError(f"more than {MAX_DEPENDENCIES:,} releases need each other; nothing was installed")
            release = self._manifest(registry, entry)
            for reference, sha256 in needed(release):
                pending.append(self._needed(registry, entry.reference, reference, sha256))

    def _manifest(self, registry: Registry | None, entry: ReleaseEntry) -> Release:
        if registry is None:
            return self.store.check(entry.reference).release
        return registry.read(entry)[0]

    def _needed(
        self, registry: Registry | None, by: Reference, reference: Reference, sha256: str | None
    ) -> tuple[Registry | None, ReleaseEntry]:
        try:
            if registry is not None:
                found: tuple[Registry | None, ReleaseEntry] = registry, registry.find(reference)
            else:
                found = None, ReleaseEntry(reference, self.store.check(reference).sha256)
        except NotPublished as error:
            if not self.store.has(reference):
                raise NotPublished(f"{by} needs {reference}: {error}; nothing was installed") from error
            found = None, ReleaseEntry(reference, self.store.check(reference).sha256)
        if sha256 is not None and found[1].sha256 != sha256:
            raise ReleaseError(
                f"{by} needs {reference} as sha256:{sha256[:12]}, and there it is sha256:{found[1].sha256[:12]}; "
                "nothing was installed"
            )
        return found

    def _take(self, wanted: _Wanted) -> list[Install]:
        done = []
        for reference in sorted(wanted, key=str):
            registry, entry = wanted[reference]
            was_there = self.store.has(reference)
            there = self.store.check(reference) if registry is None else self.store.add(registry, entry)
            where = self.store.came_from(reference) if registry is None else registry.where
            notes = () if entry.yanked is None else (f"{reference} was yanked: {entry.yanked}",)
            done.append(Install(reference, there.sha256, where or f"file:{self.store.root}", was_there, notes))
        self.lock = self.lock.add({one.reference: LockedPin(one.sha256, one.where) for one in done})
        return done


_NEEDED = ("protocol", "prompts", "dataset", "extends")
_NEEDED_FOR = ("agent:", "trainer:", "model:", "extends:")


def needed(release: Release) -> Iterator[tuple[Reference, str | None]]:
    """The releases without which a component cannot be used: what it names; and their hashes where they are known."""
    for link in release.links:
        if link.release is not None and (link.role in _NEEDED or link.role.startswith(_NEEDED_FOR)):
            reference = parse(link.release)
            if isinstance(reference, Reference) and reference.kind in COMPONENTS and reference.version is not None:
                yield reference, link.sha256


def _check_component(reference: Reference) -> None:
    if reference.kind not in COMPONENTS:
        raise UsageError(f"{reference} is a {reference.kind}, which no spec names; nip-run get {reference} DIR gets it")
