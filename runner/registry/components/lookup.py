"""Give the loader of specs a function that finds the releases that a spec names.

Most specs name no release, and the code that finds releases is slow to import. The first call imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.package_data import is_folder
from runner.documents.releases.reference import Kind
from runner.spec.components import ComponentUse, FindComponent

if TYPE_CHECKING:
    from runner.registry.components.store import Store


def make_finder(spec: Path | None = None, store: Store | None = None) -> FindComponent:
    """Return a function that finds the releases that a spec names, with the lock nearest to the spec file.

    If `spec` is None, the lock nearest to the current folder is used.
    """
    folder = Path.cwd() if spec is None else spec.absolute().parent

    @cache
    def load_finder() -> FindComponent:
        from runner.registry.components.installed import ReleaseFinder
        from runner.registry.components.store import Store

        return ReleaseFinder(folder, store or Store()).find

    def find(kind: Kind, text: str) -> ComponentUse:
        return load_finder()(kind, text)

    return find


def make_finder_for(source: str | Path | Mapping[str, object]) -> FindComponent:
    """Return the function of `make_finder` for a spec that is given as a file, a run's folder, or a mapping."""
    if isinstance(source, Mapping):
        return make_finder()
    path = Path(source)
    return make_finder(path / "spec.yaml" if is_folder(path) else path)
