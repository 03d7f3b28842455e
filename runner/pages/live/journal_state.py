"""What a run's journal holds, as far as it was read: the games that are finished, and what all answers came to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from runner.base.storage.log_follower import PIECE
from runner.base.text import in_one_line, shortened
from runner.models.interface import SampleKey
from runner.models.journal_index import FollowedIndex
from runner.models.journal_records import (
    CallRecord,
    EndedRecord,
    FailureRecord,
    IndexedRecord,
    LostRecord,
    RepeatRecord,
)
from runner.models.usage_totals import UsageTotals
from runner.pages.report.games import GamePage, job_games
from runner.pages.report.run_games import Gathered, RunGames
from runner.pages.report.run_state import missing_rows
from runner.pages.site import Keep
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import run_costs
from runner.runs.finished.reconstruction import Reconstructor, played_jobs, played_plan

ERRORS, ERROR = 5, 300
"""So many of the last errors are told, each in so many characters."""

FIRST_PIECE = 1 << 20
"""Bytes of the journal that are read first, so that the first games are soon there; then twice as many each time."""

IN_VAIN, SHARE_IN_VAIN = 100, 10
"""So many games may be tried before their end is read, and one more for each so many that were finished."""


class JournalReading:
    """Reads a journal, each record and each finished game once, in steps that end in time."""

    def __init__(
        self,
        folder: RunFolder,
        slug: str,
        keep: Keep,
        clock: Callable[[], float] = time.monotonic,
        *,
        first_piece: int = FIRST_PIECE,
    ) -> None:
        """Raises:
        RunError, JournalError, SpecError: a file of the run is gone or damaged.
        """
        missing = missing_rows(folder)
        self.plan = played_plan(folder, None if missing is None else missing.given)
        self._clock, self._has_rows = clock, missing is None
        self._costs = run_costs(self.plan)
        self._followed = FollowedIndex(folder.journal, folder.manifest().identity)
        self._reconstructor = Reconstructor(folder, self.plan, followed=self._followed)
        self._coming = played_jobs(folder, self.plan)
        self._jobs: dict[tuple[str, int], Job] = {}
        self.total = _total(folder, self.plan)
        """How many games, or trees, are to be played."""
        self._piece, self._piece_bytes = 0, first_piece
        self._touched: dict[int, tuple[Job, int]] = {}
        """Games that have answers which were not looked at, each with the last piece that had one."""
        self._listed: set[int] = set()
        self._ended: set[SampleKey] = set()
        self._lost: set[int] = set()
        """Games that an error ended: in what is not yet read they may have been played on."""
        self._in_vain = 0
        self._games = RunGames(self.plan, folder.run_id, slug, keep, measures=not folder.metrics.is_file())
        self.is_stale = False
        """Whether a game that is listed was played on since: all are to be read again."""
        self._answers, self._spent = UsageTotals(), 0.0
        self._failures = 0
        self._errors: dict[str, int] = {}
        self._outcomes: Counter[str] = Counter()
        self._judged = self._right = 0

    @property
    def done(self) -> int:
        return len(self._listed)

    def step(self, seconds: float) -> bool:
        """Read on for about so long; whether there is more to read. Raises as `games_of`.

        A game is looked at once nothing more came of it in a piece of the journal, or the journal's end was reached.
        """
        deadline, is_end = self._clock() + seconds, False
        while self._play(deadline, is_end=is_end):
            if is_end:
                return False
            entries = self._followed.read(self._piece_bytes)
            self._piece += 1
            self._piece_bytes = min(PIECE, 2 * self._piece_bytes)
            for entry in entries:
                self._see(entry)
            is_end = not entries
            if self._clock() >= deadline and not is_end:
                break
        return True

    def _play(self, deadline: float, *, is_end: bool) -> bool:
        """Take in the games that may be finished by now; whether there was time for all of them."""
        jobs = sorted(self._likely(is_end=is_end), key=lambda job: job.index)
        for tried, job in enumerate(jobs, 1):
            rollouts, answered = self._reconstructor.with_answered_of(job)
            del self._touched[job.index]
            for game in job_games(self._reconstructor, rollouts, answered, has_rows=self._has_rows):
                self._list(game)
            if rollouts:
                self._listed.add(job.index)
            elif not is_end:
                self._in_vain += 1
            if tried < len(jobs) and self._clock() >= deadline:
                return False
        return True

    def _likely(self, *, is_end: bool) -> list[Job]:
        """The games that are worth a look. Where answers come in rounds of all games, none is, before the end."""
        if is_end:
            return [job for job, _ in self._touched.values()]
        if self._in_vain >= IN_VAIN + self.done // SHARE_IN_VAIN:
            return []
        return [job for job, piece in self._touched.values() if piece < self._piece and job.index not in self._lost]

    def _see(self, entry: IndexedRecord) -> None:
        record = entry.record
        if isinstance(record, (CallRecord, RepeatRecord, EndedRecord)):
            self._touch(record.sample, ends=isinstance(record, EndedRecord))
        if isinstance(record, EndedRecord):
            self._ended.add(record.sample)
        if isinstance(record, CallRecord):
            self._answers.count(record.completion.usage, None)
            if record.charged is None and not record.completion.from_cache:
                self._spent += self._costs.actual(self.plan.group_of(record.sample), record.completion).usd
        elif isinstance(record, RepeatRecord):
            self._answers.completions += 1
        elif isinstance(record, FailureRecord):
            self._failures += 1
            error = shortened(in_one_line(record.error), ERROR)
            self._errors[error] = self._errors.pop(error, 0) + 1
            while len(self._errors) > ERRORS:
                del self._errors[next(iter(self._errors))]
        if isinstance(record, (CallRecord, FailureRecord, LostRecord)) and record.charged is not None:
            self._spent += record.charged.usd

    def _touch(self, sample: SampleKey, *, ends: bool) -> None:
        shape = self.plan.shape
        number = sample.repeat if shape is None else shape.tree(sample.repeat) * shape.branches
        job = self._job(sample.datapoint, number)
        if job is None:
            return  # a game beyond the last that counts
        if ends:
            self._lost.add(job.index)
        if job.index not in self._listed:
            self._touched[job.index] = job, self._piece
        elif sample in self._ended:
            self.is_stale = True

    def _job(self, datapoint: str, number: int) -> Job | None:
        """One game or tree of the plan, which is gone through as far as the journal has come."""
        while (datapoint, number) not in self._jobs:
            job = next(self._coming, None)
            if job is None:
                return None
            self._jobs[job.datapoint.id, job.number] = job
        return self._jobs[datapoint, number]

    def _list(self, game: GamePage) -> None:
        rollout = game.rollout
        self._games.add(game)
        self._outcomes[rollout.outcome.value] += 1
        if rollout.correct is not None:
            self._judged += 1
            self._right += rollout.correct

    @property
    def listed(self) -> int:
        """How many games were taken in."""
        return self._outcomes.total()

    def gathered(self) -> Gathered:
        """The games so far, as a page has them; all are kept by now."""
        return self._games.gathered()

    def counts(self) -> dict[str, Any]:
        """What there is to tell of the run so far."""
        return {
            "done": self.done,
            "total": self.total,
            "of": "games" if self.plan.shape is None else "trees",
            "calls": self._answers.completions,
            "failed_calls": self._failures,
            "prompt_tokens": self._answers.prompt_tokens,
            "completion_tokens": self._answers.completion_tokens,
            "cost_usd": round(self._spent, 9) if self._costs.priced else None,
            "outcomes": dict(self._outcomes),
            "judged": self._judged,
            "right": self._right,
            "errors": [{"text": text, "count": count} for text, count in reversed(self._errors.items())],
        }

    def close(self) -> None:
        self._reconstructor.close()


def _total(folder: RunFolder, plan: Plan) -> int:
    """How many games `played_jobs` gives."""
    manifest = folder.manifest()
    if plan.spec.experiment.until is None or manifest.status not in PLAYED or manifest.rollouts is None:
        return plan.size
    return min(plan.size, manifest.rollouts)
