"""What a run costs this machine, measured: some of its games are played by the provider `dummy`, and thrown away.

It is a run like any other, on the disk where the results are, by the code that plays all runs. Its answers are as long
as those that are planned; what an answer from a server costs on top is measured in `live`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.base.errors import RunError
from runner.base.storage.safe_files import open_to_read
from runner.models.layers.budget import BudgetSettings
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder, part_id
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Progress
from runner.runs.execution.shard_consistency import in_shard
from runner.runs.session.run import RunOptions, run_games
from runner.runs.shards.merge import merge
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.shards import Shard
from runner.spec.experiment import Execution

FIRST_CALLS = 300
"""Calls of the run that only tells how many games to play in the next; it loads what every run loads, too."""
SETTLED = 0.25
"""The share of the games after which the pace is taken: workers have begun, and all places are full."""
FEWEST_GAMES = 24
SECONDS = 2.0
"""For so long games are played to be measured, about."""
SHARDS = (Shard(1, 2), Shard(2, 2))
"""Those that are merged to be measured."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run that was played to be measured."""

    games: int
    calls: int
    begin: float
    """Seconds to the first game that was over."""
    call: float
    """Seconds a call, while games are played."""
    call_cpu: float
    """Of this process' cores alone."""
    workers_cpu: float | None
    """A call, of the workers' cores; None where they cannot be watched, or there are none."""
    end: float
    """Seconds after the last game."""
    journal_bytes: float
    """A call."""
    table_bytes: float
    """A call: tables and fine-tune files."""
    folder: RunFolder

    @property
    def share(self) -> float:
        """What this process had of a core while it played."""
        return self.call_cpu / self.call


@dataclass(frozen=True)
class MergeCost:
    """Seconds that it takes to make one run of shards."""

    once: float
    """Of however few calls."""
    call: float
    """And for each."""

    @classmethod
    def of(cls, small: tuple[int, float], large: tuple[int, float]) -> MergeCost:
        """By the calls and the seconds of two merges.

        Where the machine was so much busier during one of them that they tell nothing apart, all counts as each call's:
        that is too much for a large run, and the other way round it would be nothing.
        """
        (few, short), (many, long) = small, large
        call = long / many
        if many > few and long > short:
            call = min((long - short) / (many - few), call)
        return cls(max(long - call * many, 0.0), call)


@contextmanager
def scratch(results: Results) -> Iterator[Results]:
    """A results folder on the same disk, which is gone afterwards.

    Raises:
        RunError: none can be made.
    """
    at = results.disk
    try:
        made = TemporaryDirectory(prefix=".plan-", dir=at, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunError(
            f"cannot measure what a run costs here: {at}: {error.strerror}; --results DIR names a folder that can be "
            "written"
        ) from error
    with made as name:
        yield Results(Path(name))


@dataclass
class CalibrationRun:
    """Plays some games of a plan."""

    plan: Plan
    results: Results
    words: Mapping[str, int]
    """How long the answers of each model group are to be, in words; a group of `dummy` answers as its own spec says."""
    seconds: float = SECONDS
    """How long to play."""
    _number: int = 0
    first: MeasuredRun = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.played(max(FIRST_CALLS // max(self.fewest_calls(), 1), FEWEST_GAMES))

    def of_one_process(self) -> MeasuredRun:
        return self.played(self._enough(self.first.call))

    def of_workers(self, workers: int, call: float) -> MeasuredRun:
        """By this many, whose writer is this process; `call` is what a call takes of one process.

        They are processes, or where the spec says so those of a Ray cluster: the spec's, or one that is started.
        """
        own = self.plan.spec.experiment.execution
        many = replace(own, workers=workers) if own.engine == "ray" else Execution(processes=workers)
        return self.played(self._enough(call / min(workers, 2)), many)

    def fewest_calls(self) -> int:
        """Of a game."""
        protocol = self.plan.spec.protocol
        return next(i for i in range(protocol.max_message_rounds) if protocol.can_ever_decide(i)) + 1

    def of_merge(self) -> MergeCost:
        """By two merges, since much of a small one is there once and not with each call."""
        few = max(self.first.games, 2 * len(self.plan.variants))  # a datapoint for each shard
        return MergeCost.of(self._merged(few), self._merged(max(self._enough(self.first.call), 2 * few)))

    def _merged(self, games: int) -> tuple[int, float]:
        """Play so many games in shards, and merge them: the calls, and the seconds of the merge."""
        self._number += 1
        run_id = f"measured-{self._number}"
        # Datapoints of each shard in turn: the first ones of the dataset may all be of one group, which is not divided.
        dealt = zip_longest(*(shard.points(self.plan.spec.dataset.datapoints) for shard in SHARDS))
        points = tuple(point for point in chain.from_iterable(dealt) if point is not None)
        plan = self._smaller(games, Execution(), points=points)
        for shard in SHARDS:
            run_games(in_shard(plan, shard), self.results, part_id(run_id, shard), RunOptions())
        begun = time.perf_counter()
        made = merge(run_id, self.results)
        return made.manifest.completions or 1, time.perf_counter() - begun

    def _enough(self, call: float) -> int:
        """So many games that they take the time that there is for it."""
        each = call * self.first.calls / self.first.games
        return max(round(self.seconds / each), 2 * self.first.games)

    def played(
        self, games: int, execution: Execution | None = None, models: Mapping[str, ModelSettings] | None = None
    ) -> MeasuredRun:
        """Play so many games, by default in this process and by `dummy`, and throw the run away but for its tables."""
        self._number += 1
        plan, run_id = self._smaller(games, execution or Execution(), models), f"measured-{self._number}"
        pace = _Pace(plan.size)
        begun = time.perf_counter()
        run_games(plan, self.results, run_id, RunOptions(watch=pace.watch))
        ended = time.perf_counter()
        return pace.measured(self.results.run(run_id), begun, ended)

    def _smaller(
        self, games: int, execution: Execution, models: Mapping[str, ModelSettings] | None = None,
        points: tuple[Datapoint, ...] = (),
    ) -> Plan:  # fmt: skip
        """The plan of so many games, its first datapoints, with repeats where there are not as many."""
        spec, experiment = self.plan.spec, self.plan.spec.experiment
        blocks = -(-games // len(self.plan.variants))
        points = (points or spec.dataset.datapoints)[:blocks]
        smaller = replace(
            experiment,
            models=models or {name: self._dummy(name, one) for name, one in experiment.models.items()},
            rollouts=replace(experiment.rollouts, per_datapoint=-(-blocks // len(points))),
            execution=execution,
            budget=BudgetSettings(),
            until=None,
            cache=None,
        )
        dataset = replace(spec.dataset, datapoints=points)
        return Plan(
            replace(
                spec, experiment=smaller, dataset=dataset, cache=None, replays={}, replayed={}, begun_as=None,
                fetched=None, shard=None,
            )
        )  # fmt: skip

    def _dummy(self, name: str, settings: ModelSettings) -> ModelSettings:
        if settings.traits.drawn:
            return settings
        return ModelSettings(
            provider="dummy", answer_words=self.words.get(name), chat_format=settings.chat_format,
            system_role=settings.system_role, send_name=settings.send_name, logprobs=settings.logprobs,
            top_logprobs=settings.top_logprobs,
        )  # fmt: skip


class _Pace:
    """Takes the time of a run that is being played: at its first game, once it has settled, and at its last."""

    def __init__(self, games: int) -> None:
        self._games = games
        self._first: _Moment | None = None
        self._settled: _Moment | None = None
        self._last: _Moment | None = None
        self._jobs = 0

    def watch(self, progress: Progress) -> None:
        if progress.jobs == self._jobs:
            return
        self._jobs = progress.jobs
        if self._first is None:
            self._first = _Moment.now(progress)
        if self._settled is None and progress.jobs >= SETTLED * self._games:
            self._settled = _Moment.now(progress)
        if progress.jobs == self._games:
            self._last = _Moment.now(progress)

    def measured(self, folder: RunFolder, begun: float, ended: float) -> MeasuredRun:
        first, settled, last = self._first, self._settled, self._last
        if first is None or settled is None or last is None or last.calls == settled.calls:
            raise RunError("the games that were played to be measured did not come to their end; see --verbose")
        calls = last.calls - settled.calls
        workers = None if settled.workers is None or last.workers is None else last.workers - settled.workers
        tables = sum(path.stat().st_size for path in folder.path.glob("*.parquet"))
        tables += sum(path.stat().st_size for path in folder.fine_tune.glob("*"))
        return MeasuredRun(
            games=self._games,
            calls=last.calls,
            begin=first.at - begun,
            call=(last.at - settled.at) / calls,
            call_cpu=(last.cpu - settled.cpu) / calls,
            workers_cpu=None if workers is None else workers / calls,
            end=ended - last.at,
            journal_bytes=folder.journal.stat().st_size / last.calls,
            table_bytes=tables / last.calls,
            folder=folder,
        )


@dataclass(frozen=True)
class _Moment:
    calls: int
    at: float
    cpu: float
    workers: float | None

    @classmethod
    def now(cls, progress: Progress) -> _Moment:
        return cls(progress.calls, time.perf_counter(), time.process_time(), cpu_below())


def cpu_below() -> float | None:
    """Seconds of a core that this process' children, and theirs, have used so far.

    None where the system does not say, or there are none.
    """
    ticks, found = 0, [*_children("self")]
    for process in found:  # which grows by those below it
        with suppress(FileNotFoundError, ProcessLookupError):
            found.extend(_children(process))
            stat = _read(Path(f"/proc/{process}/stat"))
            ticks += sum(map(int, stat.rpartition(b")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK") if found else None


def _children(process: str) -> list[str]:
    """Those of any thread of a process; none where the system does not say."""
    found: list[str] = []
    with suppress(OSError):
        for task in os.scandir(f"/proc/{process}/task"):
            found.extend(_read(Path(task.path) / "children").decode().split())
    return found


def _read(path: Path) -> bytes:
    with open_to_read(path) as file:
        return file.read()
