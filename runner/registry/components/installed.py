"""What a spec names by reference, into the installed release that is meant: by the lock, from the store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.base.errors import NotPublished, ReleaseError
from runner.base.text import did_you_mean
from runner.documents.releases.reference import Digest, Kind, Reference, parse
from runner.registry.components.lockfile import Lock
from runner.registry.components.store import Installed, Store
from runner.registry.transports.locations import VARIABLE
from runner.spec.components import ComponentUse

MAIN_FILES: Mapping[Kind, str] = {
    Kind.PROTOCOL: "protocol.yaml",
    Kind.AGENT: "agent.yaml",
    Kind.TRAINER: "trainer.yaml",
    Kind.SPEC: "spec.yaml",
    Kind.MODEL: "model.yaml",
}
"""The file of a release that a reference to it stands for; of prompts it is the folder, of a dataset its one table."""

DATASETS = ("dataset.jsonl", "dataset.csv", "dataset.parquet", "dataset.json")


@dataclass(frozen=True)
class Finder:
    """Looks up what the specs of a folder name."""

    folder: Path
    store: Store

    @cached_property
    def lock(self) -> Lock:
        return Lock.above(self.folder)

    def find(self, kind: Kind, named: str) -> ComponentUse:
        """See `FindComponent`.

        Raises:
            UsageError: it is no reference to a release of this kind.
            NotPublished: it is not installed, or the lock does not name it.
            ReleaseError: it is damaged, or is another than the lock says.
        """
        meant = parse(named, kind)
        reference = self._by_hash(meant, kind) if isinstance(meant, Digest) else self._pinned(meant)
        there = self._checked(reference)
        if not isinstance(meant, Digest) and there.sha256 != self.lock.pins[reference].sha256:
            raise ReleaseError(
                f"{reference} is installed as sha256:{there.sha256[:12]}, and {self.lock.path} pins "
                f"sha256:{self.lock.pins[reference].sha256[:12]}; nip-run uninstall {reference}, then nip-run install"
            )
        return ComponentUse(_main(there), str(reference), there.sha256)

    def _by_hash(self, digest: Digest, kind: Kind) -> Reference:
        """Which needs no pin: it says the one release itself."""
        try:
            found = self.store.by_hash(digest)
        except NotPublished as error:
            raise NotPublished(f"{digest} is not installed; {self._to_install(digest)}") from error
        if found.kind != kind:
            raise ReleaseError(f"{digest} is {found}, and a {kind} belongs here")
        return found

    def _pinned(self, meant: Reference) -> Reference:
        found = self.lock.find(meant)
        if found is not None:
            return found
        if meant.version is not None and self.store.has(meant):
            raise NotPublished(f"{meant} is installed, and {self.lock.path} does not pin it; nip-run install {meant}")
        near = nearest(meant, self.lock.pins).removeprefix("; ")
        hint = f". Or {near}" if near else ""
        raise NotPublished(f"{meant} is not installed; {self._to_install(meant)}{hint}")

    def _to_install(self, meant: Reference | Digest) -> str:
        """The command, with the registry where that does not follow from the lock or the environment."""
        usual = os.environ.get(VARIABLE) or self.lock.only_where()
        return f"nip-run install {meant}" + ("" if usual else " --from WHERE")

    def _checked(self, reference: Reference) -> Installed:
        try:
            return self.store.check(reference)
        except NotPublished as error:
            raise NotPublished(
                f"{reference} is not installed here, though {self.lock.path} pins it; nip-run install"
            ) from error


def nearest(meant: Reference, known: Iterable[Reference]) -> str:
    """`; did you mean ...?` with the release that is named most like this one, by its own name, whoever its owner."""
    named = {one.name: one for one in sorted(known, key=str) if one.kind == meant.kind}
    found = named.get(meant.name) or next((one for n, one in named.items() if did_you_mean(meant.name, [n])), None)
    return "" if found is None else f"; did you mean '{found if meant.version else found.at('')}'?".replace("@'", "'")


def _main(there: Installed) -> Path:
    """The file or folder that an installed release stands for.

    Raises:
        ReleaseError: it has none.
    """
    if there.release.kind == Kind.PROMPTS:
        return there.folder
    names = DATASETS if there.release.kind == Kind.DATASET else (MAIN_FILES.get(there.release.kind, ""),)
    found = next((name for name in names if there.release.file(name) is not None), None)
    if found is None:
        raise ReleaseError(f"{there.release.reference} has no {names[0]}, so that nothing can be made of it")
    return there.folder / found
