"""The paths of a run's folder, and functions that read and check its files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from runner.base.errors import DamagedRunError, NewerFormatError, ReleaseError, RunError, errors_as
from runner.base.hashing import file_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.fetched_markers import MARKER, RELEASE_MANIFEST
from runner.base.storage.format_versions import KEY, RUN_FOLDER, STAGE_LOG, refuse_newer
from runner.base.storage.locks import is_locked
from runner.base.storage.log_lines import JOURNAL
from runner.base.storage.safe_files import make_folder, make_folders, read_bounded
from runner.spec.datasets.shards import Shard
from runner.spec.run_names import RUN_ID_PATTERN, SAVED_SPEC

if TYPE_CHECKING:
    from runner.results.manifest import Manifest

FINE_TUNE = "fine_tune"
"""The subfolder with the fine-tuning files."""

SUMS = "SHA256SUMS"
"""The file with the hashes of a finished run's metrics and tables, in the format of `sha256sum`; older runs lack it."""

_GET_AGAIN = "get the release again into another folder"
"""The advice in messages about a damaged file of a fetched release."""

SHARDS = "shards"
"""The subfolder with the shards of a run. Each shard is a run folder."""

NO_PROVER_HEARD = "no_prover_heard"
"""The kind, in the file of problems, of verdicts that were given before any prover spoke."""


def part_id(run_id: str, shard: Shard) -> str:
    """Return the id of a shard of a run. It is also the path of the shard below the folder of runs."""
    return f"{run_id}/{SHARDS}/{shard.folder}"


def split_part(run_id: str) -> tuple[str, Shard | None]:
    """Split the id of a shard into the run's id and the shard. For the id of a run, the shard is None."""
    parent_id, _, name = run_id.rpartition(f"/{SHARDS}/")
    shard = Shard.of_folder(name) if parent_id else None
    return (run_id, None) if shard is None else (parent_id, shard)


_MAX_INTACT_FILES = 10_000
_INTACT_FILES: dict[Path, tuple[int, ...]] = {}
"""Files whose hashes this process has checked, with their state (values of `stat`) at the time of the check."""


def _sealed_hashes(path: Path) -> dict[str, str]:
    """Return the hashes in `SHA256SUMS` by file name."""
    with errors_as(RunError, f"cannot read {path}", OSError, UnicodeDecodeError):
        lines = read_bounded(path, 1 << 16).decode().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _published_hashes(manifest: Path, folder: str) -> dict[str, str]:
    """Return the hashes of the files in one folder of a fetched release by file name."""
    from runner.documents.releases.limits import MAX_MANIFEST
    from runner.documents.releases.manifest import Release

    try:
        files = Release.from_bytes(read_bounded(manifest, MAX_MANIFEST)).files
    except (OSError, ReleaseError, NewerFormatError) as error:
        raise RunError(f"{manifest} cannot be read: {error}. nip-run verify {manifest.parent} shows more") from error
    prefix = f"{folder}/"
    return {file.path.removeprefix(prefix): file.sha256 for file in files if file.path.startswith(prefix)}


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run or of a shard."""

    path: Path
    name: str | None = field(default=None, compare=False)
    """The run's id if the folder has another name, as in a fetched release."""

    @classmethod
    def from_release(cls, path: Path) -> Self:
        """Return the folder of a run in a fetched release.

        Raises:
            RunError: the manifest is missing or damaged, or has an invalid run id.
        """
        run_id = cls(path).manifest().run_id
        if not re.fullmatch(RUN_ID_PATTERN, run_id):
            raise RunError(f"{path / 'manifest.json'}: {run_id!r} is not a valid run id; download the release again")
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
    def parts_folder(self) -> Path:
        """The folder with the run's shards, which exists if the run is played in shards."""
        return self.path / SHARDS

    def part(self, shard: Shard) -> RunFolder:
        """Return the folder of a shard, which need not exist."""
        return RunFolder(self.parts_folder / shard.folder)

    def started_parts(self) -> list[tuple[Shard, RunFolder]]:
        """Return the shards that have started, in order, with their folders."""
        try:
            names = [path.name for path in self.parts_folder.iterdir()]
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
    def problems_path(self) -> Path:
        """The file with the problems in the games. Earlier versions called problems troubles."""
        return self.path / "troubles.json"

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
        """Create nested folders with these names inside this one, if they do not exist, and return the last.

        Raises:
            RunError: a folder cannot be created, or a link or a file has its name.
        """
        path = self.path
        try:
            make_folders(path)
            for name in names:
                path /= name
                make_folder(path)
        except OSError as error:
            raise RunError(f"cannot create {path}: {error.strerror}") from error
        return path

    def sibling(self, run_id: str) -> RunFolder:
        """Return the folder of another run in the same results folder."""
        return RunFolder(self.path.with_name(run_id))

    def table(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    @property
    def sums(self) -> Path:
        return self.path / SUMS

    @property
    def release(self) -> Path | None:
        """The folder of the fetched release that contains this run; None for other runs."""
        folder = self.path.parent
        return folder if (folder / MARKER).is_file() else None

    @property
    def additions(self) -> RunFolder:
        """The folder for new analyses and labels, outside the `data/` of a fetched release, which must not change."""
        return self if self.release is None else RunFolder(self.release, self.run_id)

    def intact_table(self, name: str) -> Path:
        """Return the file of a table after checking its hash.

        Raises:
            RunError: the file was changed since the run wrote it.
        """
        self.check(self.table(name))
        return self.table(name)

    def read_metrics(self) -> dict[str, Any]:
        """Return the content of `metrics.json` after checking its hash.

        Raises:
            RunError: the file is missing or damaged, or was changed since the run wrote it.
        """
        if not self.metrics.is_file():
            rebuild = "repeat the command that played the run to rebuild it for free"
            raise DamagedRunError(f"{self.metrics} is missing; {rebuild if self.release is None else _GET_AGAIN}")
        self.check(self.metrics)
        return read_json(self.metrics)

    def seal(self, *tables: str) -> None:
        """Write the hashes of the metrics and of these tables to `SHA256SUMS`."""
        lines = [f"{file_hash(path)}  {path.name}\n" for path in (self.metrics, *map(self.table, tables))]
        atomic_write(self.sums, "".join(lines).encode())

    def unseal(self) -> None:
        """Remove `SHA256SUMS`, before the files that it lists are replaced."""
        self.sums.unlink(missing_ok=True)

    def check(self, path: Path, *, since_sealed: bool = False) -> None:
        """Check that a file has the hash that was recorded when the run finished or was published.

        With `since_sealed`, a file that was not modified since then is not checked, which saves time for many runs.
        A missing file passes, as does a file of a run without recorded hashes.

        Raises:
            RunError: the hashes differ.
        """
        release = self.release
        is_sealed = release is None or self.sums.is_file()
        hash_file = self.sums if release is None or is_sealed else release / RELEASE_MANIFEST
        try:
            sealed_at = hash_file.stat().st_mtime_ns
            current = path.stat()
        except FileNotFoundError:
            return
        if since_sealed and current.st_mtime_ns <= sealed_at:
            return
        state = (current.st_dev, current.st_ino, current.st_size, current.st_mtime_ns, sealed_at)
        if _INTACT_FILES.get(path) == state:
            return
        hashes = _sealed_hashes(hash_file) if is_sealed else _published_hashes(hash_file, self.path.name)
        if not is_sealed and path.name not in hashes:
            return  # a table of a run that an earlier version fetched
        if file_hash(path) != hashes.get(path.name):
            rebuild = "to have it rebuilt from the journal, remove it and repeat the command that played the run"
            raise DamagedRunError(
                f"{path} is damaged: its content is not what the run wrote. nip-run verify {release or self.path} "
                f"shows the differences; {rebuild if release is None else _GET_AGAIN}"
            )
        if len(_INTACT_FILES) >= _MAX_INTACT_FILES:
            _INTACT_FILES.clear()
        _INTACT_FILES[path] = state

    def manifest(self) -> Manifest:
        """Return the manifest. If the status is `running`, but no process has the run's lock, the run was interrupted.

        Raises:
            RunError: the manifest is missing or damaged, or is not a manifest of nip-run.
            NewerFormatError: a newer version of nip-run wrote the manifest.
        """
        from runner.results.manifest import Manifest, Status

        data = read_json(self.manifest_path)
        try:
            refuse_newer(self.manifest_path, data.get(KEY, 0), RUN_FOLDER)
            manifest = Manifest.from_json(data)
        except (TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{self.manifest_path} is not a manifest of nip-run; give the folder of a run, or "
                "replace the file with an intact copy"
            ) from error
        if manifest.status == Status.RUNNING and not is_locked(self.lock):
            return replace(manifest, status=Status.INTERRUPTED)
        return manifest

    def identity(self) -> str | None:
        """Return the identity recorded in the manifest; None without a manifest.

        Raises:
            RunError, NewerFormatError: see `manifest`.
        """
        return self.manifest().identity if self.manifest_path.is_file() else None

    def no_prover_message(self) -> str | None:
        """Return a message if the verifier decided many games before any prover spoke, else None."""
        problems = read_json(self.problems_path)["troubles"] if self.problems_path.is_file() else []
        messages = (row["message"] for row in problems if row["kind"] == NO_PROVER_HEARD)
        return next((f"{self.run_id}: {message}" for message in messages), None)

    def damage(self) -> str | None:
        """Return an error message if the manifest cannot be read, else None."""
        try:
            self.manifest()
        except NewerFormatError as error:
            return f"{error}; the run is left out"
        except RunError as error:
            return (
                f"{error}; the run is left out. To rebuild the file instead, remove the file and repeat the command "
                "that played the run"
            )
        return None

    def write_manifest(self, manifest: Manifest) -> None:
        atomic_write(self.manifest_path, orjson.dumps(manifest.to_json(), option=orjson.OPT_INDENT_2))


def usage_of_parts(parts: Iterable[RunFolder]) -> dict[str, object]:
    """Return the games, calls and cost of runs that are not in progress; the cost is None if one of them is unknown."""
    manifests = [manifest for part in parts if (manifest := part.manifest()).rollouts is not None]
    costs = [manifest.cost_usd for manifest in manifests]
    return {
        "rollouts": sum(manifest.rollouts or 0 for manifest in manifests),
        "completions": sum(manifest.completions or 0 for manifest in manifests),
        "cost_usd": None if None in costs else round(sum(cost or 0.0 for cost in costs), 9),
    }
