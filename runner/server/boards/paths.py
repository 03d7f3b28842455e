"""Paths of boards in a server's folder. Boards can be rebuilt from the database and the blobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.base.storage.safe_files import remove_folder
from runner.server.settings import Settings


@dataclass(frozen=True)
class BoardPaths:
    """Paths of boards in a server's folder."""

    root: Path

    @classmethod
    def from_settings(cls, settings: Settings) -> BoardPaths:
        return cls(settings.folder / "boards")

    @property
    def boards(self) -> Path:
        return self.root / "made"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def current(self) -> Path:
        return self.root / "current"


def forget_boards(settings: Settings) -> None:
    """Delete all boards and caches, so that the next server rebuilds them."""
    remove_folder(BoardPaths.from_settings(settings).root)
