"""Runs and their parts to a tracking server: once, or again and again while they play."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import NipRunError, ServerUnreachable
from runner.base.storage.locks import locked
from runner.exports.mlflow.games import MlflowGames
from runner.exports.mlflow.sender import Sender, SentParts
from runner.exports.mlflow.training import training_record
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status

EXPORTS, LOCK = "exports", ".mlflow.lock"
LOCK_SECONDS = 300.0
"""How long a process waits for another that sends the same run; of a large run, that may take a while."""
LOOK_SECONDS = 2.0
"""Between two looks at a run that plays."""


@dataclass
class OfRun:
    """What was sent of one run, all looks together."""

    run_id: str
    mlflow_run_id: str
    page: str
    status: str
    sent: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "sent": dict(self.sent)}


class Exporter:
    """Sends some runs, and of a training run its games and tests, too, nested below it."""

    def __init__(self, sender: Sender, folders: Sequence[RunFolder], *, journal: bool) -> None:
        self._sender, self._folders, self._journal = sender, folders, journal
        self._games: dict[str, MlflowGames] = {}
        self._over: set[str] = set()
        """Parts that have ended, and were sent since."""
        self.runs: dict[str, OfRun] = {}

    def look(self) -> bool:
        """Send what is new; whether a run still plays.

        Raises:
            RunError: a run cannot be read, or the server cannot be asked; what was sent is kept.
        """
        playing = False
        for folder in self._folders:
            manifest = folder.manifest()
            playing |= manifest.status == Status.RUNNING
            if not manifest.is_training_run:
                self._send_games(folder, self._parent_of(folder, manifest))
                continue
            self._send_training(folder)
            for part in Results.of(folder).parts_of(folder.run_id) if folder.name is None else ():
                if part.run_id not in self._over:
                    # Its status is read first: what it becomes while it is sent is sent at the next look.
                    over = part.manifest().status == Status.DONE
                    self._send_games(part, manifest)
                    if over:
                        self._over.add(part.run_id)
                        self._games.pop(part.run_id).close()
        return playing

    def follow(self, told: Callable[[str], None], wait: Callable[[float], None] = time.sleep) -> None:
        """Look until all runs have ended. A server that is away while they play is asked again; at the end it is not.

        Raises:
            RunError: as `look`.
        """
        away = False
        while True:
            over = not self._any_plays()
            try:
                self.look()
            except ServerUnreachable as error:
                if over:
                    raise
                if not away:
                    told(f"{error}; it is asked again while the run plays")
                away = True
            else:
                away = False
                if over:
                    return
            wait(LOOK_SECONDS)

    def _any_plays(self) -> bool:
        return any(folder.manifest().status == Status.RUNNING for folder in self._folders)

    def _parent_of(self, folder: RunFolder, manifest: Manifest) -> Manifest | None:
        if manifest.parent_run_id is None:
            return None
        try:
            return folder.beside(manifest.parent_run_id).manifest()
        except NipRunError:  # the record says that it stands by itself
            return None

    def _send_games(self, folder: RunFolder, parent: Manifest | None) -> None:
        games = self._games.setdefault(folder.run_id, MlflowGames(folder, journal=self._journal))
        with self._alone(folder):
            record = games.record(parent)
            self._count(folder, record.status, self._sender.send(record))

    def _send_training(self, folder: RunFolder) -> None:
        with self._alone(folder):
            record = training_record(folder, journal=self._journal)
            self._count(folder, record.status, self._sender.send(record))

    def _count(self, folder: RunFolder, status: str, sent: SentParts) -> None:
        page = self._sender.page(sent.run_id)
        of = self.runs.setdefault(folder.run_id, OfRun(folder.run_id, sent.run_id, page, status))
        of.status = status
        of.sent += sent.counts
        of.notes.extend(note for note in sent.notes if note not in of.notes)

    @contextmanager
    def _alone(self, folder: RunFolder) -> Iterator[None]:
        """Keep others of this machine from sending the same run meanwhile."""
        path = folder.make(EXPORTS) / LOCK
        with locked(path, f"the export of {folder.run_id} to MLflow", LOCK_SECONDS):
            yield

    def close(self) -> None:
        for games in self._games.values():
            games.close()
        self._games.clear()
