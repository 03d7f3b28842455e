"""Where boards are in a server's folder; all of it can be made again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.base.storage.safe_files import remove_folder
from runner.server.settings import Settings


@dataclass(frozen=True)
class BoardPaths:
    """Where boards are in a server's folder."""

    root: Path

    @classmethod
    def of(cls, settings: Settings) -> BoardPaths:
        return cls(settings.folder / "boards")

    @property
    def made(self) -> Path:
        return self.root / "made"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def current(self) -> Path:
        return self.root / "current"


def forget_boards(settings: Settings) -> None:
    """Have everything be made again from the database and the blobs, as `--rebuild` does."""
    remove_folder(BoardPaths.of(settings).root)
