"""A results folder: functions that find, create and lock its runs, and its leaderboard."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain, count
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Self

from runner.base.errors import RunDirectoryError, RunError, UsageError, os_errors_as
from runner.base.package_data import is_file
from runner.base.storage.fetched_markers import DATA, MARKER
from runner.base.storage.locks import locked
from runner.base.storage.log_lines import check_log_format
from runner.base.storage.safe_files import make_folders
from runner.base.text import did_you_mean
from runner.results.default_folder import results_option_text
from runner.results.folder import RunFolder, part_id, split_part
from runner.spec.datasets.shards import Shard
from runner.spec.run_names import MAX_RUN_ID_LENGTH, RUN_ID_PATTERN

if TYPE_CHECKING:
    from runner.results.leaderboard.database import Leaderboard
    from runner.results.manifest import Manifest
    from runner.rollouts.run_plan import RunPlan

RUNS = "runs"
_MAX_LISTED = 8
"""Maximum number of shards that a message lists."""

LAST = "last"
"""A name for the newest run."""

_CLOCK_DIFFERENCE = timedelta(days=1)
"""The largest difference between the clocks of two machines that write to a results folder."""


@dataclass(frozen=True)
class Results:
    """A results folder, which need not exist yet."""

    path: Path

    @classmethod
    def of(cls, folder: RunFolder) -> Self:
        """Return the results folder that a run is in."""
        return cls(folder.path.absolute().parents[1 if split_part(folder.run_id)[1] is None else 3])

    @property
    def disk(self) -> Path:
        """A folder that exists on the disk of the results folder: this folder, or its nearest existing parent."""
        folder = self.path.absolute()
        return next(path for path in (folder, *folder.parents) if path.is_dir())

    @cached_property
    def board(self) -> Leaderboard:
        """The leaderboard; its database is loaded at first use."""
        from runner.results.leaderboard.database import Leaderboard

        return Leaderboard(self.path, self._runs_without_parts)

    def run(self, run_id: str) -> RunFolder:
        """Return the folder of the run with this id, which need not exist."""
        return RunFolder(self.path / RUNS / run_id)

    def runs(self) -> Iterator[RunFolder]:
        """Yield all runs in the order of their names, except damaged ones (see `damaged`)."""
        return (folder for folder, _ in self.runs_with_manifests())

    def runs_with_manifests(self, start: str = "") -> Iterator[tuple[RunFolder, Manifest]]:
        """Yield the runs whose ids begin with `start`, as `runs` does, each with its manifest, which is read once."""
        for folder in self._started_runs(start):
            with suppress(RunError):
                yield folder, folder.manifest()

    def _runs_without_parts(self) -> Iterator[RunFolder]:
        """Yield all runs except single shards, whose rollouts are counted in the merged run."""
        return (folder for folder, manifest in self.runs_with_manifests() if manifest.shard is None)

    def damaged(self) -> list[str]:
        """Return a message about each damaged run, which `runs` leaves out."""
        return [damage for folder in self._started_runs() if (damage := folder.damage()) is not None]

    def _folders(self, start: str = "") -> list[RunFolder]:
        """Return the folders whose names begin with `start`, sorted by name; some may not have a manifest."""
        runs = self.path / RUNS
        return (
            [RunFolder(path) for path in sorted(runs.iterdir()) if path.name.startswith(start)] if runs.is_dir() else []
        )

    def folders_with(self, path: str) -> list[RunFolder]:
        """Return the folders of runs that have a file at this path, sorted by name. Their manifests are not read."""
        return [folder for folder in self._folders() if (folder.path / path).is_file()]

    def _started_runs(self, start: str = "") -> Iterator[RunFolder]:
        return (folder for folder in self._folders(start) if folder.manifest_path.is_file())

    def sharded_runs(self, start: str = "") -> list[RunFolder]:
        """Return the runs with shards in this folder, merged or not, whose ids begin with `start`."""
        return [folder for folder in self._folders(start) if folder.parts_folder.is_dir()]

    def find_part(self, name: str, shard: Shard) -> RunFolder:
        """Return a shard of the run that `name` names: by its id, the start of its id, or its folder.

        Raises:
            UsageError: no such run or shard exists, or several runs match.
        """
        named_folder = RunFolder(Path(name))
        runs = [named_folder] if named_folder.parts_folder.is_dir() else self.sharded_runs(name)
        runs = [folder for folder in runs if folder.run_id == name] or runs
        if len(runs) > 1:
            raise _ambiguous_name(name, runs)
        if not runs:
            raise UsageError(f"no run {name!r} in {self.path} was played in shards; omit --shard, or name another run")
        part = runs[0].part(shard)
        if not is_file(part.manifest_path):
            raise UsageError(
                f"shard {shard} of run {runs[0].run_id} has not started here{_started_shards(runs[0])}; start it, or "
                "choose a started shard"
            )
        return part

    def find(self, name: str) -> RunFolder:
        """Return the run that `name` names: by its id, the start of its id, or its folder anywhere.

        `last` is the newest run that is neither a part of a run nor an analysis. The folder of a fetched release names
        the run in it. If the start of an id matches a training run and its parts, it names the training run; if it
        matches a run and runs that judge its debates, it names the judged run.

        Raises:
            UsageError: no run matches, or several do.
        """
        run = _open_folder(Path(name))
        if run is not None:
            return run
        exact = self.run(name)
        if name and is_file(exact.manifest_path):
            return exact
        if name == LAST:
            return self._newest_run()
        manifests = dict(self.runs_with_manifests(name))
        ids = {folder.run_id for folder in manifests}
        matches = [folder for folder, manifest in manifests.items() if not {*manifest.source_run_ids} & ids]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise _ambiguous_name(name, matches)
        for folder in self.sharded_runs(name) if name else ():
            if parts := folder.started_parts():
                merge = f"nip-run merge {folder.run_id}{results_option_text(self.path)}"
                raise UsageError(
                    f"the shards of run {folder.run_id} are not merged yet{_started_shards(folder)}; merge them with "
                    f"{merge}, or name one shard, such as {part_id(folder.run_id, parts[0][0])}"
                )
        ids = {folder.run_id for folder in self.runs()}
        hint = did_you_mean(name, ids | {id_.rpartition("-")[0] for id_ in ids})
        hint = hint or f"; list all runs with `nip-run runs{results_option_text(self.path)}`"
        raise UsageError(f"no run {name!r} in {self.path}{hint}")

    def path_of(self, name: str) -> Path:
        """Return the folder of the run that `find` returns, for specs that name a run."""
        return self.find(name).path

    def _newest_run(self) -> RunFolder:
        newest: tuple[str, str, RunFolder] | None = None
        for modified, folder in sorted(self._modified_folders(), key=itemgetter(0), reverse=True):
            latest_start = datetime.fromtimestamp(modified, UTC) + _CLOCK_DIFFERENCE
            if newest is not None and f"{latest_start:%Y-%m-%dT%H:%M:%SZ}" < newest[0]:
                break  # all further manifests were last written before the newest run started
            with suppress(RunError):
                manifest = folder.manifest()
                if manifest.parent_run_id is None and manifest.analysis_of is None:
                    candidate = manifest.started_at, folder.run_id, folder
                    newest = candidate if newest is None else max(newest, candidate, key=itemgetter(0, 1))
        if newest is None:
            raise UsageError(f"no run in {self.path} yet; play one with `nip-run SPEC`, or set --results DIR")
        return newest[-1]

    def _modified_folders(self) -> Iterator[tuple[float, RunFolder]]:
        """Yield each run with the time when its manifest was last written."""
        for folder in self._folders():
            with suppress(OSError):
                yield folder.manifest_path.stat().st_mtime, folder

    def parts_of(self, run_id: str) -> list[RunFolder]:
        """Return the runs that are parts of a training run, sorted by iteration and run id."""
        parts = [
            (manifest.iteration, folder.run_id, folder)
            for folder, manifest in self.runs_with_manifests()
            if manifest.parent_run_id == run_id
        ]
        return [folder for _, _, folder in sorted(parts, key=lambda row: row[:2])]

    def name_for(
        self, run_id: str, *, again: bool = False, replay: bool = False, reserved: Collection[str] = ()
    ) -> str:
        """Return the id for a run of a plan with this id: with `again` or `replay`, the next free id.

        The id of an unfinished run counts as free, so that the run is resumed, unless the id is in `reserved`. But
        `run_id` itself is free only for an unfinished replay, because `again` is the advice if the first run cannot be
        resumed.
        """
        from runner.results.manifest import Status

        def status_of(name: str) -> Status | None:
            folder = self.run(name)
            with suppress(RunError):
                manifest = folder.manifest() if folder.manifest_path.is_file() else None
                if manifest is not None and not (replay and manifest.replay_of and manifest.status != Status.DONE):
                    return manifest.status
            return None

        if not (again or replay) or (status_of(run_id) is None and run_id not in reserved):
            return run_id
        base = f"{run_id}-replay" if replay else run_id
        names = (f"{base}-{number}" for number in count(2))
        free_names = (
            name
            for name in (chain([base], names) if replay else names)
            if name not in reserved and status_of(name) != Status.DONE
        )
        return next(free_names)

    def open(self, plan: RunPlan, run_id: str) -> tuple[RunFolder, Manifest]:
        """Return the folder of a plan's run, which is created if it does not exist, and the run's manifest.

        Raises:
            RunDirectoryError: the folder belongs to another spec.
            NewerFormatError: a newer version of nip-run wrote the folder.
            RunError: the folder cannot be created.
        """
        from runner.results.provenance.manifest_writer import new_manifest

        folder = self.run(run_id)
        check_log_format(folder.journal)  # before anything is written to the folder
        manifest = self.manifest_of(plan, run_id)
        if manifest is not None:
            return folder, manifest
        with os_errors_as(RunError, f"cannot create {folder.path}"):
            make_folders(folder.path)
        return folder, new_manifest(plan.games, run_id, plan.identity)

    def manifest_of(self, plan: RunPlan, run_id: str) -> Manifest | None:
        """Return the manifest of a plan's run; None if the run has not started.

        Raises:
            RunDirectoryError: the folder belongs to another spec.
        """
        folder = self.run(run_id)
        if not folder.manifest_path.is_file():
            return None
        manifest = folder.manifest()
        if manifest.identity != plan.identity and plan.spec.resumed_run_id == run_id:
            raise RunDirectoryError(
                f"files in {folder.path} were changed since the run started: {folder.spec.name} or inputs/. Restore "
                "them, or play a new run with --again"
            )
        if manifest.identity != plan.identity:
            from runner.results.spec_changes import changed_keys

            keys = changed_keys(folder, manifest, plan.games, plan.mutable_keys)
            difference = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
            raise RunDirectoryError(f"{folder.path} has the run of another spec; {difference}. Choose another --run-id")
        return manifest

    @classmethod
    def of_log(cls, log: Path) -> Self | None:
        """Return the results folder that contains a run's log; None if the log is not in a results folder."""
        folder = RunFolder(log.parent)
        results = cls.of(folder)
        return results if results.run(folder.run_id) == folder else None

    def lock(self, run_id: str, wait_seconds: float = 0.0) -> AbstractContextManager[None]:
        """Lock a run or a shard for this process. Its folder is created if it does not exist.

        Raises:
            UsageError: the id is invalid.
            RunDirectoryError: another process still has the lock after `wait_seconds`; the message names the process.
        """
        if not re.fullmatch(RUN_ID_PATTERN, split_part(run_id)[0]):
            raise UsageError(
                f"{run_id!r} is not a valid run id; use at most {MAX_RUN_ID_LENGTH} letters, digits, dots, underscores "
                "and hyphens, and begin with a letter or digit"
            )
        advice = "; wait until that process ends, or stop it"
        return locked(self.run(run_id).lock, f"run {run_id}", wait_seconds, advice)


def _ambiguous_name(name: str, runs: Sequence[RunFolder]) -> UsageError:
    listed = ", ".join(folder.run_id for folder in runs[:5])
    return UsageError(f"{name!r} is the start of {len(runs)} run ids; write more of one: {listed}")


def _started_shards(folder: RunFolder) -> str:
    """Return a list of a run's started shards in brackets, or an empty text."""
    shards = [str(shard) for shard, _ in folder.started_parts()]
    rest = f" and {len(shards) - _MAX_LISTED} more" if len(shards) > _MAX_LISTED else ""
    return f" (started: {', '.join(shards[:_MAX_LISTED])}{rest})" if shards else ""


def _open_folder(path: Path) -> RunFolder | None:
    """Return the run in a folder, or the run in the folder of a fetched release; None if there is neither."""
    for folder, parent in ((path, path.parent), (path / DATA, path)):
        if is_file(folder / "manifest.json"):
            is_release = folder.name == DATA and is_file(parent / MARKER)
            return RunFolder.from_release(folder) if is_release else RunFolder(folder)
    return None
