"""Exports runs and their parts to a tracking server, once or continuously while they play."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runner.base.errors import NipRunError, ServerUnreachable, UsageError
from runner.base.storage.locks import locked
from runner.exports.mlflow.games import GamesRecordBuilder
from runner.exports.mlflow.record import MlflowRun
from runner.exports.mlflow.sender import Sender
from runner.exports.mlflow.training import training_record
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status

EXPORTS_FOLDER, LOCK_FILE = "exports", ".mlflow.lock"
"""The file `LOCK_FILE` in the folder `EXPORTS_FOLDER` of a run is locked while a process sends the run."""
LOCK_SECONDS = 300.0
"""Seconds to wait for another process that sends the same run. Sending a large run may take minutes."""
POLL_SECONDS = 2.0
"""Seconds between two checks of a run that is playing."""


@dataclass
class ExportedRun:
    """The parts of one run that have been sent so far."""

    run_id: str
    mlflow_run_id: str
    page: str
    status: str
    sent: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "sent": dict(self.sent)}


class Exporter:
    """Sends runs. The games and tests of a training run become nested runs."""

    def __init__(self, sender: Sender, folders: Sequence[RunFolder], *, journal: bool) -> None:
        self._sender, self._folders, self._journal = sender, folders, journal
        self._games: dict[str, GamesRecordBuilder] = {}
        self._finished_parts: set[str] = set()
        """Ids of the parts that have been sent completely."""
        self.runs: dict[str, ExportedRun] = {}
        for folder in folders:
            if folder.manifest().is_tournament:
                raise UsageError(f"{folder.run_id} is a tournament; export the runs of its pairings instead")

    def send_new(self) -> bool:
        """Send the new data of all runs, and return whether a run is still playing.

        Raises:
            RunError: a run cannot be read, or the server cannot be reached. The server keeps the data it has received.
        """
        is_playing = False
        for folder in self._folders:
            manifest = folder.manifest()
            is_playing |= manifest.status == Status.RUNNING
            if not manifest.is_training_run:
                self._send_games(folder, self._parent_of(folder, manifest))
                continue
            self._send(folder, partial(training_record, folder, journal=self._journal))
            for part in Results.of(folder).parts_of(folder.run_id) if folder.name is None else ():
                if part.run_id not in self._finished_parts:
                    self._send_part(part, manifest)
        return is_playing

    def _send_part(self, part: RunFolder, training_manifest: Manifest) -> None:
        """Send the games of a part of a training run. A part that is done is not sent again."""
        is_done = part.manifest().status == Status.DONE  # read before sending, because the part may change meanwhile
        self._send_games(part, training_manifest)
        if is_done:
            self._finished_parts.add(part.run_id)
            self._games.pop(part.run_id).close()

    def follow(self, report: Callable[[str], None], wait: Callable[[float], None] = time.sleep) -> None:
        """Send new data until all runs have ended. While a run plays, an unreachable server is tried again.

        Raises:
            RunError: as `send_new`.
        """
        is_unreachable = False
        while True:
            have_ended = all(folder.manifest().status != Status.RUNNING for folder in self._folders)
            try:
                self.send_new()
            except ServerUnreachable as error:
                if have_ended:
                    raise
                if not is_unreachable:
                    report(f"{error}; retrying automatically while the run plays")
                is_unreachable = True
            else:
                is_unreachable = False
                if have_ended:
                    return
            wait(POLL_SECONDS)

    def _parent_of(self, folder: RunFolder, manifest: Manifest) -> Manifest | None:
        if manifest.parent_run_id is None:
            return None
        try:
            return folder.sibling(manifest.parent_run_id).manifest()
        except NipRunError:  # `common_fields` notes that the parent is missing
            return None

    def _send_games(self, folder: RunFolder, parent: Manifest | None) -> None:
        games = self._games.setdefault(folder.run_id, GamesRecordBuilder(folder, journal=self._journal))
        self._send(folder, lambda: games.record(parent))

    def _send(self, folder: RunFolder, build_record: Callable[[], MlflowRun]) -> None:
        """Build and send a record while no other process on this machine sends the same run."""
        lock = folder.make(EXPORTS_FOLDER) / LOCK_FILE
        with locked(lock, f"the export of {folder.run_id} to MLflow", LOCK_SECONDS):
            record = build_record()
            sent = self._sender.send(record)
        page = self._sender.page_url(sent.run_id)
        exported = self.runs.setdefault(folder.run_id, ExportedRun(folder.run_id, sent.run_id, page, record.status))
        exported.status = record.status
        exported.sent += sent.counts
        exported.notes.extend(note for note in sent.notes if note not in exported.notes)

    def close(self) -> None:
        for games in self._games.values():
            games.close()
        self._games.clear()
