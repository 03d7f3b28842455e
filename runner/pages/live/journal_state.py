"""Reads the journal of a run that may still be playing, for `runner.pages.live.follower`.

The journal records each answer of a model. This module reads it in steps of limited time, evaluates each game when it
is probably finished, and adds up answers, costs and failures.
"""

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
    RepeatRecord,
)
from runner.models.usage_totals import UsageTotals
from runner.pages.report.games import GamePage, job_games
from runner.pages.report.run_games import CollectedGames, RunGames
from runner.pages.report.run_state import missing_rows
from runner.pages.site import StorePiece
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import reported_usd, run_costs
from runner.runs.finished.reconstruction import Reconstructor, played_jobs, played_plan

MAX_ERRORS, MAX_ERROR_LENGTH = 5, 300
"""Maximum number of recent errors on the page, and maximum characters of each."""

FIRST_PIECE = 1 << 20
"""Size of the first read in bytes. It is small, so that the first games appear soon. Each further read is twice as
large as the one before."""

MAX_EARLY_ATTEMPTS, GAMES_PER_ATTEMPT = 100, 10
"""Limit on attempts to evaluate unfinished games: 100, plus 1 for every 10 finished games."""


class JournalReading:
    """Reads each record and each finished game of a journal once, in steps of limited time."""

    def __init__(
        self, folder: RunFolder, slug: str, store_piece: StorePiece, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open the journal of a run.

        Raises:
            RunError, JournalError, SpecError: a file of the run is missing or damaged.
        """
        missing = missing_rows(folder)
        self.plan = played_plan(folder, None if missing is None else missing.dataset)
        self._clock, self._has_rows = clock, missing is None
        self._costs = run_costs(self.plan)
        self._followed = FollowedIndex(folder.journal, folder.manifest().identity)
        self._reconstructor = Reconstructor(folder, self.plan, followed=self._followed)
        self._remaining_jobs = played_jobs(folder, self.plan)
        self._jobs: dict[tuple[str, int], Job] = {}
        self.total = _total(folder, self.plan)
        """Number of games, or trees, in the plan."""
        self._piece, self._piece_bytes = 0, FIRST_PIECE
        self._unevaluated: dict[int, tuple[Job, int]] = {}
        """Games that are not evaluated yet, by index, each with the number of the last piece that has an answer."""
        self._listed: set[int] = set()
        """Indexes of the games or trees that have been evaluated and are finished."""
        self._ended: set[SampleKey] = set()
        self._lost: set[int] = set()
        """Games that an error ended. Later records of the journal may continue them."""
        self._early_attempts = 0
        """Number of evaluated games that were not finished."""
        self._games = RunGames(self.plan, folder.run_id, slug, store_piece, measures=not folder.metrics.is_file())
        self.is_stale = False
        """Whether a listed game was continued later, so that the whole journal must be read again."""
        self._answers, self._cost_usd = UsageTotals(), 0.0
        self._failures = 0
        self._errors: dict[str, int] = {}
        self._outcomes: Counter[str] = Counter()
        self._judged = self._right = 0

    @property
    def done(self) -> int:
        """Number of finished games or trees."""
        return len(self._listed)

    def step(self, seconds: float) -> bool:
        """Read for about this many seconds, and return whether there is more to read. Raises as `games_of`.

        A game is evaluated once a piece of the journal has no record of the game, or at the end of the journal.
        """
        deadline, is_end = self._clock() + seconds, False
        while self._evaluate_games(deadline, is_end=is_end):
            if is_end:
                return False
            entries = self._followed.read(self._piece_bytes)
            self._piece += 1
            self._piece_bytes = min(PIECE, 2 * self._piece_bytes)
            for entry in entries:
                self._process_record(entry)
            is_end = not entries
            if self._clock() >= deadline and not is_end:
                break
        return True

    def _evaluate_games(self, deadline: float, *, is_end: bool) -> bool:
        """Evaluate the games that may be finished, and return whether there was time for all of them."""
        jobs = sorted(self._probably_finished(is_end=is_end), key=lambda job: job.index)
        for tried, job in enumerate(jobs, 1):
            rollouts, answered = self._reconstructor.rollouts_and_requests_of(job)
            del self._unevaluated[job.index]
            for game in job_games(self._reconstructor, rollouts, answered, has_rows=self._has_rows):
                self._add_game(game)
            if rollouts:
                self._listed.add(job.index)
            elif not is_end:
                self._early_attempts += 1
            if tried < len(jobs) and self._clock() >= deadline:
                return False
        return True

    def _probably_finished(self, *, is_end: bool) -> list[Job]:
        """Return the unevaluated games without a record in the last piece, or all of them at the end of the journal."""
        if is_end:
            return [job for job, _ in self._unevaluated.values()]
        if self._early_attempts >= MAX_EARLY_ATTEMPTS + self.done // GAMES_PER_ATTEMPT:
            return []
        return [job for job, piece in self._unevaluated.values() if piece < self._piece and job.index not in self._lost]

    def _process_record(self, entry: IndexedRecord) -> None:
        """Count a record, and note its game."""
        record = entry.record
        if isinstance(record, (CallRecord, RepeatRecord, EndedRecord)):
            self._note_answer(record.sample, ends=isinstance(record, EndedRecord))
        if isinstance(record, EndedRecord):
            self._ended.add(record.sample)
        if isinstance(record, CallRecord):
            self._answers.count(record.completion.usage, None)
        elif isinstance(record, RepeatRecord):
            self._answers.completions += 1
        elif isinstance(record, FailureRecord):
            self._failures += 1
            error = shortened(in_one_line(record.error), MAX_ERROR_LENGTH)
            self._errors[error] = self._errors.pop(error, 0) + 1  # moves the error to the end, as the most recent one
            while len(self._errors) > MAX_ERRORS:
                del self._errors[next(iter(self._errors))]
        self._cost_usd += reported_usd(record, self.plan, self._costs)

    def _note_answer(self, sample: SampleKey, *, ends: bool) -> None:
        """Queue the game of an answer for evaluation. `ends` means that a failure ended the game."""
        shape = self.plan.tree_shape
        number = sample.repeat if shape is None else shape.tree(sample.repeat) * shape.branches
        job = self._job(sample.datapoint, number)
        if job is None:
            return  # the stopping rule excludes this game
        if ends:
            self._lost.add(job.index)
        if job.index not in self._listed:
            self._unevaluated[job.index] = job, self._piece
        elif sample in self._ended:
            self.is_stale = True

    def _job(self, datapoint: str, number: int) -> Job | None:
        """Return a game or tree of the plan. The plan is read only up to the games in the journal."""
        while (datapoint, number) not in self._jobs:
            job = next(self._remaining_jobs, None)
            if job is None:
                return None
            self._jobs[job.datapoint.id, job.number] = job
        return self._jobs[datapoint, number]

    def _add_game(self, game: GamePage) -> None:
        rollout = game.rollout
        self._games.add(game)
        self._outcomes[rollout.outcome.value] += 1
        if rollout.correct is not None:
            self._judged += 1
            self._right += rollout.correct

    @property
    def listed(self) -> int:
        """Number of evaluated games."""
        return self._outcomes.total()

    def collect(self) -> CollectedGames:
        """Store the data of the games so far, and return the games for a page."""
        return self._games.collect()

    def counts(self) -> dict[str, Any]:
        """Return the counts of the run so far, for the page's state."""
        return {
            "done": self.done,
            "total": self.total,
            "of": "games" if self.plan.tree_shape is None else "trees",
            "calls": self._answers.completions,
            "failed_calls": self._failures,
            "prompt_tokens": self._answers.prompt_tokens,
            "completion_tokens": self._answers.completion_tokens,
            "cost_usd": round(self._cost_usd, 9) if self._costs.is_priced else None,
            "outcomes": dict(self._outcomes),
            "judged": self._judged,
            "right": self._right,
            "errors": [{"text": text, "count": count} for text, count in reversed(self._errors.items())],
        }

    def close(self) -> None:
        self._reconstructor.close()


def _total(folder: RunFolder, plan: Plan) -> int:
    """Return the number of games that `played_jobs` yields."""
    manifest = folder.manifest()
    if plan.spec.experiment.until is None or manifest.status not in PLAYED or manifest.rollouts is None:
        return plan.size
    return min(plan.size, manifest.rollouts)
