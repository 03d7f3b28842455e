"""Merges the shards of a run (`nip-run merge`): joins their journals, and builds all other files from the result.

The files are built in a staging folder and then moved to the run's folder, the manifest last. A merge that is killed
has no visible effect and can be repeated. The joined journal has the records of all shards, in the order of the shard
numbers. The first record of the joined journal is derived from the first records of the shards, so the same shards give
the same journal on every machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import JournalError, MergeError, RunDirectoryError, RunError, UsageError, os_errors_as
from runner.base.hashing import file_hash, tagged_hash
from runner.base.storage.atomic_files import atomic_write, fsync_dir
from runner.base.storage.log_lines import encode, first_record, log_seed, scan
from runner.base.storage.safe_files import create, make_folder, open_to_read, remove_folder
from runner.base.text import comma_join
from runner.models.api_keys import KeyUse
from runner.models.journal_records import ORIGIN, CallRecord, log_header, parse_record
from runner.models.layers.lost_calls import AbandonedCalls
from runner.results.folder import SHARDS, RunFolder, split_part
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Manifest
from runner.results.metric_plugins import PLUGINS, check_recorded_plugins, describe_pin
from runner.results.provenance.input_files import write_inputs
from runner.results.provenance.manifest_writer import updated_manifest
from runner.rollouts.plan import Plan
from runner.runs.execution.process import interruptible
from runner.runs.execution.shard_consistency import MERGED
from runner.runs.execution.shared_resources import SharedResources
from runner.runs.finished.result import FinishedRun
from runner.runs.session.run import has_outputs, rebuild_outputs, relative_cache_path
from runner.runs.session.session import Session
from runner.runs.shards.checks import check_shards
from runner.runs.shards.stored_shards import StoredShard, read_shards
from runner.spec.loader import Spec
from runner.spec.origin import MARKER

STAGING = ".merging"
"""The name of the staging folder in the run's folder."""

PIECE_BYTES = 4 << 20
"""The number of bytes of a file to copy at a time."""


def merge(
    run_id: str,
    results: Results,
    other_folders: Sequence[RunFolder] = (),
    *,
    wait_seconds: float = 0.0,
    allowed: frozenset[KeyUse] = frozenset(),
) -> FinishedRun:
    """Merge the shards of a run, from its folder and the folders `other_folders`, and return the merged run.

    If the run is already merged, only missing metrics and tables are rebuilt. No model is called, and no API key is
    needed. `allowed` is what the user allows downloaded shards.

    Raises:
        MergeError: shards are missing, duplicated, of another run, unfinished or edited, or the plugin of a metric
            cannot be used; the error lists all problems.
        RunDirectoryError: the run was played without shards, or another process has locked it.
        RunError: a file cannot be read or written.
        Interrupted: SIGINT or SIGTERM; nothing was changed.
    """
    run = results.run(run_id)
    if not other_folders and not run.path.is_dir():
        check_shards(run_id, (), ())  # raises before the lock creates a folder
    with interruptible(run_id), results.lock(run_id, wait_seconds):
        if run.manifest_path.is_file():
            return _result_of_merged_run(run, results, allowed)
        folders = {
            folder.path.resolve(): folder for folder in (*(folder for _, folder in run.started_parts()), *other_folders)
        }
        results.board.check()  # raises now if a row could not be added to the leaderboard at the end
        shards = check_shards(run_id, *read_shards(list(folders.values())))
        try:
            result = _Merge(run, shards, allowed).build()
        except BaseException:
            with suppress(OSError):
                remove_folder(run.path / STAGING)
            raise
    with interruptible(run_id):
        results.board.append(run)
    return result


def _result_of_merged_run(run: RunFolder, results: Results, allowed: frozenset[KeyUse]) -> FinishedRun:
    manifest = run.manifest()
    if not (run.parts_folder / MERGED).is_file():
        raise RunDirectoryError(
            f"run {run.run_id} was started without --shard ({manifest.status}), so the shards in its folder cannot be "
            f"merged into it. To keep the run, move {run.path / SHARDS} to another folder. To merge the shards, move "
            f"all other files in {run.path} to another folder, and merge again"
        )
    if not has_outputs(run):
        return rebuild_outputs(run, results, allowed)
    if manifest.status in PLAYED:
        results.board.append_missing(run)
    return FinishedRun.from_folder(run)


def count_finished_shards(run: RunFolder, shard_count: int) -> tuple[bool, int]:
    """Return whether all `shard_count` shards in a run's folder are finished, and the number of finished shards."""
    folders = [folder for shard, folder in run.started_parts() if shard.of == shard_count]
    finished_count = 0
    for folder in folders:
        with suppress(RunError):
            finished_count += folder.manifest().status in PLAYED
    return finished_count == shard_count, finished_count


class _Merge:
    """The merge of one run."""

    def __init__(self, run: RunFolder, shards: Sequence[StoredShard], allowed: frozenset[KeyUse]) -> None:
        self._run, self._shards, self._allowed = run, shards, allowed
        self._first_shard = min(shards, key=lambda shard: (shard.manifest.started_at, shard.position))
        """The shard that started first. The merged run takes its spec, start time and versions from this shard."""
        self._staging = RunFolder(run.path / STAGING, run.run_id)
        self._notes: list[str] = []

    def build(self) -> FinishedRun:
        """Build the merged run in the staging folder, move it to its final location, and return it."""
        saved_spec = self._first_shard.read_plan().spec
        self._check_plugins(saved_spec)
        plan = Plan(replace(saved_spec, shard=None, resumed_run_id=self._run.run_id))
        with _explain_write_errors(self._staging.path):
            remove_folder(self._staging.path)
            make_folder(self._staging.path)
        self._note_differences()
        self._write_journal()
        self._write_log()
        manifest = self._build_manifest(plan)
        self._staging.write_manifest(manifest)
        session = Session(plan, self._staging, manifest, SharedResources([plan]), recorded_only=True)
        try:
            session.play_in_new_loop()
        except RunError as error:
            raise MergeError(self._run.run_id, [f"{error}"]) from error
        self._copy_inputs(plan)
        finished_at = max(shard.manifest.finished_at or "" for shard in self._shards)
        self._move_to_run(replace(session.manifest, finished_at=finished_at))
        result = FinishedRun.from_folder(self._run)
        return replace(result, was_finished=False, notes=(*self._notes, *session.notes))

    def _check_plugins(self, saved_spec: Spec) -> None:
        """Check that all shards have their metrics from the same plugins, and that these may be imported.

        Raises:
            MergeError: they differ, are not installed, or belong to downloaded shards.
        """
        problems = []
        for name in saved_spec.experiment.metrics:
            pins = [(shard, (shard.manifest.plugins or {}).get(PLUGINS.key(name))) for shard in self._shards]
            if len({repr(pin) for _, pin in pins}) > 1:
                versions = [f"{shard} from {describe_pin(pin) if pin else 'no plugin'}" for shard, pin in pins]
                last = next(pin for _, pin in reversed(pins) if pin)
                problems.append(
                    f"the shards have the metric {name!r} from different versions of its plugin: "
                    f"{comma_join(versions)}. Install {describe_pin(last)}, and repeat the commands of the shards with "
                    "another version, which computes the metric again; their games are not played again"
                )
        try:
            if not problems:
                check_recorded_plugins(saved_spec, self._allowed)
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise MergeError(self._run.run_id, problems)

    def _note_differences(self) -> None:
        """Add notes on differences between the shards that do not prevent a merge."""
        for label, name in (("nip-run", "version"), ("Python", "python"), ("git commit", "git_commit")):
            values = sorted({str(getattr(shard.manifest, name)) for shard in self._shards})
            if len(values) > 1:
                first = getattr(self._first_shard.manifest, name)
                self._notes.append(f"shards were played with {label} {comma_join(values)}; the merged run has {first}")
        specs = {file_hash(shard.folder.spec) for shard in self._shards}
        if len(specs) > 1:
            self._notes.append(
                "the specs of the shards differ in addresses or limits; the merged run has the spec of shard "
                f"{self._first_shard.position}"
            )

    def _write_journal(self) -> None:
        """Write the journal with the records of all shards."""
        identity, path = self._first_shard.manifest.identity, self._staging.journal
        first_records = [first_record(shard.folder.journal) for shard in self._shards]
        journal_ids = [None if record is None else record.get("journal") for record in first_records]
        header = log_header(identity, self._run.run_id, journal=tagged_hash("merged", journal_ids)[:16])
        first_line = encode(0, header)
        seed, sequence = log_seed(first_line, header), 1  # the seed starts the checksums of the records
        with _explain_write_errors(path), create(path) as file:
            file.write(first_line)
            for shard, shard_header in zip(self._shards, first_records, strict=True):
                for record in _read_records(shard):
                    _add_origin(record, shard_header)
                    file.write(encode(sequence, record, seed))
                    sequence += 1
            file.flush()
            os.fsync(file.fileno())

    def _write_log(self) -> None:
        """Write the shards' logs, one after the other."""
        with _explain_write_errors(self._staging.log), create(self._staging.log) as file:
            for shard in self._shards:
                with suppress(FileNotFoundError), open_to_read(shard.folder.log) as log:
                    shutil.copyfileobj(log, file)

    def _build_manifest(self, plan: Plan) -> Manifest:
        """Return the manifest of the merged run, with the start time and versions of the shard that started first."""
        first_manifest = replace(self._first_shard.manifest, run_id=self._run.run_id)
        manifest = updated_manifest(first_manifest, plan).with_null_fields("replay_of", "cache")
        return replace(manifest, cache=relative_cache_path(plan.spec, self._run))

    def _copy_inputs(self, plan: Plan) -> None:
        """Copy the spec and the inputs of the shard that started first to the run's folder."""
        first = self._first_shard.folder.path
        self._run.make("inputs")
        for path in _list_files(first / "inputs"):
            relative_path = path.relative_to(first)
            self._run.make(*relative_path.parts[:-1])
            _copy_file(path, self._run.path / relative_path)
        if (first / MARKER).is_file():  # the marker says that a spec was downloaded from a registry
            _copy_file(first / MARKER, self._run.path / MARKER)
        if plan.spec.replays:  # the paths of replayed runs are relative to the run's folder, so the spec changes
            write_inputs(plan, self._run)
        else:
            _copy_file(self._first_shard.folder.spec, self._run.spec)

    def _move_to_run(self, manifest: Manifest) -> None:
        """Move the staged files to the run's folder. The manifest comes last, because it marks the run as complete."""
        run_folder, staging = self._run.path, self._staging
        with _explain_write_errors(run_folder):
            staging.manifest_path.unlink()
            for path in sorted(staging.path.iterdir()):
                target = run_folder / path.name
                if path.is_dir():
                    remove_folder(target)
                path.replace(target)
            fsync_dir(run_folder)
            remove_folder(staging.path)
        merged_shards = {
            "parts": [
                {
                    "shard": str(shard.position),
                    "journal_sha256": file_hash(shard.folder.journal),
                    "records": shard.manifest.journal_records,
                    "started_at": shard.manifest.started_at,
                    "finished_at": shard.manifest.finished_at,
                }
                for shard in self._shards
            ]
        }
        self._run.make(SHARDS)
        atomic_write(self._run.parts_folder / MERGED, orjson.dumps(merged_shards, option=orjson.OPT_INDENT_2))
        self._run.write_manifest(manifest)


@contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `RunError` that names the file or folder to write."""
    with os_errors_as(
        RunError, f"cannot write {path}", ". Check the permissions and the free space of the disk, and merge again"
    ):
        yield


def _read_records(shard: StoredShard) -> Iterator[dict[str, Any]]:
    """Yield the records of a shard's journal except the first.

    If a killed process left calls without an answer, the last record has their maximum cost.

    Raises:
        MergeError: the journal has changed since `check_shards`.
    """
    path, count = shard.folder.journal, 0
    abandoned = AbandonedCalls(shard.folder.in_flight)
    try:
        with open_to_read(path) as file:
            for _, _, record in scan(file, path, shard.manifest.identity):
                if record is None:
                    break
                count += 1
                sequence = record.pop("seq")
                if not abandoned.is_empty:
                    abandoned.apply_record(sequence, parse_record(record))
                if sequence:
                    yield record
    except JournalError as error:
        raise MergeError(split_part(shard.manifest.run_id)[0], [f"{shard}: {error}"]) from error
    if count != shard.manifest.journal_records:
        raise MergeError(
            split_part(shard.manifest.run_id)[0], [f"{shard}: its journal changed while it was merged; merge again"]
        )
    if not abandoned.is_empty:
        yield abandoned.to_record().to_json()


def _add_origin(record: dict[str, Any], header: Mapping[str, object] | None) -> None:
    """Add the id of the shard's journal to an answer, because caches with the shard's answers refer to this id.

    A record with "of" has no answer of its own: it refers to another record's answer.
    """
    if record.get("kind") == CallRecord.KIND and "of" not in record and header is not None and "journal" in header:
        record.setdefault(ORIGIN, header["journal"])


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders, in a fixed order."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _list_files(path)
        elif path.is_file():
            yield path


def _copy_file(path: Path, target: Path) -> None:
    """Copy a file atomically."""

    def pieces() -> Iterator[bytes]:
        with open_to_read(path) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    atomic_write(target, pieces())
