"""A run's folder: what it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import orjson

from runner.base.errors import DamagedRunError, NewerFormatError, RunError
from runner.base.hashing import file_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.format_versions import KEY, RUN_FOLDER, STAGE_LOG, refuse_newer
from runner.base.storage.journal import JOURNAL
from runner.base.storage.locks import is_locked
from runner.base.storage.safe_files import make_folder, make_folders, read_bounded
from runner.results.manifest import Manifest, Status
from runner.spec.datasets.shards import Shard
from runner.spec.experiment import RUN_ID_PATTERN, SAVED_SPEC

FINE_TUNE = "fine_tune"

SUMS = "SHA256SUMS"
"""The hashes of a finished run's metrics and tables, in the format of `sha256sum`. Older runs have none."""

SHARDS = "shards"
"""In the folder of a run that is played in shards: the folders of its parts, each a run folder of its own."""


def part_id(run_id: str, shard: Shard) -> str:
    """The id of one part of a run: its folder from that of all runs."""
    return f"{run_id}/{SHARDS}/{shard.folder}"


def split_part(run_id: str) -> tuple[str, Shard | None]:
    """The id of a run, and which part of it is meant; None: the run itself."""
    whole, _, name = run_id.rpartition(f"/{SHARDS}/")
    shard = Shard.of_folder(name) if whole else None
    return (run_id, None) if shard is None else (whole, shard)


MAX_CHECKED = 10_000
_CHECKED: dict[Path, tuple[int, ...]] = {}
"""Files whose hashes were checked by this process, with what `stat` said of them."""


def _recorded_sums(path: Path) -> dict[str, str]:
    """The recorded hashes by file name."""
    try:
        lines = read_bounded(path, 1 << 16).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path
    name: str | None = field(default=None, compare=False)
    """The run's id, where the folder is not named so: that of a run that was got from a registry."""

    @classmethod
    def got(cls, path: Path) -> Self:
        """The folder of a run that a release brought.

        Raises:
            RunError: its manifest is missing, damaged, or says what can be no run's id.
        """
        run_id = cls(path).manifest().run_id
        if not re.fullmatch(RUN_ID_PATTERN, run_id):
            raise RunError(f"{path / 'manifest.json'}: {run_id!r} can be no run's id")
        return cls(path, run_id)

    @property
    def run_id(self) -> str:
        if self.name is not None:
            return self.name
        if Shard.of_folder(self.path.name) is None:
            return self.path.name
        path = self.path.absolute()
        return "/".join(path.parts[-3:]) if path.parent.name == SHARDS else path.name

    @property
    def parts(self) -> Path:
        """Where its parts stand, where it is played in shards."""
        return self.path / SHARDS

    def part(self, shard: Shard) -> RunFolder:
        """The folder of one part, which need not be there."""
        return RunFolder(self.parts / shard.folder)

    def begun_parts(self) -> list[tuple[Shard, RunFolder]]:
        """The parts that have begun, by their numbers."""
        try:
            names = [path.name for path in self.parts.iterdir()]
        except OSError:
            return []
        shards = sorted(shard for name in names if (shard := Shard.of_folder(name)) is not None)
        return [(shard, part) for shard in shards if (part := self.part(shard)).manifest_path.is_file()]

    @property
    def spec(self) -> Path:
        return self.path / SAVED_SPEC

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def stage_log(self) -> Path:
        return self.path / STAGE_LOG

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def in_flight(self) -> Path:
        return self.path / ".in_flight"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def fine_tune(self) -> Path:
        return self.path / FINE_TUNE

    def make(self, *names: str) -> Path:
        """A folder inside this one, by the names on the way to it, made where it is not there.

        Raises:
            RunError: it cannot be made, or a link or a file stands where one of them belongs.
        """
        path = self.path
        try:
            make_folders(path)
            for name in names:
                path /= name
                make_folder(path)
        except OSError as error:
            raise RunError(f"cannot make {path}: {error.strerror}") from error
        return path

    def beside(self, run_id: str) -> RunFolder:
        """Another run of the same results folder."""
        return RunFolder(self.path.with_name(run_id))

    def table(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    @property
    def sums(self) -> Path:
        return self.path / SUMS

    def intact_table(self, name: str) -> Path:
        """The file of a table, after its hash was checked.

        Raises:
            RunError: the file is not the one that the run wrote.
        """
        self.check(self.table(name))
        return self.table(name)

    def read_metrics(self) -> dict[str, Any]:
        """The content of `metrics.json`, after its hash was checked.

        Raises:
            RunError: it is missing or damaged, or is not the file that the run wrote.
        """
        if not self.metrics.is_file():
            raise DamagedRunError(
                f"{self.metrics} is missing. The command that played the run writes it again for free"
            )
        self.check(self.metrics)
        return read_json(self.metrics)

    def seal(self, *tables: str) -> None:
        """Write the hashes of the metrics and of these tables."""
        lines = [f"{file_hash(path)}  {path.name}\n" for path in (self.metrics, *map(self.table, tables))]
        atomic_write(self.sums, "".join(lines).encode())

    def unseal(self) -> None:
        """Remove the hashes, since the files are about to be replaced."""
        self.sums.unlink(missing_ok=True)

    def check(self, path: Path, *, since_sealed: bool = False) -> None:
        """Compare a file's hash with the one that was recorded when the run finished.

        `since_sealed` checks only files that were modified after that, for readers of many runs.

        Raises:
            RunError: the hashes differ.
        """
        try:
            sealed = self.sums.stat().st_mtime_ns
            found = path.stat()
        except FileNotFoundError:
            return
        if since_sealed and found.st_mtime_ns <= sealed:
            return
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, sealed)
        if _CHECKED.get(path) == key:
            return
        if file_hash(path) != _recorded_sums(self.sums).get(path.name):
            raise DamagedRunError(
                f"{path} is damaged: it is not the file that the run wrote. nip-run verify {self.path} shows what "
                f"differs; to have it rebuilt from the journal, remove it and repeat the command that played the run"
            )
        if len(_CHECKED) >= MAX_CHECKED:
            _CHECKED.clear()
        _CHECKED[path] = key

    def manifest(self) -> Manifest:
        """The manifest. A run that says it is running and that no process holds was interrupted.

        Raises:
            RunError: it is missing, damaged, or none of ours.
            NewerFormatError: a newer nip-run wrote it.
        """
        data = read_json(self.manifest_path)
        try:
            refuse_newer(self.manifest_path, data.get(KEY, 0), RUN_FOLDER)
            manifest = Manifest.from_json(data)
        except (TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{self.manifest_path} is not a manifest of nip-run") from error
        if manifest.status == Status.RUNNING and not is_locked(self.lock):
            return replace(manifest, status=Status.INTERRUPTED)
        return manifest

    def identity(self) -> str | None:
        """What its manifest says that its run is; None where it has none.

        Raises:
            RunError, NewerFormatError: see `manifest`.
        """
        return self.manifest().identity if self.manifest_path.is_file() else None

    def damage(self) -> str | None:
        """Why the manifest cannot be read, and what to do; None where it can."""
        try:
            self.manifest()
        except NewerFormatError as error:
            return f"{error}; left out"
        except RunError as error:
            return f"{error}; left out. Remove the file to have the run made again from its journal by its own command"
        return None

    def write_manifest(self, manifest: Manifest) -> None:
        atomic_write(self.manifest_path, orjson.dumps(manifest.to_json(), option=orjson.OPT_INDENT_2))
