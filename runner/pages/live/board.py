"""A leaderboard as a page that a server makes anew each time it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from runner.base.errors import UsageError
from runner.pages.boards.lists import BoardPage
from runner.pages.boards.page import board_site
from runner.pages.live.piece_cache import PieceCache
from runner.pages.site import as_index


class BoardPages:
    """What a server serves of a leaderboard, which `read` finds as it is now; see `viewing.server.Served`."""

    def __init__(self, read: Callable[[], BoardPage]) -> None:
        self._read, self._pieces = read, PieceCache()

    def page(self) -> bytes:
        """The board's page. Raises what reading the board raises."""
        return as_index(board_site(self._read(), self._pieces.keep))

    def state(self) -> bytes:
        """Nothing of a board changes while it is looked at."""
        return orjson.dumps({"format": 1, "runs": []})

    def piece(self, name: str) -> bytes | None:
        return self._pieces.get(name)

    def note(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Raises:
        UsageError: notes are kept of runs.
        """
        del data
        raise UsageError("notes are kept of runs, and this page shows a leaderboard")
