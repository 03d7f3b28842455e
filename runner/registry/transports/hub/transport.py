"""A registry in a dataset repository of the Hugging Face Hub, read at one commit; through `huggingface_hub`.

Nothing that was fetched is kept on disk, so no file of another time can be taken for one of now. What a fetched
repository holds is bytes: nothing in it is loaded or run.
"""

from __future__ import annotations

import io
import json
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from runner.base.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.documents.releases.bundle import Content, opened
from runner.documents.releases.manifest import CHECKSUM, MANIFEST
from runner.registry.transports.hub.http import HubFault, HubFile
from runner.registry.transports.hub.session import HubSession, RepositoryNotFound
from runner.registry.transports.interface import Added, Stored
from runner.registry.transports.timeouts import OF_THE_HUB, Timeouts

DEFAULT_BRANCH = "main"
TYPE = "dataset"

MOST_FILES = 1_000_000
TURNS = 20
"""How often somebody else may be quicker."""
IN_MEMORY = 1 << 20
"""A file up to this size is read at once; one that is larger is held open while it is sent."""

_PLACE = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,199}))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubTransport:
    """See `Transport`. A publish is one commit onto the newest one, or a pull request of one commit."""

    def __init__(
        self,
        place: str,
        *,
        pull_request: bool = False,
        patience: Timeouts | None = None,
        most_files: int = MOST_FILES,
    ) -> None:
        shape = _PLACE.fullmatch(place)
        if shape is None or ".." in place:
            raise UsageError(
                f"no repository of the Hub is called {place!r}; write hf:OWNER/NAME or hf:OWNER/NAME@REVISION"
            )
        self._repository, self._revision = shape["repository"], shape["revision"] or DEFAULT_BRANCH
        self._fixed = _COMMIT.fullmatch(self._revision) is not None
        self._pull_request = pull_request
        self._most_files = most_files
        self._hub = HubSession(self.where, self._repository, patience or OF_THE_HUB)
        self._commit: str | None = None
        self._small: dict[str, bytes] = {}

    @property
    def where(self) -> str:
        elsewhere = self._revision != DEFAULT_BRANCH and not self._fixed
        return f"hf:{self._repository}" + (f"@{self._revision}" if elsewhere else "")

    # Reading

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        folder = prefix.rpartition("/")[0]
        found = []
        for stored in self._listed(folder):
            found.append(stored)
            if len(found) > self._most_files:
                raise ReleaseError(f"{self.where} lists more than {self._most_files:,} files, and no more are read")
        if not folder:
            self._read_small(found)
        yield from (stored for stored in found if stored.path.startswith(prefix))

    def _listed(self, folder: str) -> Iterator[Stored]:
        commit = self._read_at()
        if commit is None:
            return
        with suppress(NotPublished), self._hub.asked("list its files"):
            tree = self._hub.api.list_repo_tree(
                self._repository, folder or None, recursive=True, revision=commit, repo_type=TYPE
            )
            for entry in tree:
                if hasattr(entry, "size"):
                    yield _stored(entry.path, entry.size)

    def _read_small(self, found: Sequence[Stored]) -> None:
        """Read at once what a list of releases needs of each, so that it is not waited for one by one."""
        paths = [one.path for one in found if one.path.endswith(f"/{CHECKSUM}") and (one.size or 0) <= 1_000]
        if len(paths) < 3:
            return

        def read(path: str) -> None:
            with suppress(ReleaseError), self.open(path) as file:  # whoever opens it is told
                self._small[path] = file.read(1_001)

        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(read, paths))

    def open(self, path: str) -> IO[bytes]:
        if path in self._small:
            return io.BytesIO(self._small[path])
        commit = self._read_at()
        if commit is None or not _plain(path):
            raise NotPublished(f"{self.where} has no file {path}")
        with self._hub.asked(f"read {path}"):
            return _Translated(self._hub.file(path, commit), f"{self.where}: {path}")

    def _read_at(self) -> str | None:
        """The commit that is read, which is looked up once; None where there is no repository to read."""
        if self._commit is None:
            try:
                self._commit, _ = self._hub.newest(self._revision)
            except RepositoryNotFound:
                if not self._hub.has_token:
                    raise
                return None  # it is made by the first that is published
        return self._commit

    # Publishing

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:
        if self._fixed:
            raise UsageError(f"hf:{self._repository}@{self._revision} is one commit, to read; publish to {self.where}")
        private = any(_is_private(content) for files in folders.values() for path, content in files if path == MANIFEST)
        for turn in range(TURNS):
            head = self._look_again(private=private)
            for folder in folders:
                if any(True for _ in self._listed(folder)):
                    raise TakenError(f"{self.where} has {folder} already")
            with self._hub.asked("publish there"), ExitStack() as files:
                info = self._sent(folders, message, head, files)
                if info is not None:
                    return self._added(info, folders)
            time.sleep(random.uniform(0.05, 0.2) * min(turn + 1, 10))
        raise ReleaseError(f"others keep publishing to {self.where}; run the same command again")

    def _look_again(self, *, private: bool) -> str:
        """The newest commit of a repository into which this may go, which is made where there is none."""
        try:
            head, is_private = self._hub.newest(self._revision)
        except RepositoryNotFound:
            if not self._hub.has_token:
                raise
            with self._hub.asked("make the repository"):
                self._hub.api.create_repo(self._repository, repo_type=TYPE, private=private, exist_ok=True)
            head, is_private = self._hub.newest(self._revision)
        if private and not is_private:
            raise ReleaseError(
                f"{self.where} is public, and this release is private; publish it to a private repository, or as public"
            )
        if head != self._commit:
            self._commit = head
            self._small.clear()
        return head

    def _sent(
        self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str, head: str, files: ExitStack
    ) -> Any:
        """What the Hub says of the commit; None where another one came first."""
        additions = [
            self._hub.addition(f"{folder}/{path}", _open(content, files))
            for folder, contents in folders.items()
            for path, content in contents
        ]
        summary = message.splitlines()[0][:200] if message.strip() else "Publish"
        common: dict[str, Any] = {
            "repo_type": TYPE, "revision": self._revision, "create_pr": self._pull_request, "num_threads": 1,
        }  # fmt: skip
        # One thread: the library sends files of the same content from the first of them, as often as there are such.
        # A .gitignore of the repository would have the Hub leave files out, and say nothing.
        self._hub.api.preupload_lfs_files(
            self._repository, additions, gitignore_content="", free_memory=False, **common
        )
        return self._hub.unless_conflict(
            lambda: self._hub.api.create_commit(
                self._repository, additions, commit_message=summary, parent_commit=head, **common
            )
        )

    def _added(self, info: Any, folders: Mapping[str, Sequence[tuple[str, Content]]]) -> Added:
        commit = str(info.oid)
        if not _COMMIT.fullmatch(commit):
            raise ReleaseError(
                f"{self.where}: the Hub names no commit, but {commit[:60]!r}; look there what became of it"
            )
        if self._pull_request:
            said = f"pull request {info.pr_url}: others see it once it is merged"
            return Added(commit, said, f"hf:{self._repository}@{commit}")
        self._commit = commit
        self._small.clear()
        for folder, files in folders.items():
            there = {stored.path for stored in self._listed(folder)}
            missing = [path for path, _ in files if f"{folder}/{path}" not in there]
            if missing:
                raise ReleaseError(
                    f"{self.where} took the commit {commit[:12]} without {folder}/{missing[0]}"
                    f"{f' and {len(missing) - 1} more' if missing[1:] else ''}; remove {folder} there, then repeat this"
                )
        return Added(commit)

    def close(self) -> None:
        self._hub.close()


class _Translated(io.BufferedReader):
    """A file of the Hub whose faults are ours."""

    def __init__(self, raw: HubFile, what: str) -> None:
        super().__init__(raw, 1 << 16)
        self._what = what

    def read(self, size: int | None = -1, /) -> bytes:
        try:
            return super().read(size)
        except HubFault as fault:
            raise ReleaseError(f"{self._what}: {fault}") from fault


def _stored(path: Any, size: Any) -> Stored:
    if not isinstance(path, str) or not isinstance(size, int) or size < 0 or not _plain(path):
        raise ValueError(f"it lists a file {str(path)[:100]!r} of {str(size)[:30]} bytes")
    return Stored(path, size)


def _plain(path: str) -> bool:
    """Whether a path leads to a file of the repository, and to no place beside it."""
    return all(part not in ("", ".", "..") for part in path.split("/"))


def _is_private(manifest: Content) -> bool:
    with opened(manifest) as file:
        return bool(json.load(file)["visibility"] == "private")


def _open(content: Content, files: ExitStack) -> io.BufferedIOBase:
    """What is sent of a file: never its path, which `huggingface_hub` would open again by its name."""
    try:
        if isinstance(content, Path) and content.stat().st_size > IN_MEMORY:
            file = files.enter_context(opened(content))
            assert isinstance(file, io.BufferedIOBase)
            return file
        with opened(content) as small:
            return io.BytesIO(small.read())
    except OSError as error:
        raise ReleaseError(f"cannot read {content!s}: {error.strerror}") from error
