"""Files into where others can get them: the repository of each, its commit, its path there, and whether that is it.

Nothing is fetched: a commit counts as on the remote where a remote-tracking branch has it, as the last push or fetch
left them. That a file is what the commit holds is found by its bytes, whatever git's index and filters say of it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from runner.base import package_data
from runner.base.hashing import file_hash
from runner.base.storage.safe_files import open_to_read
from runner.base.text import counted, not_text
from runner.documents.releases.manifest import BUILTIN, FileSource
from runner.results.provenance.fetched_pins import got_source
from runner.results.provenance.git_state import GitState
from runner.version import __version__

NOT_IN_GIT = "it is in no git repository; `git init`, commit it and push it"
NO_REMOTE = "its repository has no remote; add one that others can read, and push to it"
LOCAL_REMOTE = "the remote of its repository is a folder of this machine; push to one that others can read"
NO_COMMIT = "its repository has no commit yet; commit it and push it"
NOT_PUSHED = "its commit is not on the remote; push it"
CHANGED = "it has uncommitted changes; commit and push them"
NOT_TRACKED = "it is not committed; commit and push it"
NOT_TOLD = "git does not tell: its repository cannot be read, or git is not there"
TOO_LATE = "git took too long to tell"
NO_REVISION = "no commit of the Hub is named; set dataset.revision to one, 40 hex digits"

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCP = re.compile(r"(?:[^/@\s]+@)?(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(?!//)(?P<path>\S+)")
_SCHEMES = ("https", "http", "ssh", "git")


class PinnedFiles(NamedTuple):
    """Some files that are one thing: a spec and what it extends, a folder of prompts, a dataset."""

    path: Path
    """What it is called by: a file, or the folder of the files."""
    files: Sequence[Path]


def sources(parts: Mapping[str, PinnedFiles]) -> dict[str, FileSource]:
    """Where each part can be got; each repository is asked once, for all that is in it."""
    files = {file for part in parts.values() for file in part.files if not _is_builtin(file)}
    found = _Found(files)
    return {name: _of_release(name, part) or _source(part, found) for name, part in parts.items()}


def _of_release(name: str, part: PinnedFiles) -> FileSource | None:
    own = [file for file in part.files if not _is_builtin(file)]
    return got_source(part.path, own, edits_are_kept=name == "spec") if own else None


def of_hub(path: str, revision: str | None) -> FileSource:
    """A dataset on the Hub, by its name there and what the spec calls its revision."""
    if revision is None or not _COMMIT.fullmatch(revision):
        return FileSource(repository=path, commit=None, path=None, clean=False, why=NO_REVISION)
    return FileSource(repository=path, commit=revision, path=".", clean=True)


def public_url(url: str) -> str | None:
    """A remote's address without user, password and query; None where it is no other machine's."""
    if "://" not in url:
        found = _SCP.fullmatch(url)
        return None if found is None else f"ssh://{found['host']}/{found['path'].lstrip('/')}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _SCHEMES or not host:
        return None
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path}"


def _is_builtin(path: Path) -> bool:
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in package_data.folders())


def builtin_name(path: Path) -> str | None:
    """What a file that comes with nip-run is called there; None of another."""
    roots = (
        (package_data.PROTOCOLS, "protocols"),
        *((package_data.root() / name, name) for name in ("specs", "prompts")),
    )
    for root, name in roots:
        if path.resolve().is_relative_to(root.resolve()):
            return "/".join((name, *path.resolve().relative_to(root.resolve()).parts))
    return None


@dataclass(frozen=True)
class _Repository:
    """What is known of a repository: which blob of its commit each file is."""

    root: Path
    commit: str | None
    url: str | None
    why: str | None
    """Why nothing in it can be got by others."""
    blobs: Mapping[bytes, str]


class _Found:
    """The repositories of some files."""

    def __init__(self, files: Iterable[Path]) -> None:
        of: dict[Path, list[Path]] = {}
        self._roots: dict[Path, Path | None] = {}
        for file in sorted({file.resolve() for file in files}):
            root = self._root(file.parent)
            if root is not None:
                of.setdefault(root, []).append(file)
        self._repositories = {root: _repository(root, inside) for root, inside in of.items()}

    def of(self, file: Path) -> _Repository | None:
        root = self._root(file.resolve().parent)
        return None if root is None else self._repositories[root]

    def _root(self, folder: Path) -> Path | None:
        """The folder that holds `.git`, of a worktree and a submodule too."""
        if folder not in self._roots:
            at = folder
            while not (at / ".git").exists() and at != at.parent:
                at = at.parent
            self._roots[folder] = at if (at / ".git").exists() else None
        return self._roots[folder]


def _repository(root: Path, files: Sequence[Path]) -> _Repository:
    git = GitState(root)
    failed = partial(_Repository, root, None, None, blobs={})
    commit = git.line("rev-parse", "--verify", "-q", "HEAD^{commit}")
    if commit is None:
        is_one = git.line("rev-parse", "--git-dir") is not None
        return failed(TOO_LATE if git.is_late else NO_COMMIT if is_one else NOT_TOLD)
    names = sorted(str(file.relative_to(root)) for file in files)
    listed = git("--literal-pathspecs", "ls-tree", "-z", "--full-tree", "HEAD", "--", *names) if names else b""
    url, why = _remote(git, commit)
    if listed is None:
        return failed(TOO_LATE if git.is_late else NOT_TOLD)
    blobs = {}
    for line in filter(None, listed.split(b"\0")):
        facts, _, name = line.partition(b"\t")
        mode, kind, blob = facts.split(b" ")
        if kind == b"blob" and mode != b"120000":
            blobs[name] = blob.decode()
    return _Repository(root, commit if _COMMIT.fullmatch(commit) else None, url, why, blobs)


def _remote(git: GitState, commit: str) -> tuple[str | None, str | None]:
    """The address of the remote that has a commit; or of one that has not, and why nobody can get it there."""
    said = git("config", "-z", "--get-regexp", r"^remote\..*\.url$")
    urls = dict(_urls(said or b""))
    if not urls:
        return None, TOO_LATE if git.is_late else NO_REMOTE
    refs = git.line("for-each-ref", "--contains", commit, "--format=%(refname)", "refs/remotes")
    if refs is None:
        return None, TOO_LATE if git.is_late else NOT_TOLD
    having = {name for name in urls for ref in refs.split() if ref.startswith(f"refs/remotes/{name}/")}
    public = {name: found for name, url in urls.items() if (found := public_url(url)) is not None}
    named = sorted(having & public.keys(), key=_origin_first)
    if named:
        return public[named[0]], None
    if not public:
        return None, LOCAL_REMOTE
    return public[min(public, key=_origin_first)], NOT_PUSHED


def _urls(said: bytes) -> Iterable[tuple[str, str]]:
    """The first address of each remote."""
    seen = set()
    for entry in filter(None, said.decode(errors="replace").split("\0")):
        key, _, url = entry.partition("\n")
        name = key.removeprefix("remote.").removesuffix(".url")
        if name not in seen:
            seen.add(name)
            yield name, url


def _origin_first(name: str) -> tuple[bool, str]:
    return name != "origin", name


def _source(part: PinnedFiles, found: _Found) -> FileSource:
    own = [file for file in part.files if not _is_builtin(file)]
    inside = builtin_name(part.path)
    if not own:
        name = BUILTIN + (inside or part.path.name)
        return FileSource(repository=None, commit=None, path=name, clean=True, why=f"comes with nip-run {__version__}")
    first = own[0]
    repository = found.of(first)
    if repository is None:
        return FileSource(repository=None, commit=None, path=None, clean=False, why=NOT_IN_GIT)
    at = (part.path if inside is None else first).resolve()
    name = at.relative_to(repository.root).as_posix() if at.is_relative_to(repository.root) else at.name
    why = _why_not(own, repository, found)
    return FileSource(
        repository=repository.url,
        commit=repository.commit,
        path=name if not_text(name) is None else None,
        clean=why is None,
        why=why,
    )


def _why_not(files: Sequence[Path], repository: _Repository, found: _Found) -> str | None:
    """Why others cannot get some files by the repository's commit."""
    whys: dict[str, list[Path]] = {}
    for file in files:
        if found.of(file) is not repository:
            whys.setdefault("it is in another repository, or in none; keep them in one", []).append(file)
        elif (why := _why_not_file(file.resolve(), repository)) is not None:
            whys.setdefault(why, []).append(file)
    for why, of in whys.items():
        return why if len(files) == 1 else f"{_named(of)}: {why}"
    return None


def _named(files: Sequence[Path]) -> str:
    return files[0].name + (f" and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else "")


def _why_not_file(file: Path, repository: _Repository) -> str | None:
    if repository.commit is None or repository.url is None:
        return repository.why or NOT_TOLD
    blob = repository.blobs.get(bytes(file.relative_to(repository.root)))
    if blob is None:
        return NOT_TRACKED
    try:
        same = _is_blob(file, blob)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return repository.why if same else CHANGED


def _is_blob(file: Path, blob: str) -> bool:
    """Whether git's name for a content is that of a file's, as it is or as what stands for it in Git LFS."""
    new = partial(hashlib.sha1, usedforsecurity=False) if len(blob) == 40 else hashlib.sha256
    with open_to_read(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        hashed = new(b"blob %d\0" % size)
        while piece := opened.read(1 << 20):
            hashed.update(piece)
    if hashed.hexdigest() == blob:
        return True
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{file_hash(file)}\nsize {size}\n".encode()
    return new(b"blob %d\0%s" % (len(pointer), pointer)).hexdigest() == blob
