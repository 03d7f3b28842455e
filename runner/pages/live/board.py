"""The leaderboard page of `nip-run view`, which is rendered again each time that a browser opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from runner.base.errors import UsageError
from runner.pages.boards.lists import BoardPage
from runner.pages.boards.page import board_site
from runner.pages.html import policy
from runner.pages.live.piece_cache import PieceCache
from runner.pages.site import as_index


class BoardPages:
    """The content of a leaderboard's server: a `runner.pages.live.server.LiveContent`. `read` loads the board."""

    def __init__(self, read: Callable[[], BoardPage]) -> None:
        self._read, self._pieces = read, PieceCache()

    def page(self) -> bytes:
        """Return the board's page. Raises the errors of `read`."""
        return as_index(board_site(self._read(), self._pieces.store))

    def state(self) -> bytes:
        """Return an empty state, because a board's page does not update itself."""
        return orjson.dumps({"format": 1, "runs": []})

    def piece(self, name: str) -> bytes | None:
        return self._pieces.get(name)

    def policy(self) -> str:
        """Return the content security policy of all pages."""
        return policy(connects=True)

    def post(self, name: str, data: Mapping[str, object]) -> dict[str, object] | None:
        """Refuse a note.

        Raises:
            UsageError: only runs have notes.
        """
        del data
        if name != "notes":
            return None
        raise UsageError("a leaderboard has no notes; write notes on the page of a run (nip-run view RUN)")
