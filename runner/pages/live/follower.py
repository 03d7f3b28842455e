"""Follows a run for the pages of `nip-run view`: while it plays, after it was killed, and when it is resumed.

`LiveRuns` updates a `Follower` for each run in one thread. The pages read its snapshot.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from runner.analysis.results import analysis_files
from runner.base.errors import NipRunError
from runner.base.storage.atomic_files import read_json
from runner.pages.live.journal_state import JournalReading
from runner.pages.live.piece_cache import PieceCache
from runner.pages.report.run_games import MAX_PLAIN_GAMES, CollectedGames
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.results.notes import Notes

UPDATE_SECONDS = 1.0
"""Minimum time between two updates of a run, and between two updates of the games on its page."""
READ_SECONDS = 0.5
"""Approximate time of one read of the journal. A long journal takes several reads."""
IDLE_FACTOR = 10
"""After an update, the follower waits for 10 times the processor time that the update took."""
RATE_SECONDS = 60.0
"""Period over which the rate of games is measured."""

EMPTY = CollectedGames({"count": 0, "lists": [], "pieces": []}, ())
"""The games of a run whose journal has not been read."""


@dataclass(frozen=True)
class FollowedRun:
    """A snapshot of a run for its pages."""

    generation: int = 0
    """Number of times that the run was read again from the start."""
    games: CollectedGames = EMPTY
    state: Mapping[str, Any] = field(default_factory=dict)
    """The progress of the run, which the page's script requests every second."""


def slug_of(place: int, generation: int) -> str:
    """Return the prefix of the names of a run's pieces. It changes whenever the run is read again from the start."""
    return f"r{place}" + (f"g{generation}" if generation else "")


class Follower:
    """Follows one run. One thread calls `update`; any thread may read `snapshot`."""

    def __init__(self, folder: RunFolder, place: int, pieces: PieceCache) -> None:
        self.folder, self.notes = folder, Notes(folder)
        self._place, self._pieces = place, pieces
        self.snapshot = FollowedRun()
        self._reading: JournalReading | None = None
        self._read_key: tuple[Any, ...] = ()
        """Facts of the manifest when `_reading` was opened. If they change, the journal must be read again."""
        self._generation = 0
        self._problem: str | None = None
        self._damaged_at: tuple[int, int] | None = None
        """The size and the time of the journal when reading it last failed."""
        self._recent_counts: deque[tuple[float, int]] = deque()
        """Times within `RATE_SECONDS`, each with the number of finished games."""
        self._has_more = False
        """Whether the journal has records that were not read yet."""
        self._games = EMPTY
        self._publish_after = self._reopen_after = 0.0
        """Earliest times for the next update of the games, and for reading a stale journal again."""
        self._update_start = 0.0
        """Processor time of this thread at the start of the current update."""

    @property
    def slug(self) -> str:
        """The current prefix of the names of the run's pieces."""
        return slug_of(self._place, self._generation)

    def collect(self) -> CollectedGames:
        """Return the games in the snapshot, with facts about the run for the page."""
        snapshot = self.snapshot
        noted = 0
        with suppress(NipRunError):  # the page reports the error when it loads the notes
            noted = len(self.notes.all())
        facts = {
            "slug": slug_of(self._place, snapshot.generation), "generation": snapshot.generation, "notes": noted,
            "analyses": len(analysis_files(self.folder)),
        }  # fmt: skip
        return replace(
            snapshot.games,
            about={**snapshot.games.about, **facts, "state": snapshot.state},
            is_part=snapshot.state.get("standing") != "playing" and snapshot.state.get("reading", True),
            problem=snapshot.state.get("problem"),
        )

    def update(self) -> float:
        """Read new records and update the snapshot; return the seconds to wait before the next update."""
        self._update_start = time.thread_time()
        manifest: Manifest | None = None
        try:
            manifest = self.folder.manifest()
            self._read(manifest)
            self._problem = None
        except Exception as error:  # noqa: BLE001 - the page shows the error, and other runs are still followed
            self._problem = str(error) if isinstance(error, NipRunError) else f"{type(error).__name__}: {error}"
            self._reset()
            self._damaged_at = self._file_state()
        self._update_snapshot(manifest)
        return 0.0 if self._has_more else max(UPDATE_SECONDS, IDLE_FACTOR * (time.thread_time() - self._update_start))

    def _read(self, manifest: Manifest) -> None:
        """Read new records of the journal, or all if the run has changed. Raises as `JournalReading`."""
        if not self.folder.journal.is_file():
            return
        stopped = manifest.status in PLAYED
        read_key = (manifest.identity, manifest.dataset_sha256, manifest.game_sha256, stopped and manifest.rollouts)
        has_stopping_rule = self._reading is not None and self._reading.plan.spec.experiment.until is not None
        compared = len(read_key) if has_stopping_rule else 3  # only a stopping rule changes the number of games
        if self._read_key[:compared] != read_key[:compared]:
            self._reset()
        self._read_key = read_key
        if self._reading is not None and self._reading.is_stale and time.monotonic() >= self._reopen_after:
            self._reset()
        if self._reading is None:
            if self._problem is not None and self._file_state() == self._damaged_at:
                raise _UnchangedProblem(self._problem)  # reading the journal again would fail again
            self._reading = JournalReading(self.folder, self.slug, self._pieces.store)
            self._reopen_after = time.monotonic() + IDLE_FACTOR * (time.thread_time() - self._update_start)
            self._update_start = time.thread_time()  # opening happens once, so its time must not delay updates
        self._has_more = self._reading.step(READ_SECONDS)
        self._publish(self._reading)

    def _publish(self, reading: JournalReading) -> None:
        """Update the games of the snapshot, unless the last update was recent or there are too few games."""
        is_current = self._games.results is not None and reading.listed == self._games.about["count"]
        if is_current or time.monotonic() < self._publish_after:
            return
        if self._has_more and reading.listed < MAX_PLAIN_GAMES:
            return  # the next read will soon find enough games for a page
        start = time.thread_time()
        self._games = reading.collect()
        self._publish_after = time.monotonic() + max(UPDATE_SECONDS, IDLE_FACTOR * (time.thread_time() - start))

    def _reset(self) -> None:
        """Drop all data that was read, because the journal has changed or is damaged."""
        self._has_more = False
        if self._reading is None:
            return
        self._reading.close()
        self._reading, self._games = None, EMPTY
        self._pieces.drop(f"{self.slug}-")
        self._generation += 1
        self._publish_after = 0.0
        self._recent_counts.clear()

    def _file_state(self) -> tuple[int, int] | None:
        """Return the size and the modification time of the journal, or None if it does not exist."""
        with suppress(OSError):
            stat = self.folder.journal.stat()
            return stat.st_size, stat.st_mtime_ns
        return None

    def _update_snapshot(self, manifest: Manifest | None) -> None:
        reading = self._reading
        counts = {} if reading is None else reading.counts()
        standing = "damaged" if manifest is None else self._run_standing(manifest)
        state = {
            "run_id": self.folder.run_id,
            "standing": standing,
            "why": None if manifest is None else manifest.why_stopped,
            "problem": self._problem,
            "reading": self._has_more or (reading is not None and reading.listed > self._games.about["count"]),
            "generation": self._generation,
            "games": {name: self._games.about[name] for name in EMPTY.about},
            "notes": "-".join(map(str, self.notes.state())),
            **counts,
            **self._rate(standing, counts),
        }
        self.snapshot = FollowedRun(self._generation, self._games, state)

    def _run_standing(self, manifest: Manifest) -> str:
        """Return `playing`, `killed` (the manifest says it runs, but no process holds its lock), or the status."""
        if manifest.status == Status.RUNNING:
            return "playing"
        with suppress(NipRunError):
            if read_json(self.folder.manifest_path).get("status") == Status.RUNNING:
                return "killed"
        return manifest.status.value

    def _rate(self, standing: str, counts: Mapping[str, Any]) -> dict[str, object]:
        """Return the recent rate in games per second, and the seconds left.

        Both are unknown (None) until all earlier games have been read, and after the run.
        """
        if standing != "playing" or not counts or self._has_more:
            self._recent_counts.clear()
            return {"per_second": None, "seconds_left": None}
        now = time.monotonic()
        self._recent_counts.append((now, counts["done"]))
        while len(self._recent_counts) > 2 and now - self._recent_counts[1][0] >= RATE_SECONDS:
            self._recent_counts.popleft()
        earlier, done = self._recent_counts[0]
        rate = (counts["done"] - done) / (now - earlier) if now > earlier else 0.0
        left = (counts["total"] - counts["done"]) / rate if rate else None
        return {"per_second": rate or None, "seconds_left": left}

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


class _UnchangedProblem(NipRunError):
    """Raised if the journal had an error at the last update and has not changed since."""
