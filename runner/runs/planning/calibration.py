"""Measures the time and disk space of a plan's games on this machine, for the forecast of `nip-run plan`.

The measurement is a normal run of some of the games, on the disk of the results. The provider `dummy` gives answers of
the planned length. Afterwards, the run is deleted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.base.errors import RunError
from runner.models.layers.budget import BudgetSettings
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.estimate import played_rounds
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Progress
from runner.runs.session.run import GamesRun, RunOptions, run_games
from runner.spec.experiment import Execution

FIRST_CALLS = 300
"""The number of calls in the short first run, which loads all modules. Its speed sets the size of later runs."""
WARM_UP_SHARE = 0.25
"""The share of the games to play before the measurement starts, so that all workers have started to play."""
MIN_GAMES = 24
"""The minimum number of games in the first run."""
SECONDS = 2.0
"""The approximate duration of each measurement in seconds."""


@dataclass(frozen=True)
class MeasuredRun:
    """The measurements of one run."""

    games: int
    calls: int
    seconds_to_first_game: float
    """Seconds from the start of the run to the end of the first game."""
    seconds_per_call: float
    """Seconds per call while games were played."""
    cpu_seconds_per_call: float
    """CPU seconds of this process per call. In a run with workers, this process is the writer."""
    seconds_after_games: float
    """Seconds from the end of the last game to the end of the run."""
    journal_bytes_per_call: float
    table_bytes_per_call: float
    """Bytes per call in tables and fine-tune files."""
    folder: RunFolder


@contextmanager
def temporary_results(results: Results) -> Iterator[Results]:
    """Yield a new results folder on the disk of `results`, and delete the folder afterwards.

    Raises:
        RunError: the folder cannot be created.
    """
    try:
        folder = TemporaryDirectory(prefix=".plan-", dir=results.disk, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunError(
            f"cannot create a temporary folder in {results.disk} to measure the speed of games: {error.strerror}; use "
            "--results DIR with a writable folder"
        ) from error
    with folder as name:
        yield Results(Path(name))


@dataclass
class CalibrationRun:
    """Plays and measures some games of a plan."""

    plan: Plan
    results: Results
    words: Mapping[str, int]
    """The number of words in an answer of each model group. The spec's own `dummy` groups are not changed."""
    seconds: float = SECONDS
    """The approximate duration of each measurement in seconds."""
    _run_count: int = 0
    short_run: MeasuredRun = field(init=False)
    """A short run in one process, which is played first."""

    def __post_init__(self) -> None:
        fewest_rounds, _ = played_rounds(self.plan.spec.protocol)
        self.short_run = self._play(max(FIRST_CALLS // fewest_rounds, MIN_GAMES), Execution())

    def play_one_process(self) -> MeasuredRun:
        """Play games in this process, and return the measurements."""
        return self._play(self._game_count(self.short_run.seconds_per_call), Execution())

    def play_workers(self, workers: int, seconds_per_call: float) -> MeasuredRun:
        """Play games with this many workers, and return the measurements.

        Workers are processes, or actors of a Ray cluster if the spec uses Ray. `seconds_per_call` is the time of a call
        in one process.
        """
        planned = self.plan.spec.experiment.execution
        execution = replace(planned, workers=workers) if planned.engine == "ray" else Execution(processes=workers)
        return self._play(self._game_count(seconds_per_call / min(workers, 2)), execution)

    def _game_count(self, seconds_per_call: float) -> int:
        """Return the number of games that take `self.seconds`, if a call takes `seconds_per_call`."""
        calls_per_game = self.short_run.calls / self.short_run.games
        return max(round(self.seconds / seconds_per_call / calls_per_game), 2 * self.short_run.games)

    def _play(self, game_count: int, execution: Execution) -> MeasuredRun:
        self._run_count += 1
        plan, run_id = self._plan_with_games(game_count, execution), f"measured-{self._run_count}"
        samples: list[_TimeSample] = []

        def on_progress(progress: Progress) -> None:
            if progress.jobs and (not samples or progress.jobs > samples[-1].jobs):
                samples.append(_TimeSample(progress.jobs, progress.calls, time.perf_counter(), time.process_time()))

        start_time = time.perf_counter()
        run_games(GamesRun(plan, run_id, RunOptions(on_progress=on_progress)), self.results)
        return _summarize_run(plan.size, samples, start_time, time.perf_counter(), self.results.run(run_id))

    def _plan_with_games(self, game_count: int, execution: Execution) -> Plan:
        """Return a plan of this many games on the first datapoints, with repeats if there are too few datapoints."""
        spec, experiment = self.plan.spec, self.plan.spec.experiment
        blocks = math.ceil(game_count / len(self.plan.variants))  # a block has one game of each variant
        points = spec.dataset.datapoints[:blocks]
        reduced = replace(
            experiment,
            models={name: self._with_dummy_provider(name, settings) for name, settings in experiment.models.items()},
            rollouts=replace(experiment.rollouts, per_datapoint=math.ceil(blocks / len(points))),
            execution=execution,
            budget=BudgetSettings(),
            until=None,
            cache=None,
        )
        return Plan(
            replace(
                spec, experiment=reduced, dataset=replace(spec.dataset, datapoints=points), cache=None, replays={},
                replayed_sha256={}, resumed_run_id=None, fetched=None, shard=None,
            )
        )  # fmt: skip

    def _with_dummy_provider(self, name: str, settings: ModelSettings) -> ModelSettings:
        if settings.traits.generates_locally:
            return settings
        return ModelSettings(
            provider="dummy", answer_words=self.words.get(name), chat_format=settings.chat_format,
            system_role=settings.system_role, send_name=settings.send_name, logprobs=settings.logprobs,
            top_logprobs=settings.top_logprobs,
        )  # fmt: skip


@dataclass(frozen=True)
class _TimeSample:
    """The state of a measured run at the end of a game: numbers of jobs and calls, and both clocks in seconds."""

    jobs: int
    calls: int
    time: float
    cpu: float


def _summarize_run(
    games: int, samples: list[_TimeSample], start_time: float, end_time: float, folder: RunFolder
) -> MeasuredRun:
    """Return the speed and file sizes of a run, measured after its warm-up games. Times are in seconds.

    Raises:
        RunError: not all games were played.
    """
    warm_up_end = next((sample for sample in samples if sample.jobs >= WARM_UP_SHARE * games), None)
    if warm_up_end is None or samples[-1].jobs < games or samples[-1].calls == warm_up_end.calls:
        raise RunError(
            "cannot measure the speed of games on this machine, because not all games of the measurement were played; "
            "add --verbose to see the error"
        )
    last = samples[-1]
    calls = last.calls - warm_up_end.calls
    tables = [*folder.path.glob("*.parquet"), *folder.fine_tune.glob("*")]
    return MeasuredRun(
        games=games,
        calls=last.calls,
        seconds_to_first_game=samples[0].time - start_time,
        seconds_per_call=(last.time - warm_up_end.time) / calls,
        cpu_seconds_per_call=(last.cpu - warm_up_end.cpu) / calls,
        seconds_after_games=end_time - last.time,
        journal_bytes_per_call=folder.journal.stat().st_size / last.calls,
        table_bytes_per_call=sum(path.stat().st_size for path in tables) / last.calls,
        folder=folder,
    )
