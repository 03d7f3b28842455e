"""Find the installed releases that a spec names by reference, in the lock and the store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.base.errors import NotFoundError, ReleaseError
from runner.base.text import did_you_mean
from runner.documents.releases.reference import Digest, Kind, Reference, parse_reference
from runner.registry.components.lockfile import Lock
from runner.registry.components.store import Installed, Store
from runner.registry.transports.locations import REGISTRY_VARIABLE
from runner.spec.components import ComponentUse

MAIN_FILES: Mapping[Kind, str] = {
    Kind.PROTOCOL: "protocol.yaml",
    Kind.AGENT: "agent.yaml",
    Kind.TRAINER: "trainer.yaml",
    Kind.SPEC: "spec.yaml",
    Kind.MODEL: "model.yaml",
}
"""The file that replaces a reference when a spec is loaded. A reference to prompts is replaced by their folder, and one
to a dataset by one of `DATASETS`."""

DATASETS = ("dataset.jsonl", "dataset.csv", "dataset.parquet", "dataset.json")


@dataclass(frozen=True)
class ReleaseFinder:
    """Finds the installed releases that the specs in a folder name."""

    folder: Path
    store: Store

    @cached_property
    def lock(self) -> Lock:
        return Lock.find_nearest(self.folder)

    def find(self, kind: Kind, text: str) -> ComponentUse:
        """Return the installed release that a reference in a spec names.

        Raises:
            UsageError: the text is not a reference to a release of this kind.
            NotFoundError: the release is not installed, or the lock does not pin it.
            ReleaseError: the release is damaged, or does not have the hash in the lock.
        """
        parsed = parse_reference(text, kind)
        reference = self._find_by_hash(parsed, kind) if isinstance(parsed, Digest) else self._find_pinned(parsed)
        installed = self._check(reference)
        if not isinstance(parsed, Digest) and installed.sha256 != self.lock.pins[reference].sha256:
            raise ReleaseError(
                f"{reference} is installed as sha256:{installed.sha256[:12]}, but {self.lock.path} pins "
                f"sha256:{self.lock.pins[reference].sha256[:12]}; nip-run uninstall {reference}, then nip-run install"
            )
        return ComponentUse(_main_path(installed), str(reference), installed.sha256)

    def _find_by_hash(self, digest: Digest, kind: Kind) -> Reference:
        """Return the installed release with a hash. The lock need not pin it, because the hash identifies it."""
        try:
            reference = self.store.find_by_hash(digest)
        except NotFoundError as error:
            raise NotFoundError(f"{digest} is not installed; {self._install_command(digest)}") from error
        if reference.kind != kind:
            raise ReleaseError(f"{digest} is {reference}, not a {kind}; name a {kind} here")
        return reference

    def _find_pinned(self, reference: Reference) -> Reference:
        """Return the release that the lock pins for a reference. Raises NotFoundError: the lock pins none."""
        pinned = self.lock.find(reference)
        if pinned is not None:
            return pinned
        if reference.version is not None and self.store.is_installed(reference):
            raise NotFoundError(
                f"{reference} is installed, but {self.lock.path} does not pin it; run nip-run install {reference}"
            )
        suggestion = suggest_release(reference, self.lock.pins).removeprefix("; ")
        hint = f". Or {suggestion}" if suggestion else ""
        raise NotFoundError(f"{reference} is not installed; {self._install_command(reference)}{hint}")

    def _install_command(self, reference: Reference | Digest) -> str:
        """Return the command that installs a release, with --from if neither environment nor lock names a registry."""
        default = os.environ.get(REGISTRY_VARIABLE) or self.lock.only_address()
        return f"nip-run install {reference}" + ("" if default else " --from WHERE")

    def _check(self, reference: Reference) -> Installed:
        try:
            return self.store.check(reference)
        except NotFoundError as error:
            raise NotFoundError(
                f"{reference} is not installed, but {self.lock.path} pins it; run nip-run install"
            ) from error


def suggest_release(reference: Reference, candidates: Iterable[Reference]) -> str:
    """Return `; did you mean ...?` with the release whose name is most similar, regardless of its owner."""
    by_name = {
        candidate.name: candidate for candidate in sorted(candidates, key=str) if candidate.kind == reference.kind
    }
    closest = by_name.get(reference.name) or next(
        (candidate for name, candidate in by_name.items() if did_you_mean(reference.name, [name])), None
    )
    if closest is None:
        return ""
    return f"; did you mean '{closest if reference.version else closest.unversioned}'?"


def _main_path(installed: Installed) -> Path:
    """Return the file or folder that replaces the reference to an installed release; see `MAIN_FILES`.

    Raises:
        ReleaseError: the release has no such file.
    """
    if installed.release.kind == Kind.PROMPTS:
        return installed.folder
    names = DATASETS if installed.release.kind == Kind.DATASET else (MAIN_FILES.get(installed.release.kind, ""),)
    main_file = next((name for name in names if installed.release.file(name) is not None), None)
    if main_file is None:
        raise ReleaseError(
            f"{installed.release.reference} cannot be used, because it has no {names[0]}; tell its publisher"
        )
    return installed.folder / main_file
