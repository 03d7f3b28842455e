"""What the pages of a server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.server.boards.updates import Boards
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.web.pages.run_cache import RunPages
from runner.server.web.responses import Kept


@dataclass(frozen=True)
class Site:
    """What the pages share."""

    boards: Boards
    runs: RunPages
    kept: Kept = field(default_factory=Kept)

    @classmethod
    def of(cls, settings: Settings, database: Database) -> Site:
        return cls(Boards(settings, database), RunPages(settings))
