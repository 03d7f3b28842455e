"""The transport for registries at `git:ADDRESS`: branches, tags and commits of Git repositories.

`runner.registry.transports.locations` creates this transport. The transport reads the newest commit of a branch, or the
commit or tag in the address, and publishes by pushing a commit.
"""

from __future__ import annotations

import io
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO

from runner.base.errors import NotFoundError, ReleaseError, TakenError, UsageError, errors_as, os_errors_as
from runner.base.hashing import COMMIT
from runner.documents.releases.bundle import PIECE_BYTES, Content, open_content
from runner.documents.releases.reference import Kind
from runner.registry.transports.git.location import HEAD, is_revision_name, parse_location
from runner.registry.transports.git.process import (
    DEFAULT_LIMITS,
    GitError,
    GitLimits,
    GitRepository,
    remote_command_line,
)
from runner.registry.transports.interface import AddResult, StoredFile

_REMOTE = "nip-run-registry"
_BASE_REF = "refs/nip-run/base"
"""The ref of the commit to read, in the temporary repository."""
_PROPOSED_REF = "refs/nip-run/request"
"""The ref of the branch of an existing pull request."""
_FILES_REF = "refs/nip-run/files"
"""The ref of a commit with only the files to publish."""
_NEW_REF = "refs/nip-run/new"
"""The ref of the commit to push."""
_HEADS = "refs/heads/"
_USUAL_BRANCHES = ("main", "master")
_FETCHED_SIZE = "64k"
"""Files up to this size are fetched with the commit; larger ones are fetched when they are opened. A server that cannot
filter by size sends all files."""
_IN_MEMORY_BYTES = 1 << 20
"""Files up to this size are read into memory; larger ones are streamed."""
_MEAN_ENTRY_BYTES = 256
"""Maximum average size of an entry in the output of `git ls-tree`, in bytes."""
_MAX_WAIT_SECONDS = 2.0
"""Maximum wait before the next attempt to push."""

_FILE_MODES = ("100644", "100755", "100664")
_OTHER_MODES = {"040000": "a folder", "120000": "a link", "160000": "another repository (a submodule)"}
"""Descriptions of the entries that are not files, by their mode in git."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"

_AUTHOR = "nip-run <nip-run@localhost>"
"""The author of commits if git does not know the user. Without it, git would publish the name of the machine."""

_CONFLICT = re.compile(
    r"cannot lock ref|failed to update ref|failed to lock|reference already exists|incorrect old value|\.lock'|"
    r"stale info|fetch first|non-fast-forward|remote ref updated since"
)
"""Matches git's error messages if another publisher pushed at the same time."""


@dataclass(frozen=True)
class TreeEntry:
    """A file, folder, link or submodule in a commit."""

    mode: str
    object_hash: str
    """The hash of the entry's content."""
    size: int | None
    """The size in bytes; None if the content is not fetched, or is not a file."""

    @property
    def is_file(self) -> bool:
        return self.mode in _FILE_MODES

    def __str__(self) -> str:
        return "a file" if self.is_file else _OTHER_MODES.get(self.mode, f"an entry of mode {self.mode!r}")


class GitTransport:
    """A `Transport` for a git repository, which is fetched into a temporary folder at the first use."""

    def __init__(
        self, address: str, *, pull_request: bool = False, limits: GitLimits = DEFAULT_LIMITS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._location = parse_location(address)
        self._pull_request, self._limits, self._sleep = pull_request, limits, sleep
        self._repository: GitRepository | None = None
        self._is_fetched = False
        self._branch: str | None = None
        """The branch to publish to; None if the revision is a commit or a tag."""
        self._commit: str | None = None
        """The commit to read; None if the repository has no commit yet."""
        self._entries: dict[str, TreeEntry] = {}
        """The entries of the commit that were listed so far, by path."""

    @property
    def address(self) -> str:
        return str(self._location)

    def close(self) -> None:
        if self._repository is not None:
            self._repository.close()
        self._repository, self._is_fetched = None, False
        self._entries.clear()

    # Read

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        folder = prefix.rpartition("/")[0]
        folders = [f"{folder}/"] if folder else [f"{kind}/" for kind in Kind]
        with self._map_errors():
            for path, entry in self._list_entries("-r", "-t", *folders):
                self._entries[path] = entry
                if entry.is_file and path.startswith(prefix):
                    yield StoredFile(path, entry.size)

    def open(self, path: str) -> IO[bytes]:
        release = "/".join(path.split("/")[:4]) + "/"  # KIND/OWNER/NAME/VERSION/
        with self._map_errors():
            entry = self._find_entry(path, release)
            if entry is None:
                raise NotFoundError(f"{self.address} has no file {path}")
            if not entry.is_file:
                raise ReleaseError(f"{self.address}: {path} is {entry}, not a file; tell the repository's owner")
            if entry.size is None:
                self._fetch_files(release)
                entry = self._find_entry(path, release)
            if entry is None or entry.size is None:
                raise GitError(f"{path} is missing in the repository; tell its owner")
            if entry.size > _IN_MEMORY_BYTES:
                return self._git.stream("cat-file", "blob", entry.object_hash)
            data = self._git.read_blob(entry.object_hash, entry.size)
        if data.startswith(_LFS_POINTER):
            raise ReleaseError(
                f"{self.address}: {path} is stored in Git LFS, which is not supported. Ask its owner to move "
                "the file out of LFS (git lfs migrate export)."
            )
        return io.BytesIO(data)

    def _find_entry(self, path: str, release: str) -> TreeEntry | None:
        """Return the entry at a path in the folder of a release; None if nothing is there."""
        if path not in self._entries:
            for _ in self.list_files(release):
                pass
        return self._entries.get(path)

    def _list_entries(self, *arguments: str) -> Iterator[tuple[str, TreeEntry]]:
        """Yield the path and entry of everything that `git ls-tree` with these arguments lists in the commit."""
        self._fetch_once()
        if self._commit is None or not arguments:
            return
        count = size = 0
        incomplete_record = b""
        with self._git.stream("ls-tree", "-z", "-l", self._commit, *arguments) as output:
            while piece := output.read1(PIECE_BYTES):  # type: ignore[attr-defined]
                *records, incomplete_record = (incomplete_record + piece).split(b"\0")
                count, size = count + len(records), size + len(piece)
                if count > self._limits.entries or size > self._limits.entries * _MEAN_ENTRY_BYTES:
                    raise ReleaseError(
                        f"{self.address} has more than {self._limits.entries:,} files and folders, too many for a "
                        "registry. Ask its owner to split it."
                    )
                for record in records:
                    fields, _, path = record.decode("utf-8", "backslashreplace").partition("\t")
                    mode, _, object_hash, length = fields.split()
                    yield path, TreeEntry(mode, object_hash, int(length) if length.isdigit() else None)

    def _fetch_files(self, release: str) -> None:
        """Fetch all missing files of a release, because someone who reads one of them usually reads the others, too.

        The entries of these files are forgotten, so that the next listing shows their sizes.
        """
        entries = {path: entry for path, entry in self._entries.items() if path.startswith(release) and entry.is_file}
        hashes = sorted({entry.object_hash for entry in entries.values() if entry.size is None})
        self._git.run(
            *self._remote_options(), "-c", "fetch.negotiationAlgorithm=noop", "fetch", "--progress", "--no-tags",
            "--filter=blob:none", "--stdin", _REMOTE, feed=[f"{object_hash}\n".encode() for object_hash in hashes],
        )  # fmt: skip
        for path in entries:
            del self._entries[path]

    # Fetch

    @property
    def _git(self) -> GitRepository:
        if self._repository is None:
            self._repository = GitRepository(self._location.protocols, self._limits)
        return self._repository

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Convert errors of git in a `with` block to `ReleaseError`, with the location of the repository."""
        with errors_as(ReleaseError, self.address, GitError):
            yield

    def _fetch_once(self) -> None:
        if not self._is_fetched:
            self._fetch_newest()
            self._is_fetched = True

    def _fetch_newest(self) -> None:
        """Fetch the newest commit, and use it for reading."""
        if self._location.is_local and not Path(self._location.url).is_dir():
            raise GitError("no repository is there; check the path")
        ref, self._branch = self._location.commit, None
        if ref is None:
            ref, self._branch = self._find_revision()
        self._set_commit(None if ref is None else self._fetch(ref, _BASE_REF))

    def _set_commit(self, commit: str | None) -> None:
        self._commit = commit
        self._entries.clear()

    def _find_revision(self) -> tuple[str | None, str | None]:
        """Return the full name of the branch or tag to read, and the branch to publish to.

        The name is None if the repository has no commits. The branch is None if the revision is a tag.
        """
        refs, default_ref = self._list_refs()
        revision = self._location.revision
        if revision is not None:
            if f"{_HEADS}{revision}" in refs:
                return f"{_HEADS}{revision}", revision
            if f"refs/tags/{revision}" in refs:
                return f"refs/tags/{revision}", None
            if refs:
                raise ReleaseError(
                    f"{self.address}: the repository has no branch or tag {revision}; name another @BRANCH"
                )
            return None, revision
        branches = [name.removeprefix(_HEADS) for name in refs if name.startswith(_HEADS)]
        # The default branch may be missing, or have no commits.
        has_default = HEAD in refs and default_ref in (None, *refs)
        if not has_default:
            candidates = [name for name in _USUAL_BRANCHES if name in branches] or branches
            if not branches:
                return None, self._location.unborn_branch or _USUAL_BRANCHES[0]
            if candidates[0] not in _USUAL_BRANCHES and len(branches) > 1:
                raise ReleaseError(f"{self.address}: the repository has no default branch. Name a branch: @BRANCH")
            default_ref = f"{_HEADS}{candidates[0]}"
        if default_ref is None:  # the remote HEAD is detached: a commit, not a branch
            return HEAD, None
        branch = default_ref.removeprefix(_HEADS)
        if not default_ref.startswith(_HEADS) or not is_revision_name(branch):
            raise ReleaseError(
                f"{self.address}: nip-run does not accept the name of its default branch, {branch!r}. Name another "
                "branch: @BRANCH"
            )
        return default_ref, branch

    def _list_refs(self, *names: str) -> tuple[dict[str, str], str | None]:
        """Return the commit of each branch and tag, and the full name of the default branch or None if unknown."""
        output = self._git.run(*self._remote_options(), "ls-remote", "--symref", _REMOTE, *names)
        refs, target = {}, None
        for line in output.decode("utf-8", "replace").splitlines():
            value, _, name = line.partition("\t")
            if value.startswith("ref: "):
                target = value.removeprefix("ref: ") if name == HEAD else target
            elif COMMIT.fullmatch(value):
                refs[name] = value
        if any(len(value) == 64 for value in refs.values()):
            raise GitError("the repository uses SHA-256 hashes, and only SHA-1 is supported. Use another registry")
        return refs, target

    def _remote_options(self) -> list[str]:
        """Return the options that tell one git command how to access the remote repository."""
        # If git stored these settings, each later command would fetch the missing objects that it reads.
        settings = {"url": self._location.url, "promisor": "true", "partialCloneFilter": "blob:none"}
        if self._location.is_local:
            settings |= {
                "uploadpack": remote_command_line("upload-pack"),
                "receivepack": remote_command_line("receive-pack"),
            }
        return [argument for name, value in settings.items() for argument in ("-c", f"remote.{_REMOTE}.{name}={value}")]

    def _fetch(self, ref: str, local_ref: str) -> str:
        """Fetch a branch, tag or commit, and return its commit."""
        self._git.run(
            *self._remote_options(), "fetch", "--progress", "--no-tags", "--depth=1",
            f"--filter=blob:limit={_FETCHED_SIZE}", _REMOTE, f"+{ref}:{local_ref}",
        )  # fmt: skip
        return self._git.resolve_commit(local_ref)

    # Publish

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:
        with self._map_errors():
            self._check_free(folders)
            if self._branch is None:
                raise UsageError(f"{self.address}: cannot publish to a commit or tag. Name a branch: @BRANCH")
            new_folders = _NewFolders(self._git, folders, message)
            if self._pull_request:
                return self._push_for_pull_request(new_folders, self._branch)
            return self._push_with_retries(new_folders, self._branch)

    def _check_free(self, folders: Mapping[str, object]) -> None:
        """Check that the folders do not exist yet, and that their parents are folders or do not exist."""
        existing = dict(self._list_entries("-t", *folders))
        for folder in folders:
            if folder in existing:
                raise TakenError(f"{self.address} has {folder} already")
        names = [folder.split("/") for folder in folders]
        parents = ["/".join(parts[:end]) for parts in names for end in range(1, len(parts))]
        for path, entry in self._list_entries(*{path for path in parents if path not in existing}):
            raise ReleaseError(f"{self.address}: {path} is {entry}, not a folder; tell the repository's owner")

    def _push_with_retries(self, new_folders: _NewFolders, branch: str) -> AddResult:
        """Push a commit with the new folders; if another publisher was faster, try again on the new commit."""
        for attempt in range(self._limits.pushes):
            commit = new_folders.create_commit(self._commit)
            if self._push(commit, branch, self._commit):
                self._set_commit(commit)
                return AddResult(revision=commit)
            self._sleep(random.uniform(0, min(0.1 * 1.5**attempt, _MAX_WAIT_SECONDS)))
            self._fetch_newest()
            self._check_free(new_folders.trees)
        raise ReleaseError(
            f"{self.address}: other publishers changed the branch {branch} during each of {self._limits.pushes} "
            "attempts. Nothing was added; try again later."
        )

    def _push(self, commit: str, branch: str, base: str | None) -> bool:
        """Move `branch` from commit `base` to `commit`. Return False if another publisher moved the branch."""
        ref = f"{_HEADS}{branch}"
        try:
            self._git.run(
                *self._remote_options(), "push", "--porcelain", "--progress", "--no-verify", "--no-thin",
                f"--force-with-lease={ref}:{base or ''}", _REMOTE, f"{commit}:{ref}",
            )  # fmt: skip
        except GitError as error:
            # The connection may have broken after the server had accepted the push.
            current = self._list_refs(ref)[0].get(ref)
            if current == base and not _CONFLICT.search(error.output):
                raise ReleaseError(f"{self.address}: cannot push to {branch}: {error}") from error
            return current == commit
        return True

    def _push_for_pull_request(self, new_folders: _NewFolders, base: str) -> AddResult:
        """Push the folders to a new branch, for a pull request into `base`.

        The branch's name depends only on the content of the folders, so a repeated call finds the branch again.
        """
        if self._commit is None:
            raise UsageError(f"{self.address} has no commit that a pull request could change; omit --pull-request once")
        trees = [f"{folder}={new_folders.trees[folder]}" for folder in sorted(new_folders.trees)]
        label = re.sub(r"[^a-z0-9]+", "-", min(new_folders.trees))[:60].strip("-")
        branch = f"publish/{label}-{sha256(' '.join(trees).encode()).hexdigest()[:12]}"
        commit = new_folders.create_commit(self._commit)
        if not self._push(commit, branch, None):
            proposed = self._fetch(f"{_HEADS}{branch}", _PROPOSED_REF)
            trees_output = self._git.run("ls-tree", "-z", "-d", "-t", proposed, *new_folders.trees)
            listing = trees_output.decode("utf-8", "replace")
            if all(f" {tree}\t{folder}\0" in listing for folder, tree in new_folders.trees.items()):
                commit = proposed  # an earlier call pushed the same folders
            else:
                branch = f"{branch}-{secrets.token_hex(3)}"
                if not self._push(commit, branch, None):
                    raise ReleaseError(f"{self.address}: cannot create the branch {branch}; try again")
        note = f"the release is on branch {branch}; open a pull request from {branch} into {base}, and merge it"
        return AddResult(commit, note, str(replace(self._location, revision=branch)))


class _NewFolders:
    """The folders to publish, as git objects in the temporary repository."""

    def __init__(self, git: GitRepository, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> None:
        """Store the files. Raises: ReleaseError: a file cannot be read, or changed. GitError: git failed."""
        self._git = git
        self._message = (message.replace("\0", "").strip() or "Publish").encode("utf-8", "replace")
        contents = {f"{folder}/{path}": content for folder, files in folders.items() for path, content in files}
        git.fast_import(self._import_commands(contents))
        hashes = git.run("rev-parse", *(f"{_FILES_REF}:{folder}" for folder in folders)).decode().split()
        self.trees = dict(zip(folders, hashes, strict=True))
        """The hash of each folder's git tree."""

    def create_commit(self, base: str | None) -> str:
        """Return a new commit that adds the folders to the commit `base`; without `base`, a first commit."""
        changes = [f"M 040000 {tree} {folder}" for folder, tree in self.trees.items()]
        parents = [] if base is None else [f"from {base}"]
        self._git.fast_import([self._commit_commands(_NEW_REF, [*parents, *changes])])
        return self._git.resolve_commit(_NEW_REF)

    def _import_commands(self, contents: Mapping[str, Content]) -> Iterator[bytes]:
        """Yield the commands for `git fast-import` that store the files."""
        for number, content in enumerate(contents.values(), 1):
            with os_errors_as(ReleaseError, f"cannot read {content!s}"):
                yield from _blob_commands(number, content)
            yield b"\n"
        changes = [f"M 100644 :{number} {path}" for number, path in enumerate(contents, 1)]
        yield self._commit_commands(_FILES_REF, changes)

    def _commit_commands(self, ref: str, changes: Sequence[str]) -> bytes:
        """Return the commands of `git fast-import` for a commit."""
        now = int(time.time())
        person_lines = [f"{role.lower()} {self._person(role)} {now} +0000" for role in ("AUTHOR", "COMMITTER")]
        head = [f"commit {ref}", *person_lines, f"data {len(self._message)}", ""]
        return "\n".join(head).encode() + self._message + "\n".join(["", *changes, "done", ""]).encode()

    def _person(self, role: str) -> str:
        try:
            identity = self._git.run("-c", "user.useConfigOnly=true", "var", f"GIT_{role}_IDENT")
        except GitError:  # the user's git configuration has no name and email address
            return _AUTHOR
        return identity.decode("utf-8", "replace").rpartition(">")[0] + ">"


def _blob_commands(number: int, content: Content) -> Iterator[bytes]:
    """Yield the command for `git fast-import` that stores a file as the blob with this number."""
    with open_content(content) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        yield b"blob\nmark :%d\ndata %d\n" % (number, size)
        bytes_left = size
        while bytes_left and (piece := file.read(min(PIECE_BYTES, bytes_left))):
            bytes_left -= len(piece)
            yield piece
        if bytes_left or file.read(1):
            raise ReleaseError(f"{content!s} changed while it was read; publish again")
