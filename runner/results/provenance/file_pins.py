"""Pins of files: the git repository, commit and path where others can get the same file.

Nothing is fetched. A commit counts as pushed if a remote-tracking branch has it, as of the last push or fetch. A file
counts as unchanged if its bytes equal the committed ones, independent of git's index and filters.

Somebody else's repository may be configured to run programs. So no hook, monitor or filter runs, nothing is fetched,
and environment variables that a hook of another repository has set are removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from runner.base import package_data
from runner.base.errors import NipRunError
from runner.base.hashing import COMMIT, file_hash
from runner.base.storage.safe_files import open_to_read, read_bounded
from runner.base.text import comma_join, counted, encoding_problem
from runner.documents.fetched_files import fetched_folder, read_marker
from runner.documents.releases.manifest import BUILTIN, MANIFEST, RELEASE, FileSource, Release, digest
from runner.version import __version__

# Reasons why others cannot get a file
NOT_IN_GIT = "not in a git repository; run `git init`, then commit and push"
NO_REMOTE = "the git repository has no remote; add one that others can read, and push to it"
LOCAL_REMOTE = "the remote of the git repository is a folder on this machine; push to one that others can read"
NO_COMMIT = "the git repository has no commit yet; commit and push"
NOT_PUSHED = "the current commit is not on the remote; push it"
CHANGED = "uncommitted changes; commit and push them"
NOT_TRACKED = "not committed; commit and push"
GIT_FAILED = "git cannot read the repository, or is not installed; run `git status` there to see the problem"
TOO_LATE = "git did not answer in time; try again"
NO_REVISION = "the spec names no commit on the Hub; set dataset.revision to one (40 hex digits)"

_SCP_ADDRESS = re.compile(r"(?:[^/@\s]+@)?(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(?!//)(?P<path>\S+)")
_SCHEMES = ("https", "http", "ssh", "git")


class PinnedFiles(NamedTuple):
    """Files that belong together: a spec and the files that it extends, a folder of prompts, or a dataset."""

    path: Path
    """The path in the spec: a file, or the folder of the files."""
    files: Sequence[Path]


def find_sources(parts: Mapping[str, PinnedFiles]) -> dict[str, FileSource]:
    """Return the place where others can get the files of each part. Each repository is read only once."""
    own_files = {name: [file for file in part.files if builtin_name(file) is None] for name, part in parts.items()}
    repositories = _Repositories(file for files in own_files.values() for file in files)
    sources = {}
    for name, part in parts.items():
        files = own_files[name]
        release = release_source(part.path, files, edits_are_kept=name == "spec") if files else None
        sources[name] = release or _git_source(part, files, repositories)
    return sources


def hub_source(path: str, revision: str | None) -> FileSource:
    """Return the source of a dataset on the Hugging Face Hub: its name there, and the revision in the spec."""
    if revision is None or not COMMIT.fullmatch(revision):
        return FileSource(repository=path, commit=None, path=None, clean=False, why=NO_REVISION)
    return FileSource(repository=path, commit=revision, path=".", clean=True)


def public_url(url: str) -> str | None:
    """Return a remote's address without user, password and query; None if it is not on another machine."""
    if "://" not in url:
        match = _SCP_ADDRESS.fullmatch(url)
        return None if match is None else f"ssh://{match['host']}/{match['path'].lstrip('/')}"
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port
    except ValueError:
        return None
    if address.scheme not in _SCHEMES or not host:
        return None
    host = f"[{host}]" if ":" in host else host
    return f"{address.scheme}://{host}{'' if port is None else f':{port}'}{address.path}"


def builtin_name(path: Path) -> str | None:
    """Return the name of a file that comes with nip-run; None for other files."""
    roots = (
        (package_data.PROTOCOLS, "protocols"),
        *((package_data.root() / name, name) for name in ("specs", "prompts")),
    )
    for root, name in roots:
        if path.resolve().is_relative_to(root.resolve()):
            return (PurePosixPath(name) / path.resolve().relative_to(root.resolve())).as_posix()
    return None


@dataclass(frozen=True)
class _Repository:
    """A git repository: its current commit and its public address."""

    root: Path
    commit: str | None
    url: str | None
    reason: str | None
    """The reason why others cannot get files of this repository."""
    blobs: Mapping[bytes, str]
    """The hash of each file's content (its blob) in the commit, by path."""


class _Repositories:
    """The git repositories that contain some files."""

    def __init__(self, files: Iterable[Path]) -> None:
        files_by_root: dict[Path, list[Path]] = {}
        self._roots: dict[Path, Path | None] = {}
        for file in sorted({file.resolve() for file in files}):
            root = self._find_root(file.parent)
            if root is not None:
                files_by_root.setdefault(root, []).append(file)
        self._repositories = {root: _read_repository(root, inside) for root, inside in files_by_root.items()}

    def find(self, file: Path) -> _Repository | None:
        """Return the repository that contains a file."""
        root = self._find_root(file.resolve().parent)
        return None if root is None else self._repositories[root]

    def _find_root(self, folder: Path) -> Path | None:
        """Return the nearest parent folder with `.git` (a file in worktrees and submodules), or None."""
        if folder not in self._roots:
            root = folder
            while not (root / ".git").exists() and root != root.parent:
                root = root.parent
            self._roots[folder] = root if (root / ".git").exists() else None
        return self._roots[folder]


def _read_repository(root: Path, files: Sequence[Path]) -> _Repository:
    git = GitState(root)
    failed = partial(_Repository, root, None, None, blobs={})
    commit = git.line("rev-parse", "--verify", "-q", "HEAD^{commit}")
    if commit is None:
        is_repository = git.line("rev-parse", "--git-dir") is not None
        return failed(TOO_LATE if git.is_late else NO_COMMIT if is_repository else GIT_FAILED)
    names = sorted(str(file.relative_to(root)) for file in files)
    tree = git("--literal-pathspecs", "ls-tree", "-z", "--full-tree", "HEAD", "--", *names) if names else b""
    url, reason = _public_remote(git, commit)
    if tree is None:
        return failed(TOO_LATE if git.is_late else GIT_FAILED)
    blobs = {}
    for line in filter(None, tree.split(b"\0")):
        facts, _, name = line.partition(b"\t")
        mode, kind, blob = facts.split(b" ")
        if kind == b"blob" and mode != b"120000":
            blobs[name] = blob.decode()
    return _Repository(root, commit if COMMIT.fullmatch(commit) else None, url, reason, blobs)


def _public_remote(git: GitState, commit: str) -> tuple[str | None, str | None]:
    """Return the address of a public remote, and the reason why others cannot get the commit from it or None."""
    config = git("config", "-z", "--get-regexp", r"^remote\..*\.url$")
    urls = dict(_remote_urls(config or b""))
    if not urls:
        return None, TOO_LATE if git.is_late else NO_REMOTE
    refs = git.line("for-each-ref", "--contains", commit, "--format=%(refname)", "refs/remotes")
    if refs is None:
        return None, TOO_LATE if git.is_late else GIT_FAILED
    with_commit = {name for name in urls for ref in refs.split() if ref.startswith(f"refs/remotes/{name}/")}
    public = {name: address for name, url in urls.items() if (address := public_url(url)) is not None}
    candidates = sorted(with_commit & public.keys(), key=_remote_sort_key)
    if candidates:
        return public[candidates[0]], None
    if not public:
        return None, LOCAL_REMOTE
    return public[min(public, key=_remote_sort_key)], NOT_PUSHED


def _remote_urls(config: bytes) -> Iterable[tuple[str, str]]:
    """Yield the first address of each remote."""
    names = set()
    for entry in filter(None, config.decode(errors="replace").split("\0")):
        key, _, url = entry.partition("\n")
        name = key.removeprefix("remote.").removesuffix(".url")
        if name not in names:
            names.add(name)
            yield name, url


def _remote_sort_key(name: str) -> tuple[bool, str]:
    return name != "origin", name


def _git_source(part: PinnedFiles, files: Sequence[Path], repositories: _Repositories) -> FileSource:
    builtin = builtin_name(part.path)
    if not files:
        name = BUILTIN + (builtin or part.path.name)
        return FileSource(repository=None, commit=None, path=name, clean=True, why=f"comes with nip-run {__version__}")
    first = files[0]
    repository = repositories.find(first)
    if repository is None:
        return FileSource(repository=None, commit=None, path=None, clean=False, why=NOT_IN_GIT)
    path = (part.path if builtin is None else first).resolve()
    name = path.relative_to(repository.root).as_posix() if path.is_relative_to(repository.root) else path.name
    reason = _unpinned_reason(files, repository, repositories)
    return FileSource(
        repository=repository.url,
        commit=repository.commit,
        path=name if encoding_problem(name) is None else None,
        clean=reason is None,
        why=reason,
    )


def _unpinned_reason(files: Sequence[Path], repository: _Repository, repositories: _Repositories) -> str | None:
    """Return the first reason why others cannot get all files from the repository's commit; None if they can."""
    files_by_reason: dict[str, list[Path]] = {}
    for file in files:
        if repositories.find(file) is not repository:
            files_by_reason.setdefault("in another git repository or in none; keep all files in one", []).append(file)
        elif (reason := _unpinned_reason_of_file(file.resolve(), repository)) is not None:
            files_by_reason.setdefault(reason, []).append(file)
    for reason, affected in files_by_reason.items():
        more = f" and {counted(len(affected) - 1, 'more file')}" if len(affected) > 1 else ""
        return reason if len(files) == 1 else f"{affected[0].name}{more}: {reason}"
    return None


def _unpinned_reason_of_file(file: Path, repository: _Repository) -> str | None:
    if repository.commit is None or repository.url is None:
        return repository.reason or GIT_FAILED
    blob = repository.blobs.get(bytes(file.relative_to(repository.root)))
    if blob is None:
        return NOT_TRACKED
    try:
        is_same = _is_blob(file, blob)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return repository.reason if is_same else CHANGED


def _is_blob(file: Path, blob: str) -> bool:
    """Return whether a blob has the content of a file, or is the Git LFS pointer to it."""
    new_hash = partial(hashlib.sha1, usedforsecurity=False) if len(blob) == 40 else hashlib.sha256
    with open_to_read(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        file_hasher = new_hash(b"blob %d\0" % size)
        while chunk := opened.read(1 << 20):
            file_hasher.update(chunk)
    if file_hasher.hexdigest() == blob:
        return True
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{file_hash(file)}\nsize {size}\n".encode()
    return new_hash(b"blob %d\0%s" % (len(pointer), pointer)).hexdigest() == blob


# Files in the folder of a fetched release, where others get them from the release instead of git.

MAX_MANIFEST = 16 << 20


def release_source(path: Path, files: Sequence[Path], *, edits_are_kept: bool) -> FileSource | None:
    """Return the release that contains these files; None if they are not in a fetched folder, or were changed.

    In the result, `commit` is the hash of the release's manifest. With `edits_are_kept`, the files may be edited, since
    the run saves them.
    """
    folder = fetched_folder([files[0].parent])
    fetched_from = None if folder is None else read_marker(folder)
    if folder is None or fetched_from is None:
        return None
    try:
        data = read_bounded(folder / MANIFEST, MAX_MANIFEST)
        if digest(data) != fetched_from["sha256"]:
            return None
        release = Release.from_bytes(data)
        edited = [file for file in files if not _is_as_published(file.resolve(), folder, release)]
    except (NipRunError, OSError, ValueError):
        return None
    if str(release.reference) != fetched_from["release"] or (edited and not edits_are_kept):
        return None
    resolved = path.resolve()
    return FileSource(
        repository=f"{RELEASE}{fetched_from['release']}",
        commit=fetched_from["sha256"],
        path=resolved.relative_to(folder).as_posix() if resolved.is_relative_to(folder) else resolved.name,
        clean=True,
        why=f"{fetched_from['release']} with {comma_join(file.name for file in edited)} edited" if edited else None,
    )


def _is_as_published(file: Path, folder: Path, release: Release) -> bool:
    """Return whether a file is unchanged. Raise ValueError if the release has no such file."""
    entry = release.file(file.relative_to(folder).as_posix())
    if entry is None:
        raise ValueError(file)
    return file_hash(file) == entry.sha256


SECONDS = 5.0
"""The time limit for all commands in one folder together."""

_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "protocol.allow=never")


class GitState:
    """The git repository of a folder. Calling it runs a git command; all commands together may take `SECONDS`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + SECONDS

    def __call__(self, *arguments: str) -> bytes | None:
        """Return git's output; None if git fails, is missing or takes too long."""
        try:
            process = subprocess.run(
                ("git", *_SAFE_OPTIONS, "-C", str(self._folder), *arguments), capture_output=True, check=False,
                timeout=max(self._deadline - time.monotonic(), 0.01), env=_environment(), stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return process.stdout if process.returncode == 0 else None

    def line(self, *arguments: str) -> str | None:
        """Return git's output as text without the line end; None if git fails, is missing or takes too long."""
        answer = self(*arguments)
        return None if answer is None else answer.decode(errors="replace").strip()

    @property
    def is_late(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._deadline


def _environment() -> dict[str, str]:
    # Variables set by a hook of another repository would redirect git to that repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**variables, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
