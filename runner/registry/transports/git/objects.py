"""The files of a commit, read out of git's objects by path: nothing is checked out, or more to us than bytes."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, cast

from runner.base.errors import NotPublished, ReleaseError
from runner.documents.releases.paths import MAX_SEGMENTS
from runner.documents.releases.reference import Kind
from runner.registry.transports.git.bounded_process import close_pipes, end
from runner.registry.transports.git.process import GitProcess
from runner.registry.transports.interface import Stored

DEEPEST = 4 + MAX_SEGMENTS
"""Folders above a file of a release, and its own name; nothing deeper is one."""

SMALL = 1 << 20
"""Bytes of a file that is read whole."""
MAX_TREE = 64 << 20

_TREE, _FILES, _LINK, _MODULE = "40000", ("100644", "100755", "100664"), "120000", "160000"
_POINTER = b"version https://git-lfs.github.com/spec/"
_AT_ONCE = 200
"""Questions that are asked before the first answer is read; more could fill both pipes."""


@dataclass(frozen=True)
class TreeEntry:
    """A name in a folder of git's."""

    mode: str
    object: str

    @property
    def is_folder(self) -> bool:
        return self.mode == _TREE

    @property
    def is_file(self) -> bool:
        return self.mode in _FILES


class Objects:
    """Git's objects by their hashes; the commands that give them run until it is closed."""

    def __init__(self, git: GitProcess) -> None:
        self._git = git
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._folders: dict[str, dict[str, TreeEntry]] = {}

    def close(self) -> None:
        for process in self._running.values():
            end(process)
            close_pipes(process)
        self._running.clear()

    def sizes(self, names: Sequence[str], kind: str) -> list[int | None]:
        """Bytes of each of some objects; None of what was not fetched.

        Raises:
            ReleaseError: one is of another kind.
        """
        found = []
        for start in range(0, len(names), _AT_ONCE):
            asked = names[start : start + _AT_ONCE]
            answers = self._ask("--batch-check", asked)
            found += [_size_of(name, _line(answers), kind) for name in asked]
        return found

    def size(self, name: str, kind: str) -> int:
        """Bytes of an object.

        Raises:
            ReleaseError: it is not there, or is of another kind.
        """
        (size,) = self.sizes([name], kind)
        if size is None:
            raise ReleaseError(f"git's object {name} is missing")
        return size

    def whole(self, name: str, kind: str, most: int) -> bytes:
        """The content of an object of at most so many bytes. Raises as `size`, and where it is larger."""
        size = self.size(name, kind)
        if size > most:
            raise ReleaseError(f"an object of git has {size:,} bytes; at most {most:,} are read")
        answers = self._ask("--batch", [name])
        _size_of(name, _line(answers), kind)
        data = answers.read(size + 1)
        if len(data) != size + 1:
            raise ReleaseError(f"git ended while it gave object {name}")
        return data[:-1]

    def folder(self, name: str) -> dict[str, TreeEntry]:
        """What stands in a folder, by name; a name that is no UTF-8 has escapes for what is none."""
        known = self._folders.get(name)
        if known is None:
            known = self._folders[name] = dict(_parsed(self.whole(name, "tree", MAX_TREE), len(name) // 2))
        return known

    def stream(self, name: str) -> IO[bytes]:
        """The content of a file of any size. Raises as `size`."""
        size = self.size(name, "blob")
        if size <= SMALL:
            return io.BytesIO(self.whole(name, "blob", SMALL))
        return cast(
            "IO[bytes]", io.BufferedReader(_Stream(self._git.start("cat-file", "blob", name, takes=False), size))
        )

    def _ask(self, how: str, names: Sequence[str]) -> IO[bytes]:
        process = self._running.get(how)
        if process is None:
            process = self._running[how] = self._git.start("cat-file", how)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("".join(f"{name}\n" for name in names).encode())
            process.stdin.flush()
        except BrokenPipeError as error:
            raise ReleaseError("git ended while its objects were read") from error
        return process.stdout


def _line(pipe: IO[bytes]) -> bytes:
    return pipe.readline(4096).rstrip(b"\n")


def _size_of(name: str, line: bytes, kind: str) -> int | None:
    words = line.decode("ascii", "replace").split()
    if words == [name, "missing"]:
        return None
    if len(words) != 3 or words[0] != name:
        raise ReleaseError(f"git's object {name} cannot be read")
    if words[1] != kind:
        raise ReleaseError(f"git's object {name} is a {words[1]}, and a {kind} belongs there")
    return int(words[2])


def _parsed(data: bytes, length: int) -> Iterator[tuple[str, TreeEntry]]:
    at = 0
    while at < len(data):
        space, nul = data.find(b" ", at), data.find(b"\0", at)
        if not at < space < nul or nul + 1 + length > len(data):
            raise ReleaseError("a folder of git is damaged")
        name = data[space + 1 : nul].decode("utf-8", "backslashreplace")
        yield name, TreeEntry(data[at:space].decode("ascii", "replace"), data[nul + 1 : nul + 1 + length].hex())
        at = nul + 1 + length


class _Stream(io.RawIOBase):
    """What a command writes, to its end; less than was said is an error."""

    def __init__(self, process: subprocess.Popen[bytes], size: int) -> None:
        self._process, self._left = process, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        assert self._process.stdout is not None
        piece = self._process.stdout.read(min(len(buffer), self._left))
        if self._left and not piece:
            raise OSError(f"git ended {self._left:,} bytes before the end of a file")
        buffer[: len(piece)] = piece
        self._left -= len(piece)
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            end(self._process)
            close_pipes(self._process)
        super().close()


class GitTree:
    """The files of one commit, as a registry asks for them.

    What else stands in the repository beside the folders of releases, such as its own README, is none of a registry.
    """

    def __init__(
        self, objects: Objects, root: str | None, where: str, most_entries: int, fetch: Callable[[Sequence[str]], None]
    ) -> None:
        self._objects, self._root, self._where, self._most, self._fetch = objects, root, where, most_entries, fetch

    def entry(self, path: str) -> TreeEntry | None:
        """What stands at a path; None where nothing does.

        Raises:
            ReleaseError: what stands on the way is no folder.
        """
        if self._root is None:
            return None
        found = TreeEntry(_TREE, self._root)
        for name in path.split("/") if path else []:
            if not found.is_folder:
                raise ReleaseError(f"{self._where}: on the way to {path} stands {_what(found)}, and no folder")
            inside = self._objects.folder(found.object).get(name)
            if inside is None:
                return None
            found = inside
        return found

    def stored(self, prefix: str) -> Iterator[Stored]:
        """All files of releases whose path begins so."""
        folder = prefix.rpartition("/")[0]
        try:
            start = self.entry(folder)
        except ReleaseError:
            return  # what stands on the way has nothing below it
        if start is not None and start.is_folder:
            yield from (found for found in self._below(start.object, folder) if found.path.startswith(prefix))

    def _below(self, root: str, at: str) -> Iterator[Stored]:
        files = list(self._files(root, at))
        sizes = self._objects.sizes([entry.object for _, entry in files], "blob")
        yield from (Stored(path, size) for (path, _), size in zip(files, sizes, strict=True))

    def _files(self, root: str, at: str) -> Iterator[tuple[str, TreeEntry]]:
        pending, seen = [(root, at)], 0
        while pending:
            name, path = pending.pop()
            for one, entry in self._objects.folder(name).items():
                seen += 1
                if seen > self._most:
                    raise ReleaseError(f"{self._where} has more than {self._most:,} files and folders")
                below = f"{path}/{one}" if path else one
                if entry.is_file and path:
                    yield below, entry
                elif entry.is_folder and (path or one in set(Kind)) and below.count("/") < DEEPEST - 1:
                    pending.append((entry.object, below))

    def open(self, path: str) -> IO[bytes]:
        """See `Transport.open`."""
        found = self.entry(path)
        if found is None:
            raise NotPublished(f"{self._where} has no file {path}")
        if not found.is_file:
            raise ReleaseError(f"{self._where}: {path} is {_what(found)}, and no file")
        if self._objects.sizes([found.object], "blob") == [None]:
            self._fetch(self._missing(path))
        file = self._objects.stream(found.object)
        if isinstance(file, io.BytesIO) and file.getbuffer()[: len(_POINTER)] == _POINTER:
            raise ReleaseError(
                f"{self._where}: {path} is a pointer of Git LFS, and what it points to is not in the repository; "
                "whoever keeps it must take it out of LFS (git lfs migrate export)"
            )
        return file

    def _missing(self, path: str) -> list[str]:
        """The files of a release that were not fetched yet, for whoever reads one of them wants the others, too."""
        release = "/".join(path.split("/")[:4])
        top = self.entry(release)
        names = (
            [] if top is None or not top.is_folder else [entry.object for _, entry in self._files(top.object, release)]
        )
        own = self.entry(path)
        names += [] if own is None else [own.object]
        sizes = self._objects.sizes(names, "blob")
        return sorted({name for name, size in zip(names, sizes, strict=True) if size is None})


def _what(entry: TreeEntry) -> str:
    known = {_TREE: "a folder", _LINK: "a link", _MODULE: "another repository (a submodule)"}
    return known.get(entry.mode, f"something of mode {entry.mode!r}" if not entry.is_file else "a file")
