"""A results folder: the runs in it, by name, whose they are, and the board that is made from them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from runner.base.errors import RunDirectoryError, RunError, UsageError
from runner.base.package_data import is_file
from runner.base.storage.locks import locked
from runner.base.storage.log_lines import check_log_format
from runner.base.storage.safe_files import make_folders
from runner.base.text import did_you_mean
from runner.results.folder import RunFolder, part_id, split_part
from runner.results.manifest import Manifest, Status
from runner.results.provenance.manifest_writer import new_manifest
from runner.results.spec_changes import changed_keys
from runner.rollouts.run_plan import RunPlan
from runner.spec.datasets.shards import Shard
from runner.spec.experiment import RUN_ID_PATTERN
from runner.spec.origin import DATA, MARKER

if TYPE_CHECKING:
    from runner.results.leaderboard.database import Leaderboard

RUNS = "runs"
_NAMED = 8
"""So many parts are named each."""

LAST = "last"
"""A name for the newest run."""


@dataclass(frozen=True)
class Results:
    """A results folder, which need not be there yet."""

    path: Path

    @classmethod
    def of(cls, folder: RunFolder) -> Self:
        """The results folder that a run is in."""
        return cls(folder.path.absolute().parents[1 if split_part(folder.run_id)[1] is None else 3])

    @property
    def disk(self) -> Path:
        """A folder that is there, on the disk where the results are or will be."""
        at = self.path.absolute()
        return next(path for path in (at, *at.parents) if path.is_dir())

    @cached_property
    def board(self) -> Leaderboard:
        """The leaderboard, whose database is loaded when it is first asked for."""
        from runner.results.leaderboard.database import Leaderboard

        return Leaderboard(self.path, self._whole_runs)

    def run(self, run_id: str) -> RunFolder:
        """The folder of the run with this id, which need not be there."""
        return RunFolder(self.path / RUNS / run_id)

    def runs(self) -> Iterator[RunFolder]:
        """Every run, by name; damaged ones are left out (see `damaged`)."""
        for folder in self._folders():
            if folder.damage() is None:
                yield folder

    def _whole_runs(self) -> Iterator[RunFolder]:
        """Every run but a part of one, whoever put it here: its rows count with those of the other parts."""
        return (folder for folder in self.runs() if folder.manifest().shard is None)

    def damaged(self) -> list[str]:
        """What is wrong with the runs that every list leaves out."""
        return [damage for folder in self._folders() if (damage := folder.damage()) is not None]

    def _folders(self) -> Iterator[RunFolder]:
        runs = self.path / RUNS
        for path in sorted(runs.iterdir()) if runs.is_dir() else ():
            folder = RunFolder(path)
            if folder.manifest_path.is_file():
                yield folder

    def in_shards(self, start: str = "") -> list[RunFolder]:
        """The runs of which parts stand here, whether they were made one run or not; those whose ids begin so."""
        runs = self.path / RUNS
        found = sorted(path for path in runs.iterdir() if path.name.startswith(start)) if runs.is_dir() else []
        return [folder for folder in map(RunFolder, found) if folder.parts.is_dir()]

    def find_part(self, name: str, shard: Shard) -> RunFolder:
        """One part of a run, by the run's id, the start of it where that is one run's alone, or its folder.

        Raises:
            UsageError: there is none, or there are several.
        """
        path = Path(name)
        runs = [RunFolder(path)] if RunFolder(path).parts.is_dir() else self.in_shards(name)
        runs = [folder for folder in runs if folder.run_id == name] or runs
        if len(runs) > 1:
            raise UsageError(f"{name!r} is the start of {len(runs)} runs: {', '.join(f.run_id for f in runs[:5])}")
        if not runs:
            raise UsageError(f"no run {name!r} in {self.path} was played in shards; --shard wants the name of one")
        part = runs[0].part(shard)
        if not is_file(part.manifest_path):
            raise UsageError(f"shard {shard} of run {runs[0].run_id} has not begun here{_begun(runs[0])}")
        return part

    def find(self, name: str) -> RunFolder:
        """A run by its id, by the start of it where that is one run's alone, or by its folder, wherever that is.

        The folder that a run was got into from a registry means that run. `last` is the newest run. The start of a
        training run's id means that run, and none of its parts; that of a run whose debates others judge, that run.

        Raises:
            UsageError: there is none, or there are several.
        """
        direct = _direct(Path(name))
        if direct is not None:
            return direct
        exact = self.run(name)
        if name and is_file(exact.manifest_path):
            return exact
        if name == LAST:
            return self._last()
        found = [folder for folder in self.runs() if folder.run_id.startswith(name)]
        ids = {folder.run_id for folder in found}
        found = [folder for folder in found if not {*folder.manifest().made_from} & ids]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{name!r} is the start of {len(found)} runs: {', '.join(f.run_id for f in found[:5])}")
        for folder in self.in_shards(name) if name else ():
            if folder.begun_parts():
                raise UsageError(
                    f"run {folder.run_id} is in shards, and not one run yet{_begun(folder)}: nip-run merge "
                    f"{folder.run_id}, or name a part: {part_id(folder.run_id, folder.begun_parts()[0][0])}"
                )
        ids = {folder.run_id for folder in self.runs()}
        near = did_you_mean(name, ids | {id_.rpartition("-")[0] for id_ in ids})
        raise UsageError(f"no run {name!r} in {self.path}{near or '; `nip-run runs` lists them'}")

    def path_of(self, name: str) -> Path:
        """The folder that `find` finds, for specs that name a run."""
        return self.find(name).path

    def _last(self) -> RunFolder:
        begun = [
            (manifest.started_at, folder.run_id, folder)
            for folder in self.runs()
            if (manifest := folder.manifest()).parent_run_id is None
        ]
        if not begun:
            raise UsageError(f"no run in {self.path} yet; `nip-run SPEC` plays one, --results DIR looks elsewhere")
        return max(begun, key=lambda row: row[:2])[-1]

    def parts_of(self, run_id: str) -> list[RunFolder]:
        """The runs that are a part of a training run, in the order of their iterations, games before tests."""
        found = [
            (manifest.iteration, folder.run_id, folder)
            for folder in self.runs()
            if (manifest := folder.manifest()).parent_run_id == run_id
        ]
        return [folder for _, _, folder in sorted(found, key=lambda row: row[:2])]

    def name_for(self, run_id: str, *, again: bool = False, replay: bool = False, given: Collection[str] = ()) -> str:
        """The id of the run that a plan with this id makes: its own, or the next free one with `--again`.

        An unfinished run of the same kind is gone on with, unless its name is one of those `given` already.
        """
        taken = {folder.run_id: folder for folder in self.runs()}

        def is_free(name: str) -> bool:
            return name not in given and (name not in taken or taken[name].manifest().status != Status.DONE)

        if not (again or replay) or (run_id not in taken and run_id not in given):
            return run_id
        base = f"{run_id}-replay" if replay else run_id
        number = 1 if replay else 2
        while True:
            name = base if replay and number == 1 else f"{base}-{number}"
            if is_free(name):
                return name
            number += 1

    def open(self, plan: RunPlan, run_id: str) -> tuple[RunFolder, Manifest]:
        """The folder of a plan's run: a new one, or the one that was begun, with its manifest.

        Raises:
            RunDirectoryError: the folder belongs to another spec.
            NewerFormatError: a newer nip-run wrote it.
            RunError: it cannot be written.
        """
        folder = self.run(run_id)
        check_log_format(folder.journal)  # before anything beside it is written
        manifest = self.manifest_of(plan, run_id)
        if manifest is not None:
            return folder, manifest
        try:
            make_folders(folder.path)
        except OSError as error:
            raise RunError(f"cannot make {folder.path}: {error.strerror}") from error
        return folder, new_manifest(plan.games, run_id, plan.identity)

    def manifest_of(self, plan: RunPlan, run_id: str) -> Manifest | None:
        """The manifest of a plan's run; None where it has not begun.

        Raises:
            RunDirectoryError: the folder belongs to another spec.
        """
        folder = self.run(run_id)
        if not folder.manifest_path.is_file():
            return None
        manifest = folder.manifest()
        if manifest.identity != plan.identity and plan.spec.begun_as == run_id:
            raise RunDirectoryError(
                f"{folder.path} was changed since its run began: {folder.spec.name} or what is in inputs/ is not what "
                "was played. Put it back, or play it as a new run with --again"
            )
        if manifest.identity != plan.identity:
            keys = changed_keys(folder, manifest, plan.games, plan.mutable_keys)
            what = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
            raise RunDirectoryError(f"{folder.path} holds another spec's run; {what}. Choose another --run-id")
        return manifest

    @classmethod
    def moved(cls, log: Path) -> Self | None:
        """The results folder that a run's journal or stage log was moved to; None where its run stands in none."""
        folder = RunFolder(log.parent)
        results = cls.of(folder)
        return results if results.run(folder.run_id) == folder else None

    def lock(self, run_id: str, wait_seconds: float = 0.0) -> AbstractContextManager[None]:
        """Keep a run, or one part of it, to this process; its folder is made if it is not there.

        Raises:
            UsageError: no run can have this id.
            RunDirectoryError: another process has it after `wait_seconds`; the message names the process.
        """
        if not re.fullmatch(RUN_ID_PATTERN, split_part(run_id)[0]):
            raise UsageError(f"{run_id!r} cannot be a run's id; it has the form {RUN_ID_PATTERN}")
        return locked(self.run(run_id).lock, f"run {run_id}", wait_seconds)


def _begun(folder: RunFolder) -> str:
    """Which parts of a run have begun, in brackets."""
    begun = [str(shard) for shard, _ in folder.begun_parts()]
    more = f" and {len(begun) - _NAMED} more" if len(begun) > _NAMED else ""
    return f" (begun: {', '.join(begun[:_NAMED])}{more})" if begun else ""


def _direct(path: Path) -> RunFolder | None:
    """The run in a folder, or the one that was got into it; None where there is none."""
    for folder, root in ((path, path.parent), (path / DATA, path)):
        if is_file(folder / "manifest.json"):
            return RunFolder.got(folder) if folder.name == DATA and is_file(root / MARKER) else RunFolder(folder)
    return None
