"""Cache of the files that a board reads from a registry: manifests, and the checked files of benchmark runs.

Releases are cached by the hash of their manifest. So no release is read twice, and later changes in the registry do not
affect the board. In the cache, the id of a run is this hash, because several releases may have the same run id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from runner.base.errors import NipRunError, ReleaseError, os_errors_as
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import create, make_folders, read_bounded, remove_folder
from runner.documents.releases.bundle import check_content
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import Release, digest
from runner.registry.board.run_check import check_run
from runner.registry.lineage.nodes import LineageNode, node_from_release, read_content_hashes
from runner.registry.release_errors import RegistryUnavailableError, describe_error, is_temporary
from runner.registry.rollouts_file import ROLLOUTS_FILE
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.verification.kinds import find_kind_problems
from runner.results.folder import RunFolder
from runner.spec.origin import MARKER
from runner.version import __version__

_DATA_PREFIX = "data/"
SMALL_FILES = ("data/manifest.json", "data/metrics.json", "data/spec.yaml")
MAX_SMALL_BYTES = 16 << 20
"""Maximum size of each of `SMALL_FILES`."""
MAX_INPUT_BYTES = 256 << 20
"""Maximum size of each file of a run's inputs."""
MAX_ROLLOUTS_BYTES = 4 << 30
"""Maximum size of the file of a run's rollouts."""
_CHECK_RESULT = "checked.json"
"""The file with the result of a check, in the run's folder. Its key `by` is the version of nip-run that checked."""
_BENCHMARK_RUNS = "kept"
"""The folder of checked benchmark runs."""
_TRAINING_RUNS = "trained"
"""The folder of checked training runs."""
_OTHER_INPUTS = "inputs"
"""The folder of the datapoints of runs that are not on the board, such as older versions."""
_REFUSALS = "refused"
"""The folder of the reasons why releases were refused."""
STAGES, ROLLOUTS = "data/stages.jsonl", _DATA_PREFIX + ROLLOUTS_FILE


def default_cache() -> Path:
    """Return the default folder of cached boards, which can be rebuilt at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "nip-run" / "boards"


@dataclass(frozen=True)
class CachedRun:
    """A published run whose metrics were checked against its records."""

    folder: RunFolder
    marks: tuple[str, ...]
    """Remarks on the run's metrics."""
    run_id: str
    """The published id of the run. In the manifest in `folder`, the id is the hash of the release."""


class RefusedRelease(ReleaseError):
    """Raised if the files of a release have the right hashes, but contradict each other or are malformed."""


@dataclass(frozen=True)
class BoardCache:
    """The cache of one registry, in a folder."""

    path: Path

    @classmethod
    def for_registry(cls, registry: Registry, root: Path | None = None) -> Self:
        """Return the cache of a registry, and create its folder in `root` or in the default folder.

        Raises:
            ReleaseError: the folder cannot be created.
        """
        return cls.in_folder((root or default_cache()) / tagged_hash("board", registry.address)[:32])

    @classmethod
    def in_folder(cls, path: Path) -> Self:
        """Return the cache in the folder `path`, and create the folder. Raises as `for_registry`."""
        with os_errors_as(ReleaseError, f"cannot write {path}", "; set another XDG_CACHE_HOME"):
            for name in ("manifests", _BENCHMARK_RUNS, _TRAINING_RUNS, _OTHER_INPUTS, _REFUSALS):
                make_folders(path / name)
            atomic_write(path / MARKER, b"{}\n")  # marks the folder's contents as untrusted
        return cls(path)

    def load_release(self, registry: Registry, entry: ReleaseEntry) -> Release:
        """Return a release's manifest from the cache or the registry. Raises as `Registry.read_manifest`."""
        path = self.path / "manifests" / f"{entry.sha256}.json"
        with suppress(OSError, ReleaseError):
            data = read_bounded(path, MAX_MANIFEST)
            release = Release.from_bytes(data, registry.limits)
            if digest(data) == entry.sha256 and release.reference == entry.reference:
                return release
        release, data = registry.read_manifest(entry)
        atomic_write(path, data)
        return release

    def lineage_node(self, entry: ReleaseEntry, release: Release) -> LineageNode:
        """Return the node of a run or model in the lineage graph. Raises as `node_from_release`."""
        return node_from_release(entry, release)

    def has_manifest(self, entry: ReleaseEntry) -> bool:
        """Return whether the manifest of a release is cached."""
        return (self.path / "manifests" / f"{entry.sha256}.json").is_file()

    def files_to_read(self, entry: ReleaseEntry, release: Release) -> list[str]:
        """Return the files that `load_run` will read from the registry: none if the result of its check is cached."""
        if self._cached_result(entry, self.run_folder(entry.sha256)) is not None:
            return []
        return [file.path for file in release.files if _is_board_file(file.path)]

    def run_folder(self, sha256: str) -> RunFolder:
        """Return the folder of a checked benchmark run, by the hash of its release."""
        return RunFolder(self.path / _BENCHMARK_RUNS / sha256)

    def load_run(self, registry: Registry, entry: ReleaseEntry, release: Release) -> CachedRun:
        """Return a benchmark run for the board, after checking its metrics.

        Raises:
            RefusedRelease: the release has the right hashes, but its metrics do not follow from its records.
            ReleaseError: the release cannot be read now, or is damaged.
        """
        folder = self.run_folder(entry.sha256)

        def check() -> dict[str, Any]:
            fetch_files(registry, entry, release, folder.path, _is_board_file)
            with _refuse_malformed(entry, folder):
                marks, run_id = check_run(folder, release, entry.sha256)
            return {"marks": marks, "run_id": run_id}

        result = self._check_once(entry, folder, check)
        return CachedRun(folder, tuple(result["marks"]), str(result["run_id"]))

    def check_training(self, registry: Registry, entry: ReleaseEntry, release: Release) -> None:
        """Check that the trained models in a release's facts are those in the run's stage log.

        Raises:
            RefusedRelease: the facts and the stage log disagree.
            ReleaseError: the release cannot be read now, or is damaged.
        """
        folder = RunFolder(self.path / _TRAINING_RUNS / entry.sha256)

        def check() -> dict[str, Any]:
            fetch_files(registry, entry, release, folder.path, lambda path: path in (*SMALL_FILES, STAGES))
            with _refuse_malformed(entry, folder):
                for problem in find_kind_problems(folder, release.facts):
                    raise RefusedRelease(problem)
            return {}

        self._check_once(entry, folder, check)

    def _check_once(
        self, entry: ReleaseEntry, folder: RunFolder, check: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the cached result of checking a release. If none is cached, call `check` and cache its result.

        Raises:
            RefusedRelease: this version of nip-run refuses the release, now or in an earlier check.
            ReleaseError: the release cannot be read now; the next call tries again.
        """
        with locked(self.path / ".lock", str(self.path), 600):
            result = self._cached_result(entry, folder)
            if result is not None and "why" in result:
                raise RefusedRelease(str(result["why"]))
            if result is not None:
                return result
            remove_folder(folder.path)
            make_folders(folder.path)
            try:
                result = {"by": __version__, **check()}
            except RefusedRelease as error:
                remove_folder(folder.path)
                atomic_write(self._refusal_path(entry), orjson.dumps({"by": __version__, "why": str(error)}))
                raise
            atomic_write(folder.path / _CHECK_RESULT, orjson.dumps(result))
            return result

    def _cached_result(self, entry: ReleaseEntry, folder: RunFolder) -> dict[str, object] | None:
        """Return the result of a check by this version of nip-run, which has the key `why` if it was a refusal."""
        for path in (folder.path / _CHECK_RESULT, self._refusal_path(entry)):
            with suppress(NipRunError):
                result = read_json(path)
                if result.get("by") == __version__:
                    return result
        return None

    def _refusal_path(self, entry: ReleaseEntry) -> Path:
        return self.path / _REFUSALS / f"{entry.sha256}.json"

    def load_datapoints(self, registry: Registry, entry: ReleaseEntry, release: Release) -> frozenset[str] | None:
        """Return the content hashes of the datapoints in a run's inputs; None if they are missing or unreadable."""
        folder = self.run_folder(entry.sha256).path
        if not (folder / _CHECK_RESULT).is_file():
            folder = self.path / _OTHER_INPUTS / entry.sha256
        try:
            if not folder.is_dir():
                fetch_files(registry, entry, release, folder, lambda path: path.startswith("data/inputs/"))
            return read_content_hashes(RunFolder(folder))
        except (MemoryError, RegistryUnavailableError):
            raise
        except Exception:  # noqa: BLE001 - malformed inputs must not affect other runs
            remove_folder(folder)
            return None

    def list_checked_runs(self) -> list[RunFolder]:
        """Return all checked benchmark runs."""
        folders = sorted((self.path / _BENCHMARK_RUNS).iterdir())
        return [RunFolder(path) for path in folders if (path / _CHECK_RESULT).is_file()]


def _is_board_file(path: str) -> bool:
    """Return whether a board reads a file of a benchmark run's release."""
    return path in (*SMALL_FILES, ROLLOUTS) or path.startswith("data/inputs/")


@contextmanager
def _refuse_malformed(entry: ReleaseEntry, folder: RunFolder) -> Iterator[None]:
    """Convert exceptions in a `with` block that reads a release, and refuse the release if its contents caused one.

    Raises:
        RefusedRelease: the release contradicts itself, or is malformed.
        ReleaseError: this machine cannot read the release now.
    """
    try:
        yield
    except Exception as error:
        reason = describe_error(error, folder.path)
        if is_temporary(error, folder.path):
            raise ReleaseError(f"{entry.reference} cannot be read now: {reason}; try again") from error
        raise RefusedRelease(reason) from error


def fetch_files(
    registry: Registry, entry: ReleaseEntry, release: Release, target: Path, is_selected: Callable[[str], bool]
) -> None:
    """Copy the selected files of a run's release into the folder `target`, and check their hashes.

    Raises:
        ReleaseError: a file is damaged, missing, or too large.
        OSError: a file cannot be written.
    """
    for file in release.files:
        if not is_selected(file.path):
            continue
        max_bytes = MAX_ROLLOUTS_BYTES if file.path == ROLLOUTS else MAX_INPUT_BYTES
        if file.size > (MAX_SMALL_BYTES if file.path in SMALL_FILES else max_bytes):
            raise ReleaseError(f"{entry.reference}: {file.path} has {file.size:,} bytes, too large for a board")
        path = target / file.path.removeprefix(_DATA_PREFIX)
        make_folders(path.parent)
        with registry.open(entry, file.path) as source, create(path) as copy:
            try:
                check_content(source, file, copy_to=copy.write)
            except ReleaseError as error:
                raise type(error)(f"{entry.reference}: {error}") from error
