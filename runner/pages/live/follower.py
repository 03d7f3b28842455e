"""One run as it stands, while it plays, after it was killed, and when it goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from runner.base.errors import NipRunError
from runner.base.storage.atomic_files import read_json
from runner.pages.live.journal_state import JournalReading
from runner.pages.live.piece_cache import PieceCache
from runner.pages.report.run_games import FIRST, Gathered
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.results.notes import Notes

LOOK_SECONDS = 1.0
"""Between two looks at a journal, at least."""
STEP_SECONDS = 0.5
"""How long one look reads, about; a run of many games is read in many."""
SHARE = 10
"""A look, and a list that is made again, takes at most one part in so many of a processor's time."""
RATE_SECONDS = 60.0
"""Over how long the rate of games is taken."""

EMPTY = Gathered({"count": 0, "lists": [], "pieces": []}, ())


@dataclass(frozen=True)
class FollowedRun:
    """A run as pages may show it: one moment of it."""

    generation: int = 0
    games: Gathered = EMPTY
    state: Mapping[str, Any] = field(default_factory=dict)


def slug_of(place: int, generation: int) -> str:
    """What the pieces of a run are named by: another name each time that all of it is read again."""
    return f"r{place}" + (f"g{generation}" if generation else "")


class Follower:
    """Follows one run. `look` is called by one thread; what is `shown` may be asked by any."""

    def __init__(
        self, folder: RunFolder, place: int, pieces: PieceCache, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder, self.notes = folder, Notes(folder)
        self._place, self._pieces, self._clock = place, pieces, clock
        self.shown = FollowedRun()
        self._reading: JournalReading | None = None
        self._read_as: tuple[Any, ...] = ()
        self._generation = 0
        self._problem: str | None = None
        self._damaged_at: tuple[int, int] | None = None
        self._seen: deque[tuple[float, int]] = deque()
        self._more = False
        self._games = EMPTY
        self._publish_after = self._begin_after = 0.0
        self._begun = 0.0
        """In this thread's own time of the processor, when the look began."""

    @property
    def slug(self) -> str:
        """What the pieces of its games are named by now."""
        return slug_of(self._place, self._generation)

    def gathered(self) -> Gathered:
        shown = self.shown
        noted = 0
        with suppress(NipRunError):  # the page says so where it shows them
            noted = len(self.notes.all())
        said = {"slug": slug_of(self._place, shown.generation), "generation": shown.generation, "notes": noted}
        return replace(
            shown.games,
            about={**shown.games.about, **said, "state": shown.state},
            is_part=shown.state.get("standing") != "playing" and shown.state.get("reading", True),
            problem=shown.state.get("problem"),
        )

    def look(self) -> float:
        """See what is new; after how many seconds to look again."""
        self._begun = time.thread_time()
        manifest: Manifest | None = None
        try:
            manifest = self.folder.manifest()
            self._read(manifest)
            self._problem = None
        except Exception as error:  # noqa: BLE001 - the page tells what is wrong, and other runs are followed on
            self._problem = str(error) if isinstance(error, NipRunError) else f"{type(error).__name__}: {error}"
            self._forget()
            self._damaged_at = self._file_state()
        self._show(manifest)
        return 0.0 if self._more else max(LOOK_SECONDS, SHARE * (time.thread_time() - self._begun))

    def _read(self, manifest: Manifest) -> None:
        """Raises what `JournalReading` raises."""
        if not self.folder.journal.is_file():
            return
        stopped = manifest.status in PLAYED
        read_as = (manifest.identity, manifest.dataset_sha256, manifest.game_sha256, stopped and manifest.rollouts)
        until_changed = self._reading is not None and self._reading.plan.spec.experiment.until is not None
        if self._read_as[:3] != read_as[:3] or (until_changed and self._read_as != read_as):
            self._forget()
        self._read_as = read_as
        if self._reading is not None and self._reading.is_stale and self._clock() >= self._begin_after:
            self._forget()
        if self._reading is None:
            if self._problem is not None and self._file_state() == self._damaged_at:
                raise _AsBefore(self._problem)
            self._reading = JournalReading(self.folder, self.slug, self._pieces.keep, self._clock)
            self._begin_after = self._clock() + SHARE * (time.thread_time() - self._begun)
            self._begun = time.thread_time()  # a plan is read once, and no reason to look seldom
        self._more = self._reading.step(STEP_SECONDS)
        self._publish(self._reading)

    def _publish(self, reading: JournalReading) -> None:
        """Have the games that were read be shown; not so often that it takes most of the time."""
        if reading.listed == self._games.about["count"] or self._clock() < self._publish_after:
            return
        if self._more and reading.listed < FIRST:
            return  # soon there are enough for a page
        begun = time.thread_time()
        self._games = reading.gathered()
        self._publish_after = self._clock() + max(LOOK_SECONDS, SHARE * (time.thread_time() - begun))

    def _forget(self) -> None:
        """Have all be read again: what is shown of it now is none of the journal that stands there."""
        self._more = False
        if self._reading is None:
            return
        self._reading.close()
        self._reading, self._games = None, EMPTY
        self._pieces.drop(f"{self.slug}-")
        self._generation += 1
        self._publish_after = 0.0
        self._seen.clear()

    def _file_state(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = self.folder.journal.stat()
            return found.st_size, found.st_mtime_ns
        return None

    def _show(self, manifest: Manifest | None) -> None:
        reading = self._reading
        counts = {} if reading is None else reading.counts()
        standing = "damaged" if manifest is None else self._standing(manifest)
        state = {
            "run_id": self.folder.run_id,
            "standing": standing,
            "why": None if manifest is None else manifest.why_stopped,
            "problem": self._problem,
            "reading": self._more or (reading is not None and reading.listed > self._games.about["count"]),
            "generation": self._generation,
            "games": {name: self._games.about[name] for name in EMPTY.about},
            "notes": "-".join(map(str, self.notes.state())),
            **counts,
            **self._rate(standing, counts),
        }
        self.shown = FollowedRun(self._generation, self._games, state)

    def _standing(self, manifest: Manifest) -> str:
        """`playing`, `killed` (it says that it plays, and no process holds it), or its status."""
        if manifest.status == Status.RUNNING:
            return "playing"
        with suppress(NipRunError):
            if read_json(self.folder.manifest_path).get("status") == Status.RUNNING:
                return "killed"
        return manifest.status.value

    def _rate(self, standing: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Games a second of late, and how many seconds are left; nothing while what was played before is read."""
        if standing != "playing" or not counts or self._more:
            self._seen.clear()
            return {"per_second": None, "seconds_left": None}
        now = self._clock()
        self._seen.append((now, counts["done"]))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_SECONDS:
            self._seen.popleft()
        then, done = self._seen[0]
        rate = (counts["done"] - done) / (now - then) if now > then else 0.0
        left = (counts["total"] - counts["done"]) / rate if rate else None
        return {"per_second": rate or None, "seconds_left": left}

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


class _AsBefore(NipRunError):
    """What was wrong at the last look still is: the file is the same."""
