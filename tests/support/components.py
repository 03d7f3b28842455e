"""Components published into a folder, and a project with a store of its own that installs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from runner.documents.releases.reference import Kind
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import Naming
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import PublishResult
from tests.support.processes import nip_run_here


def naming(name: str, version: str = "1", *, licence: str = "CC-BY-4.0", **said: Any) -> Naming:
    return Naming(owner="acme", name=name, version=version, licence=licence, **said)


def published(registry: Path, path: Path, kind: Kind, named: Naming, part: str | None = None) -> PublishResult:
    """A component, put into a registry's folder."""
    with connect(str(registry)) as there:
        (one,), _ = there.publish([build_component_draft(path, kind, named, part).bundle()], "a test")
    return one


@dataclass(frozen=True)
class Project:
    """A folder with specs, of a user who has a store of their own."""

    folder: Path
    store: Path
    registry: Path

    @classmethod
    def at(cls, root: Path, registry: Path) -> Project:
        (root / "project").mkdir(parents=True)
        return cls(root / "project", root / "store", registry)

    @property
    def variables(self) -> dict[str, str]:
        return {"NIP_RUN_STORE": str(self.store), "NIP_RUN_REGISTRY": str(self.registry)}

    def here(self, *words: str | Path) -> CompletedProcess[str]:
        """A command in this process."""
        return nip_run_here(*words, cwd=self.folder, **self.variables)

    def installs(self, *references: str) -> None:
        done = self.here("install", *references)
        assert done.returncode == 0, done.stderr
