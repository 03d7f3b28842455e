"""Paths of boards in a server's folder, for the server, the board worker and `rebuild`."""

from __future__ import annotations

from runner.base.storage.safe_files import remove_folder
from runner.server.settings import Settings


class BoardPaths:
    """Paths of boards in a server's folder."""

    def __init__(self, settings: Settings) -> None:
        self.root = settings.folder / "boards"
        self.boards = self.root / "made"
        self.cache = self.root / "cache"
        self.current = self.root / "current"
        """A file that contains the name of the newest board."""


def delete_boards(settings: Settings) -> None:
    """Delete all boards and their caches. The server rebuilds them when it starts."""
    remove_folder(BoardPaths(settings).root)
