"""A registry in a git repository: read from the newest commit of a branch, added to by a commit that is pushed."""

from __future__ import annotations

import random
import re
import secrets
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO

from runner.base.errors import ReleaseError, TakenError, UsageError
from runner.base.storage.safe_files import make_folder, remove_folder
from runner.documents.releases.bundle import Content
from runner.registry.transports.git.bounded_process import USUAL, GitFailed, ProcessLimits
from runner.registry.transports.git.commit import Commits
from runner.registry.transports.git.location import HEAD, is_branch_name, parse_place
from runner.registry.transports.git.objects import GitTree, Objects
from runner.registry.transports.git.process import GitProcess, program_there
from runner.registry.transports.interface import Added, Stored

_NAME = "nip-run-registry"
"""Of the repository, to git."""
_BASE, _REQUEST = "refs/nip-run/base", "refs/nip-run/request"
_HEADS = "refs/heads/"
_SMALL = "64k"
"""Files up to this size come with a commit, where the server can tell them apart; the others when they are read."""
_USUAL_BRANCHES = ("main", "master")

LONGEST_WAIT = 2.0
_QUESTION_SECONDS = 120.0

_BUSY = re.compile(
    r"cannot lock ref|failed to update ref|failed to lock|reference already exists|incorrect old value|\.lock'|"
    r"stale info|fetch first|non-fast-forward|remote ref updated since"
)
"""How it is said that others push at the same moment."""


@dataclass(frozen=True)
class _Tip:
    """What is read, and where what is added goes."""

    branch: str | None
    """None: the revision is a commit or a tag, and nothing can be added to it."""
    commit: str | None
    """None: the repository has no commit yet."""


class GitTransport:
    """See `Transport`. The repository is fetched when it is first asked for something, into a temporary folder."""

    def __init__(
        self,
        place: str,
        *,
        pull_request: bool = False,
        bounds: ProcessLimits = USUAL,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = parse_place(place)
        self._pull_request, self._bounds, self._sleep = pull_request, bounds, sleep
        self._work: _Work | None = None
        self._tip: _Tip | None = None
        self._tree: GitTree | None = None

    @property
    def where(self) -> str:
        return str(self._place)

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        with self._telling():
            yield from self._opened().stored(prefix)

    def open(self, path: str) -> IO[bytes]:
        with self._telling():
            return self._opened().open(path)

    def close(self) -> None:
        if self._work is not None:
            self._work.close()
        self._work = self._tip = self._tree = None

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:
        with self._telling():
            self._check_free(folders)
            tip = self._known_tip()
            if tip.branch is None:
                raise UsageError(f"{self.where}: nothing can be added to a commit or a tag; name a branch: @BRANCH")
            commits = Commits(self._git, folders, message)
            if self._pull_request and tip.commit is not None:
                return self._request(commits.on(tip.commit), folders, tip.branch)
            return self._add(commits, folders, tip.branch)

    # Reading

    @property
    def _git(self) -> GitProcess:
        if self._work is None:
            self._work = _Work(self._place.protocols, self._bounds)
        return self._work.git

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except GitFailed as error:
            raise ReleaseError(f"{self.where}: {error}") from error

    def _opened(self) -> GitTree:
        if self._tree is None:
            self._read()
        assert self._tree is not None
        return self._tree

    def _known_tip(self) -> _Tip:
        self._opened()
        assert self._tip is not None
        return self._tip

    def _read(self) -> None:
        """Fetch the newest commit, and read that from now on."""
        if self._place.local and not Path(self._place.url).is_dir():
            raise GitFailed("no repository is there")
        name, branch = self._place.commit, None
        if name is None:
            name, branch = self._named()
        self._tip = _Tip(branch, None if name is None else self._fetched(name, _BASE))
        self._look_at(self._tip.commit)

    def _look_at(self, commit: str | None) -> None:
        git = self._git
        assert self._work is not None
        root = None if commit is None else git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()
        self._tree = GitTree(self._work.objects, root, self.where, self._bounds.entries, self._fetch_files)

    def _named(self) -> tuple[str | None, str | None]:
        """The full name of what is to be read, and the branch that it is, if any."""
        refs, target = self._refs()
        revision = self._place.revision
        if revision is not None:
            if f"{_HEADS}{revision}" in refs:
                return f"{_HEADS}{revision}", revision
            if f"refs/tags/{revision}" in refs:
                return f"refs/tags/{revision}", None
            if refs:
                raise ReleaseError(f"{self.where}: it has no branch or tag {revision}")
            return None, revision
        branches = [name.removeprefix(_HEADS) for name in refs if name.startswith(_HEADS)]
        if HEAD not in refs or (target is not None and target not in refs):
            usual = [name for name in _USUAL_BRANCHES if name in branches] or branches
            if not branches:
                return None, self._place.own_branch or _USUAL_BRANCHES[0]
            if usual[0] not in _USUAL_BRANCHES and len(branches) > 1:
                raise ReleaseError(f"{self.where}: it does not say which of its branches is meant; name one: @BRANCH")
            target = f"{_HEADS}{usual[0]}"
        if target is None:
            return HEAD, None
        branch = target.removeprefix(_HEADS)
        if not target.startswith(_HEADS) or not is_branch_name(branch):
            raise ReleaseError(f"{self.where}: its own branch is called {branch!r}; name another: @BRANCH")
        return target, branch

    def _refs(self, *names: str) -> tuple[dict[str, str], str | None]:
        """The repository's branches and tags with what they are at, and what its HEAD stands for."""
        said = self._git(*self._remote(), "ls-remote", "--symref", _NAME, *names, seconds=self._seconds)
        refs, target = {}, None
        for line in said.decode("utf-8", "replace").splitlines():
            value, _, name = line.partition("\t")
            if value.startswith("ref: "):
                target = value.removeprefix("ref: ") if name == HEAD else target
            elif re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", value):
                refs[name] = value
        if any(len(value) == 64 for value in refs.values()):
            raise GitFailed("its objects are named by SHA-256, and nip-run reads those named by SHA-1 alone")
        return refs, target

    @property
    def _seconds(self) -> float:
        return min(_QUESTION_SECONDS, self._bounds.seconds)

    def _remote(self) -> list[str]:
        """The repository, as settings of one call: nothing is written down."""
        # With a filter that is known already, git does not write one down, by which it would fetch when it likes to.
        there = {"url": self._place.url, "promisor": "true", "partialCloneFilter": "blob:none"}
        if self._place.local:
            there |= {"uploadpack": program_there("upload-pack"), "receivepack": program_there("receive-pack")}
        return [word for name, value in there.items() for word in ("-c", f"remote.{_NAME}.{name}={value}")]

    def _fetched(self, name: str, ours: str) -> str:
        """Fetch a branch, tag or commit as one of our names; the commit."""
        self._git(
            *self._remote(), "fetch", "--progress", "--no-tags", "--depth=1", f"--filter=blob:limit={_SMALL}", _NAME,
            f"+{name}:{ours}",
        )  # fmt: skip
        return self._git("rev-parse", "--verify", f"{ours}^{{commit}}").decode().strip()

    def _fetch_files(self, objects: Sequence[str]) -> None:
        self._git(
            *self._remote(), "-c", "fetch.negotiationAlgorithm=noop", "fetch", "--progress", "--no-tags",
            "--filter=blob:none", "--stdin", _NAME, feed=[f"{name}\n".encode() for name in objects],
        )  # fmt: skip

    # Adding

    def _check_free(self, folders: Mapping[str, object]) -> None:
        for folder in folders:
            if self._opened().entry(folder) is not None:
                raise TakenError(f"{self.where} has {folder} already")

    def _add(self, commits: Commits, folders: Mapping[str, object], branch: str) -> Added:
        for attempt in range(self._bounds.pushes):
            tip = self._known_tip()
            commit = commits.on(tip.commit)
            if self._push(commit, branch, tip.commit):
                self._tip = _Tip(branch, commit)
                self._look_at(commit)
                return Added(revision=commit)
            self._sleep(random.uniform(0, min(0.1 * 1.5**attempt, LONGEST_WAIT)))
            self._read()
            self._check_free(folders)
        raise ReleaseError(f"{self.where}: others publish all the time; nothing was added, try again")

    def _push(self, commit: str, branch: str, base: str | None) -> bool:
        """Move a branch from one commit to another; False where somebody else moves it."""
        name = f"{_HEADS}{branch}"
        try:
            self._git(
                *self._remote(), "push", "--porcelain", "--progress", "--no-verify", "--no-thin",
                f"--force-with-lease={name}:{base or ''}", _NAME, f"{commit}:{name}",
            )  # fmt: skip
        except GitFailed as error:
            # It may have been cut off after all was done, or have come second.
            there = self._refs(name)[0].get(name)
            if there == commit:
                return True
            if there == base and not _BUSY.search(error.said):
                raise ReleaseError(f"{self.where}: {branch} cannot be added to: {error}") from error
            return False
        return True

    def _request(self, commit: str, folders: Mapping[str, object], branch: str) -> Added:
        """Push a commit to a branch of its own, whose name says what it adds: the same again is the same branch."""
        trees = [f"{folder}={self._at(commit, folder)}" for folder in sorted(folders)]
        label = re.sub(r"[^a-z0-9]+", "-", min(folders))[:60].strip("-")
        own = f"publish/{label}-{sha256(' '.join(trees).encode()).hexdigest()[:12]}"
        if self._push(commit, own, None):
            made = commit
        else:
            made = self._fetched(f"{_HEADS}{own}", _REQUEST)
            if any(self._at(made, folder) != self._at(commit, folder) for folder in folders):
                made, own = commit, f"{own}-{secrets.token_hex(3)}"
                if not self._push(commit, own, None):
                    raise ReleaseError(f"{self.where}: cannot make the branch {own}; try again")
        at = str(replace(self._place, revision=own))
        return Added(made, f"it is on the branch {own}; open a pull request from it into {branch}, and merge it", at)

    def _at(self, commit: str, folder: str) -> str | None:
        """The hash of a folder with all that is in it."""
        with suppress(GitFailed):
            return self._git("rev-parse", "--verify", "--quiet", f"{commit}:{folder}").decode().strip()
        return None


class _Work:
    """A bare repository of our own in a temporary folder, which is gone when it is closed, or forgotten."""

    def __init__(self, protocols: Sequence[str], bounds: ProcessLimits) -> None:
        root = Path(tempfile.mkdtemp(prefix="nip-run-git-"))
        folder = root / "registry.git"
        self.git = GitProcess(folder, protocols, bounds)
        self.objects = Objects(self.git)
        self.close = weakref.finalize(self, _end, root, self.objects)
        make_folder(folder)
        self.git("init", "--quiet", "--bare", "--template=", ".")


def _end(root: Path, objects: Objects) -> None:
    objects.close()
    with suppress(OSError):
        remove_folder(root)
