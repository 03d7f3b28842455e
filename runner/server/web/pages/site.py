"""What the pages of a server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.server.boards.updates import Boards
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.web.pages.run_cache import RunPages
from runner.server.web.responses import PageCache


@dataclass(frozen=True)
class ServerSite:
    """What the pages share."""

    boards: Boards
    runs: RunPages
    kept: PageCache = field(default_factory=PageCache)

    @classmethod
    def of(cls, settings: Settings, database: Database) -> ServerSite:
        return cls(Boards(settings, database), RunPages(settings))
