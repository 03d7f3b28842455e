"""Components published to a registry in a folder, and a project that installs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from runner.documents.releases.reference import Kind
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import PublishResult
from tests.support.processes import nip_run_here


def component_naming(name: str, version: str = "1", *, licence: str = "CC-BY-4.0", **fields: Any) -> PublisherChoices:
    return PublisherChoices(owner="acme", name=name, version=version, licence=licence, **fields)


def publish_component(
    registry: Path, path: Path, kind: Kind, choices: PublisherChoices, part: str | None = None
) -> PublishResult:
    """Publish a component to the registry in a folder."""
    with connect(str(registry)) as connected:
        (result,), _ = connected.publish([build_component_draft(path, kind, choices, part).bundle()], "a test")
    return result


@dataclass(frozen=True)
class Project:
    """A folder with specs of a user who has their own store for installed components."""

    folder: Path
    store: Path
    registry: Path

    @classmethod
    def create(cls, root: Path, registry: Path) -> Project:
        (root / "project").mkdir(parents=True)
        return cls(root / "project", root / "store", registry)

    @property
    def variables(self) -> dict[str, str]:
        return {"NIP_RUN_STORE": str(self.store), "NIP_RUN_REGISTRY": str(self.registry)}

    def nip_run(self, *arguments: str | Path) -> CompletedProcess[str]:
        """Run a command in the process of the test."""
        return nip_run_here(*arguments, cwd=self.folder, **self.variables)

    def install(self, *references: str) -> None:
        process = self.nip_run("install", *references)
        assert process.returncode == 0, process.stderr
