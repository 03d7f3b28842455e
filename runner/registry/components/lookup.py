"""What a spec names by reference, looked up where it is first met: most specs name no release, and load no registry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.package_data import is_folder
from runner.documents.releases.reference import Kind
from runner.spec.components import ComponentUse, FindComponent

if TYPE_CHECKING:
    from runner.registry.components.store import Store


def finder(spec: Path | None = None, store: Store | None = None) -> FindComponent:
    """Looks up what a spec's file names, by the lock that is nearest above it; None: a spec of the current folder."""
    folder = Path.cwd() if spec is None else spec.absolute().parent

    @cache
    def find_of() -> FindComponent:
        from runner.registry.components.installed import Finder
        from runner.registry.components.store import Store

        return Finder(folder, store or Store()).find

    def find(kind: Kind, named: str) -> ComponentUse:
        return find_of()(kind, named)

    return find


def finder_of(source: str | Path | Mapping[str, Any]) -> FindComponent:
    """`finder` for a spec however it is given: its file, built in or not, the folder of a run, or a mapping."""
    if isinstance(source, Mapping):
        return finder()
    path = Path(source)
    return finder(path / "spec.yaml" if is_folder(path) else path)
