"""Files that are to be published as a commit: written into git's objects as they are, beside what a commit holds."""

from __future__ import annotations

import io
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

from runner.base.errors import ReleaseError
from runner.base.storage.safe_files import read_bounded
from runner.documents.releases.bundle import PIECE, Content, opened
from runner.registry.transports.git.bounded_process import GitFailed
from runner.registry.transports.git.process import GitProcess

_MARKS = "nip-run-marks"
_WORDS = re.compile(r"[<>\x00-\x1f\x7f]")

NAME, MAIL = "nip-run", "nip-run@localhost"
"""Of who publishes without having told git who they are; git itself would make up a name of the machine's."""


class Commits:
    """Commits that add the same files to one commit after another, whichever is the newest."""

    def __init__(self, git: GitProcess, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> None:
        """Write the files.

        Raises:
            ReleaseError: one cannot be read, or changed while it was.
            GitFailed: they cannot be written.
        """
        self._git = git
        self._author, self._committer = _who(git)
        self._message = message.replace("\0", "").strip() or "Publish"
        contents = [(f"{folder}/{path}", content) for folder, files in folders.items() for path, content in files]
        marks = git.folder / _MARKS
        git(
            "fast-import", "--quiet", "--done", f"--export-marks={marks}", unbounded=True,
            feed=_blobs([content for _, content in contents]),
        )  # fmt: skip
        try:
            lines = read_bounded(marks, 1 << 26).decode("ascii").split("\n")
            marks.unlink()
        except OSError as error:
            raise ReleaseError(f"cannot read {marks}: {error.strerror}") from error
        found = dict(line.split(" ") for line in lines if line)
        self._files = [(path, found[f":{number}"]) for number, (path, _) in enumerate(contents, 1)]

    def on(self, base: str | None) -> str:
        """A commit with the files and all that another one holds; None: the first of a repository."""
        name = f"refs/nip-run/new-{secrets.token_hex(8)}"
        self._git("fast-import", "--quiet", "--done", feed=[self._commit(name, base)], unbounded=True)
        return self._git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()

    def _commit(self, name: str, base: str | None) -> bytes:
        message, now = self._message.encode("utf-8", "replace"), int(time.time())
        lines = [
            f"commit {name}",
            f"author {self._author} {now} +0000",
            f"committer {self._committer} {now} +0000",
            f"data {len(message)}",
        ]
        changes = [*([] if base is None else [f"from {base}"]), *(f"M 100644 {at} {path}" for path, at in self._files)]
        return "\n".join([*lines, ""]).encode() + message + "\n".join(["", *changes, "done", ""]).encode()


def _who(git: GitProcess) -> tuple[str, str]:
    """The author and the committer, as git is told by the environment or the user's own configuration."""
    try:
        said = git("config", "-z", "--get-regexp", r"^user\.(name|email)$").decode("utf-8", "replace")
    except GitFailed:  # neither is there
        said = ""
    known = dict(line.split("\n", 1) for line in said.split("\0") if "\n" in line)

    def person(role: str) -> str:
        name, mail = (
            _WORDS.sub("", os.environ.get(f"GIT_{role}_{key.upper()}") or known.get(f"user.{key}", "")).strip()
            for key in ("name", "email")
        )
        return f"{name or NAME} <{mail or MAIL}>"

    return person("AUTHOR"), person("COMMITTER")


def _blobs(contents: Sequence[Content]) -> Iterator[bytes]:
    for number, content in enumerate(contents, 1):
        try:
            with opened(content) as file:
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
                yield b"blob\nmark :%d\ndata %d\n" % (number, size)
                left = size
                while left and (piece := file.read(min(PIECE, left))):
                    left -= len(piece)
                    yield piece
                if left or file.read(1):
                    raise ReleaseError(f"{content!s} changed while it was read; publish again")
        except OSError as error:
            raise ReleaseError(f"cannot read {content!s}: {error.strerror}") from error
        yield b"\n"
    yield b"done\n"
