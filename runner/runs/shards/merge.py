"""The parts of a run into the one run: their journals as one, and from it all else as a run does that is resumed.

What is made stands in a folder of its own until it is whole, and is put in its place with the manifest last: a merge
that is killed has changed nothing that anybody sees, and is run again. The journal has the parts' records in the order
of their numbers, and its first record follows from theirs: so the same parts make the same journal wherever they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import JournalError, MergeError, RunDirectoryError, RunError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.storage.atomic_files import atomic_write, fsync_dir
from runner.base.storage.log_lines import encode, first_record, scan, seed_of
from runner.base.storage.safe_files import create, make_folder, open_to_read, remove_folder
from runner.base.text import comma_join
from runner.models.journal_records import ORIGIN, CallRecord, begun, parse_record
from runner.models.layers.lost_calls import AbandonedCalls
from runner.results.folder import SHARDS, RunFolder, split_part
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Manifest
from runner.results.provenance.input_files import write_inputs
from runner.results.provenance.manifest_writer import updated_manifest
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Watch
from runner.runs.execution.process import interruptible
from runner.runs.execution.shard_consistency import MERGED
from runner.runs.execution.shared_resources import Shared
from runner.runs.finished.result import FinishedRun
from runner.runs.session.run import cache_beside
from runner.runs.session.session import Session, interrupted
from runner.runs.shards.checks import checked
from runner.runs.shards.parts import ShardPart, parts_at
from runner.spec.origin import MARKER

STAGING = ".merging"
"""In the run's folder: what is made of its parts, until it is whole."""

PIECE = 4 << 20
"""Bytes of lines that are written at once."""


def merge(
    run_id: str,
    results: Results,
    others: Sequence[RunFolder] = (),
    *,
    wait_seconds: float = 0.0,
    watch: Watch | None = None,
) -> FinishedRun:
    """Make one run of its parts: those in its folder, and `others` that stand elsewhere. One that is merged is shown.

    No model is asked, and no key is needed.

    Raises:
        MergeError: parts are missing, there twice, of another run, unfinished, or were edited; with all that is wrong.
        RunDirectoryError: the run was played whole, or another process is at work on it.
        RunError: a file cannot be read or written.
        Interrupted: SIGINT or SIGTERM; nothing was changed.
    """
    whole = results.run(run_id)
    if not others and not whole.path.is_dir():
        checked(run_id, (), ())  # before the lock makes a folder
    with interruptible(run_id), results.lock(run_id, wait_seconds):
        if whole.manifest_path.is_file():
            return _merged_already(whole, results)
        folders = {folder.path.resolve(): folder for folder in (*(part for _, part in whole.begun_parts()), *others)}
        results.board.check()
        parts = checked(run_id, *parts_at(list(folders.values())))
        try:
            result = _Merge(whole, parts, watch).made()
        except BaseException:
            with suppress(OSError):
                remove_folder(whole.path / STAGING)
            raise
    with interruptible(run_id):
        results.board.append(whole)
    return result


def _merged_already(whole: RunFolder, results: Results) -> FinishedRun:
    manifest = whole.manifest()
    if not (whole.parts / MERGED).is_file():
        raise RunDirectoryError(
            f"run {whole.run_id} was begun by a process that plays all of it ({manifest.status}); its parts cannot be "
            f"merged into it. Move one of the two away: {whole.path} without {SHARDS}/, or {SHARDS}/"
        )
    if manifest.status in PLAYED:
        results.board.append_missing(whole)
    return FinishedRun.opened(whole)


def all_done(whole: RunFolder, of: int) -> tuple[bool, int]:
    """Whether all parts in a run's folder have been played, and how many have, as far as that was looked at."""
    parts = [part for shard, part in whole.begun_parts() if shard.of == of]
    done = 0
    for part in parts:
        with suppress(RunError):
            done += part.manifest().status in PLAYED
    return done == of, done


class _Merge:
    """The making of one run."""

    def __init__(self, whole: RunFolder, parts: Sequence[ShardPart], watch: Watch | None) -> None:
        self._whole, self._parts, self._watch = whole, parts, watch
        self._first = min(parts, key=lambda part: (part.manifest.started_at, part.shard))
        """The part that began the run: what is only known then is as it says."""
        self._staged = RunFolder(whole.path / STAGING, whole.run_id)
        self._notes: list[str] = []

    def made(self) -> FinishedRun:
        """Make it, and put it in its place."""
        plan = self._plan()
        try:
            remove_folder(self._staged.path)
            make_folder(self._staged.path)
        except OSError as error:
            raise RunError(f"cannot make {self._staged.path}: {error.strerror}") from error
        self._note_differences()
        self._write_journal()
        self._write_log()
        manifest = self._manifest(plan)
        self._staged.write_manifest(manifest)
        session = Session(plan, self._staged, manifest, shared := Shared([plan]), watch=self._watch, recorded_only=True)
        try:
            shared.play(session.play)
        except RunError as error:
            raise MergeError(self._whole.run_id, [f"{error}"]) from error
        if shared.stop.stopping:
            raise interrupted(self._whole.run_id)
        self._put_inputs(plan)
        ended = max(part.manifest.finished_at or "" for part in self._parts)
        self._put(replace(session.manifest, finished_at=ended))
        result = FinishedRun.opened(self._whole)
        return replace(result, was_finished=False, notes=(*self._notes, *session.notes))

    def _plan(self) -> Plan:
        """The plan of the whole run, as the part that began it saved it."""
        spec = self._first.read_plan().spec
        return Plan(replace(spec, shard=None, begun_as=self._whole.run_id))

    def _note_differences(self) -> None:
        """Note what the parts differ in, and is no reason not to merge them."""
        for what, name in (("nip-run", "version"), ("Python", "python"), ("git commit", "git_commit")):
            said = sorted({str(getattr(part.manifest, name)) for part in self._parts})
            if len(said) > 1:
                first = getattr(self._first.manifest, name)
                self._notes.append(f"shards were played with {what} {comma_join(said)}; the run says {first}")
        specs = {file_hash(part.folder.spec) for part in self._parts}
        if len(specs) > 1:
            self._notes.append(
                f"shards were played by specs that differ in where and how fast they ask; the run's is that of shard "
                f"{self._first.shard}"
            )

    def _write_journal(self) -> None:
        identity, path = self._first.manifest.identity, self._staged.journal
        firsts = [first_record(part.folder.journal) for part in self._parts]
        number = tagged_hash("merged", [None if one is None else one.get("journal") for one in firsts])[:16]
        header = begun(identity, self._whole.run_id, journal=number)
        first = encode(0, header)
        seed, sequence = seed_of(first, header), 1
        try:
            with create(path) as file:
                held = [first]
                size = len(first)
                for part, begun_as in zip(self._parts, firsts, strict=True):
                    for record in _records(part):
                        _note_origin(record, begun_as)
                        held.append(encode(sequence, record, seed))
                        size += len(held[-1])
                        sequence += 1
                        if size > PIECE:
                            file.write(b"".join(held))
                            held, size = [], 0
                file.write(b"".join(held))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error

    def _write_log(self) -> None:
        """What the parts' logs say, one after the other."""
        try:
            with create(self._staged.log) as file:
                for part in self._parts:
                    with suppress(FileNotFoundError), open_to_read(part.folder.log) as log:
                        while piece := log.read(PIECE):
                            file.write(piece)
        except OSError as error:
            raise RunError(f"cannot write {self._staged.log}: {error.strerror}") from error

    def _manifest(self, plan: Plan) -> Manifest:
        """The manifest of the run that a process of its own would have begun when the first part was."""
        had = replace(self._first.manifest, run_id=self._whole.run_id)
        manifest = updated_manifest(had, plan).recording("replay_of", "cache")
        return replace(manifest, cache=cache_beside(plan.spec, self._whole))

    def _put_inputs(self, plan: Plan) -> None:
        """The spec and the inputs into the run's folder, as they stand in the part that began it."""
        first = self._first.folder.path
        self._whole.make("inputs")
        for path in _files(first / "inputs"):
            inside = path.relative_to(first)
            self._whole.make(*inside.parts[:-1])
            _copy(path, self._whole.path / inside)
        if (first / MARKER).is_file():
            _copy(first / MARKER, self._whole.path / MARKER)
        if plan.spec.replays:  # whose paths are said from the folder
            write_inputs(plan, self._whole)
        else:
            _copy(self._first.folder.spec, self._whole.spec)

    def _put(self, manifest: Manifest) -> None:
        """All that was made in its place, the manifest last: with it there is a run."""
        whole, staged = self._whole.path, self._staged
        try:
            staged.manifest_path.unlink()
            for path in sorted(staged.path.iterdir()):
                target = whole / path.name
                if path.is_dir():
                    remove_folder(target)
                path.replace(target)
            fsync_dir(whole)
            remove_folder(staged.path)
        except OSError as error:
            raise RunError(f"cannot write {whole}: {error.strerror}") from error
        said = {
            "parts": [
                {
                    "shard": str(part.shard),
                    "journal_sha256": file_hash(part.folder.journal),
                    "records": part.manifest.journal_records,
                    "started_at": part.manifest.started_at,
                    "finished_at": part.manifest.finished_at,
                }
                for part in self._parts
            ]
        }
        self._whole.make(SHARDS)
        atomic_write(self._whole.parts / MERGED, orjson.dumps(said, option=orjson.OPT_INDENT_2))
        self._whole.write_manifest(manifest)


def _records(part: ShardPart) -> Iterator[dict[str, Any]]:
    """The records of a part's journal, without the first, and what a process left in flight as the next would count it.

    Raises:
        MergeError: it is not what was looked at any more.
    """
    path, count = part.folder.journal, 0
    left = AbandonedCalls(part.folder.in_flight)
    watches = bool(left.most.completions)
    try:
        with open_to_read(path) as file:
            for _, _, record in scan(file, path, part.manifest.identity):
                if record is None:
                    break
                count += 1
                sequence = record.pop("seq")
                if watches:
                    left.see(sequence, parse_record(record))
                if sequence:
                    yield record
    except JournalError as error:
        raise MergeError(split_part(part.manifest.run_id)[0], [f"{part}: {error}"]) from error
    if count != part.manifest.journal_records:
        raise MergeError(
            split_part(part.manifest.run_id)[0], [f"{part}: its journal changed while it was merged; merge again"]
        )
    if left.most.completions:
        yield left.lost().to_json()


def _note_origin(record: dict[str, Any], first: Mapping[str, Any] | None) -> None:
    """Store the number of the part's journal in its answer: caches that the part filled know the answer by it."""
    if record.get("kind") == CallRecord.KIND and "of" not in record and first is not None and "journal" in first:
        record.setdefault(ORIGIN, first["journal"])


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file():
            yield path


def _copy(path: Path, target: Path) -> None:
    """A file to another place, whole or not at all."""

    def pieces() -> Iterator[bytes]:
        with open_to_read(path) as file:
            while piece := file.read(PIECE):
                yield piece

    atomic_write(target, pieces())
