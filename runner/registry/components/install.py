"""Install components by reference or from a lock (`nip-run.lock`), for `nip-run install`.

The installer first finds all releases that the components need, and then installs all of them. So if a release is
missing, nothing is installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import COMPONENTS, Digest, Reference, parse_reference
from runner.registry.components.lockfile import Lock, LockedPin
from runner.registry.components.store import Store
from runner.registry.transports.locations import REGISTRY_VARIABLE, connect_to_read
from runner.registry.transports.registry import Registry, ReleaseEntry

MAX_DEPENDENCIES = 1_000


@dataclass(frozen=True)
class InstallResult:
    """The result of installing one release."""

    reference: Reference
    sha256: str
    address: str
    """The registry that the release was installed from, now or before."""
    already_existed: bool
    """Whether the release was installed before."""
    notes: tuple[str, ...] = ()


_Selection = dict[Reference, tuple[Registry | None, ReleaseEntry]]
"""Releases to install, with the registry of each. Installed releases have no registry (None)."""


class Installer:
    """Installs releases into a store and pins them in a lock. Closing it closes the registries that it opened."""

    def __init__(self, store: Store, lock: Lock, address: str | None = None) -> None:
        self.store, self.lock, self.address = store, lock, address
        self._registries: dict[str, Registry] = {}
        self._exit_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def install(self, references: Sequence[str]) -> list[InstallResult]:
        """Install releases by reference with all releases that they need, and pin them.

        Raises:
            UsageError: a reference does not name a component, or no registry is known.
            NotFoundError: a release, or one that it needs, is not in the registry; nothing was installed.
            TakenError: the store or the lock has another release of this name; the lock is unchanged.
            ReleaseError: a file is damaged.
        """
        selected: _Selection = {}
        for text in references:
            reference = parse_reference(text)
            registry, entry = self._find(reference)
            _check_component(entry.reference)
            self._select(registry, entry, selected)
        return self._install_all(selected)

    def restore(self) -> list[InstallResult]:
        """Install all releases that the lock pins, with the same hashes, and check releases that are installed already.

        Raises:
            NotFoundError, ReleaseError: as `install`; also if the registry's release does not have the pinned hash.
        """
        selected: _Selection = {}
        for reference, pin in sorted(self.lock.pins.items(), key=lambda item: str(item[0])):
            if self.store.is_installed(reference) and self.store.check(reference).sha256 == pin.sha256:
                selected[reference] = None, ReleaseEntry(reference, pin.sha256)
                continue
            registry = self._registry(self.address or self.lock.address_of(reference))
            entry = registry.find(reference)
            if entry.sha256 != pin.sha256:
                raise ReleaseError(
                    f"{reference} in {registry.address} is sha256:{entry.sha256[:12]}, but {self.lock.path} pins "
                    f"sha256:{pin.sha256[:12]}: the registry's release is not the one that was installed before. To "
                    f"accept it, remove the line of {reference} from the lock, and install it again"
                )
            selected[reference] = (registry, entry)
        return self._install_all(selected)

    def _registry(self, address: str | None) -> Registry:
        key = address or ""
        if key not in self._registries:
            self._registries[key] = self._exit_stack.enter_context(connect_to_read(address))
        return self._registries[key]

    def _find(self, reference: Reference | Digest) -> tuple[Registry | None, ReleaseEntry]:
        """Return a release with the registry to install it from, or with None if it is already installed.

        If the user has named a registry, all releases come from it. If not, a release in the lock comes from the
        registry that the lock names, and other releases come from the default registry.
        """
        if self.address is None and isinstance(reference, Reference):
            if reference in self.lock.pins:
                registry = self._registry(self.lock.address_of(reference))
                return registry, registry.find(reference)
            if reference.version and self.store.is_installed(reference):
                return None, self._installed(reference)
        default_address = None if os.environ.get(REGISTRY_VARIABLE) else self.lock.only_address()
        registry = self._registry(self.address or default_address)
        return registry, registry.find(reference)

    def _installed(self, reference: Reference) -> ReleaseEntry:
        """Return the entry of an installed release. Raises as `Store.check`."""
        return ReleaseEntry(reference, self.store.check(reference).sha256)

    def _select(self, registry: Registry | None, entry: ReleaseEntry, selected: _Selection) -> None:
        """Select a release and all releases that it needs. These are in the same registry, or installed already."""
        pending = [(registry, entry)]
        while pending:
            registry, entry = pending.pop()
            if entry.reference in selected:
                continue
            selected[entry.reference] = (registry, entry)
            if len(selected) > MAX_DEPENDENCIES:
                raise ReleaseError(
                    f"the releases need more than {MAX_DEPENDENCIES:,} others, which is the limit; nothing was "
                    f"installed. Tell the publisher of {entry.reference}"
                )
            release = self._read_manifest(registry, entry)
            for reference, sha256 in find_dependencies(release):
                pending.append(self._find_dependency(registry, entry.reference, reference, sha256))

    def _read_manifest(self, registry: Registry | None, entry: ReleaseEntry) -> Release:
        if registry is None:
            return self.store.check(entry.reference).release
        return registry.read_manifest(entry)[0]

    def _find_dependency(
        self, registry: Registry | None, dependent: Reference, reference: Reference, sha256: str | None
    ) -> tuple[Registry | None, ReleaseEntry]:
        """Return a release that `dependent` needs, with the registry to install it from; see `_find`."""
        try:
            entry = self._installed(reference) if registry is None else registry.find(reference)
        except NotFoundError as error:
            if not self.store.is_installed(reference):
                raise NotFoundError(f"nothing was installed, because {dependent} needs {reference}: {error}") from error
            registry, entry = None, self._installed(reference)
        if sha256 is not None and entry.sha256 != sha256:
            raise ReleaseError(
                f"{dependent} needs {reference} as sha256:{sha256[:12]}, but the registry has "
                f"sha256:{entry.sha256[:12]}; nothing was installed. Tell the publisher of {dependent}"
            )
        return registry, entry

    def _install_all(self, selected: _Selection) -> list[InstallResult]:
        results = []
        for reference in sorted(selected, key=str):
            registry, entry = selected[reference]
            already_existed = self.store.is_installed(reference)
            installed = self.store.check(reference) if registry is None else self.store.add(registry, entry)
            address = self.store.find_origin(reference) if registry is None else registry.address
            notes = () if entry.yanked is None else (f"{reference} was yanked: {entry.yanked}",)
            results.append(
                InstallResult(reference, installed.sha256, address or f"file:{self.store.root}", already_existed, notes)
            )
        self.lock = self.lock.add({result.reference: LockedPin(result.sha256, result.address) for result in results})
        return results


_NEEDED_ROLES = ("protocol", "prompts", "dataset", "extends")
_NEEDED_ROLE_PREFIXES = ("agent:", "trainer:", "model:", "extends:")
"""Roles of the links to releases that a component needs, and prefixes of such roles."""


def find_dependencies(release: Release) -> Iterator[tuple[Reference, str | None]]:
    """Yield the releases that a component needs, each with its hash, or with None if the component pins no hash."""
    for link in release.links:
        if link.release is not None and (link.role in _NEEDED_ROLES or link.role.startswith(_NEEDED_ROLE_PREFIXES)):
            reference = parse_reference(link.release)
            if isinstance(reference, Reference) and reference.kind in COMPONENTS and reference.version is not None:
                yield reference, link.sha256


def _check_component(reference: Reference) -> None:
    if reference.kind not in COMPONENTS:
        raise UsageError(
            f"{reference} is a {reference.kind}, which cannot be installed; run nip-run get {reference} DIR instead"
        )
