"""Small releases, published to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.registry import Registry


def bundle(
    text: bytes = b"x\n", name: str = "tiny", version: str = "1", more: Mapping[str, Content] | None = None
) -> Bundle:
    release = Release(kind=Kind.RUN, owner="acme", name=name, version=version)
    return Bundle.of(release, {"README.md": text, "data/a.txt": b"one\n", **(more or {})})


def registry(folder: Path) -> Registry:
    return Registry(FolderTransport(str(folder)))


def publish(folder: Path, *bundles: Bundle) -> list[bool]:
    return [release.already_existed for release in registry(folder).publish(bundles, "Publish")[0]]
