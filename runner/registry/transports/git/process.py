"""Run git commands for `GitTransport` in a temporary bare repository, safely even for hostile remote repositories.

Each command has a limit on memory. Commands that contact the remote repository also have limits on time and size. The
configuration, hooks, filters and submodules of the remote repository have no effect. The user's git configuration only
decides how to reach a server and who the user is: credential helpers, proxies, keys, `url.*.insteadOf`,
`core.sshCommand`. Other settings that could make git run a program or write a file are overridden.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.base.errors import ReleaseError
from runner.base.redaction import redacted
from runner.base.storage.safe_files import make_folder, remove_folder

_INHERITED = frozenset(
    (
        "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS",
        "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY",
        "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
        "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL",
    )
)  # fmt: skip
"""Environment variables of git for access to servers, configuration and identity. The others are removed, because they
could select another repository, or make git log the tokens that it sends."""

_SETTINGS: Mapping[str, str] = {
    "core.hooksPath": os.devnull, "core.attributesFile": os.devnull, "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",
    # Larger files are streamed, and never completely in memory.
    "core.bigFileThreshold": "1m", "core.packedGitWindowSize": "32m", "core.packedGitLimit": "256m",
    "protocol.version": "2", "transfer.fsckObjects": "true", "fetch.fsckObjects": "true",
    # One pack, whose size is limited, instead of any number of files.
    "fetch.unpackLimit": "1", "transfer.unpackLimit": "1",
    # A server must not direct git to another one.
    "transfer.bundleURI": "false", "fetch.uriProtocols": "", "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60",
    "submodule.recurse": "false", "fetch.recurseSubmodules": "false", "push.recurseSubmodules": "no",
    "push.followTags": "false", "push.gpgSign": "false", "push.pushOption": "", "fetch.prune": "false",
    "fetch.writeCommitGraph": "false", "gc.auto": "0", "maintenance.auto": "false", "pack.threads": "1",
    "advice.graftFileDeprecated": "false",
}  # fmt: skip
"""Settings for each command, which override the user's git configuration."""

_REMOTE_SETTINGS: Mapping[str, str] = {
    "core.hooksPath": os.devnull, "core.fsmonitor": "false", "core.alternateRefsCommand": "true",
    "core.sshCommand": "false", "core.gitProxy": "false", "core.askPass": "false", "credential.helper": "",
    "receive.autogc": "false", "receive.denyCurrentBranch": "refuse", "receive.fsckObjects": "true",
}  # fmt: skip
"""Settings for the git process that reads or writes a local remote repository, whose configuration may be hostile."""

_POLL_SECONDS = 0.2
_SHOWN_BYTES = 16 << 10
"""Number of bytes that nip-run reads from the end of git's error output."""


@dataclass(frozen=True, kw_only=True)
class GitLimits:
    """Limits for each git command that contacts the remote repository. `memory_bytes` applies to all commands."""

    idle_seconds: float = 120.0
    """Maximum time without output of git."""
    seconds: float = 300.0
    """Maximum time of a command that transfers nothing. A transfer may take longer; see `rate`."""
    rate: int = 8 << 10
    """Bytes per second. For each `rate` bytes that a command transfers, it may take one more second."""
    pack_bytes: int = 16 << 30
    """Maximum size of a pack. Half of the free disk space is another limit."""
    memory_bytes: int = 4 << 30
    answer_bytes: int = 64 << 20
    """Maximum size of the output, such as the list of all branches."""
    entries: int = 1_000_000
    """Maximum number of files and folders in a registry."""
    pushes: int = 200
    """Maximum number of attempts to push if other publishers push at the same time."""

    def seconds_for(self, size: int) -> float:
        """Return the maximum time of a command that transfers this many bytes."""
        return self.seconds + size / self.rate


DEFAULT_LIMITS = GitLimits()


class GitError(Exception):
    """Raised if git fails. `output` is the text that git wrote, without secrets."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class GitRepository:
    """A bare repository in a temporary folder. Closing or garbage-collecting it removes the folder."""

    def __init__(self, protocols: Iterable[str], limits: GitLimits) -> None:
        self.limits = limits
        root = Path(tempfile.mkdtemp(prefix="nip-run-git-"))
        self.folder = root / "registry.git"
        self._environment = _environment(self.folder, protocols)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reader: subprocess.Popen[bytes] | None = None
        """The `git cat-file` process that `read_blob` uses."""
        self.close = weakref.finalize(self, _remove, root, self._processes)
        make_folder(self.folder)
        self.run("init", "--quiet", "--bare", "--template=", ".", is_trusted=True)

    def resolve_commit(self, ref: str) -> str:
        """Return the commit of a branch or tag. Raises GitError: it does not point to a commit."""
        return self.run("rev-parse", "--verify", f"{ref}^{{commit}}").decode().strip()

    def fast_import(self, commands: Iterable[bytes]) -> None:
        """Store new files and commits with the commands of `git fast-import`. Raises: as `run`."""
        self.run("fast-import", "--quiet", "--done", "--force", feed=commands, is_trusted=True)

    def run(self, *arguments: str, feed: Iterable[bytes] = (), is_trusted: bool = False) -> bytes:
        """Run a git command with `feed` as its input, and return its output.

        A trusted command reads only the user's own files, so it has no limits on time and size.

        Raises:
            GitError: the command failed, or exceeded a limit.
            OSError: `feed` cannot be read.
        """
        max_bytes = None if is_trusted else min(self.limits.pack_bytes, shutil.disk_usage(self.folder).free // 2)
        with tempfile.TemporaryFile(dir=self.folder) as output, tempfile.TemporaryFile(dir=self.folder) as messages:
            process = self._start(*arguments, max_bytes=max_bytes, output=output, messages=messages)
            try:
                _write_input(process, feed)
                if is_trusted:
                    process.wait()
                else:
                    self._wait(process, output, messages)
            except GitError as error:
                raise GitError(str(error), _read_end(messages)) from error
            finally:
                _kill(process)
            output.seek(0)
            answer = output.read()
            if process.returncode != 0:
                # `push --porcelain` writes the reasons for a refusal to its standard output.
                refusals = [line for line in answer.splitlines() if line.startswith(b"!")]
                text = "\n".join([_read_end(messages), without_secrets(b"\n".join(refusals))])
                raise GitError(_explain(text, process.returncode, max_bytes), text)
            return answer

    def _wait(self, process: subprocess.Popen[bytes], output: IO[bytes], messages: IO[bytes]) -> None:
        """Wait for the end of a command. Raises GitError: the command exceeded a limit."""
        limits = self.limits
        start = last_write = time.monotonic()
        last_sizes: tuple[int, int, int] | None = None
        while True:
            now, sizes = time.monotonic(), (_size(output), _size(messages), _stored_bytes(self.folder))
            if sizes != last_sizes:
                last_sizes, last_write = sizes, now
            if max(sizes[:2]) > limits.answer_bytes:
                raise GitError(
                    f"git writes more than {limits.answer_bytes:,} bytes of text, perhaps because the repository has "
                    "too many branches; tell its owner"
                )
            if now - last_write > limits.idle_seconds:
                raise GitError(f"nothing arrived for {limits.idle_seconds:g} seconds; try again later")
            if now - start > limits.seconds_for(sizes[2]):
                raise GitError(f"git is too slow: {now - start:,.0f} seconds for {sizes[2]:,} bytes; try again later")
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                return

    def stream(self, *arguments: str) -> IO[bytes]:
        """Start a command and return its output as an open file. Closing the file kills the command."""
        process = self._start(*arguments)
        _write_input(process, ())
        return _CommandOutput(process)

    def read_blob(self, object_hash: str, size: int) -> bytes:
        """Return the content of a file with this hash and size. Raises GitError: the file cannot be read."""
        if self._reader is None or self._reader.poll() is not None:
            self._reader = self._start("cat-file", "--batch")
            self._processes.append(self._reader)
        assert self._reader.stdin is not None
        assert self._reader.stdout is not None
        with suppress(BrokenPipeError):
            self._reader.stdin.write(f"{object_hash}\n".encode())
            self._reader.stdin.flush()
        header = self._reader.stdout.readline(200)
        data = self._reader.stdout.read(size + 1) if header == f"{object_hash} blob {size}\n".encode() else b""
        if len(data) != size + 1:
            _kill(self._reader)
            raise GitError(f"git cannot read the file with the hash {object_hash}; tell the repository's owner")
        return data[:-1]

    def _start(
        self, *arguments: str, max_bytes: int | None = None, output: int | IO[bytes] = subprocess.PIPE,
        messages: int | IO[bytes] = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start a command. `max_bytes` limits the size of each file that the command writes."""
        git = shutil.which("git")
        if git is None:
            raise ReleaseError("git is not installed on this machine; install it (version 2.28 or later)")
        settings = [argument for name, value in _SETTINGS.items() for argument in ("-c", f"{name}={value}")]
        # A shell sets the limits with `ulimit`, because Python code must not run between fork and exec.
        # SIGXFSZ is ignored so that git reports a file that is too large as an error.
        limits = f"trap '' XFSZ; ulimit -v {self.limits.memory_bytes >> 10} 2>/dev/null; "
        if max_bytes is not None:
            # The unit is 512 bytes. `ulimit` fails if the process already has a lower limit.
            limits += f"ulimit -S -f {max_bytes >> 9} 2>/dev/null; "
        return subprocess.Popen(
            ["sh", "-c", limits + 'exec "$@"', "sh", git, *settings, *arguments],
            cwd=self.folder, env=self._environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=output, stderr=messages,
        )  # fmt: skip


class _CommandOutput(io.BufferedReader):
    """The output of a command. Closing it kills the command."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert isinstance(process.stdout, io.BufferedReader)
        super().__init__(process.stdout.detach())
        self._process = process

    def close(self) -> None:
        _kill(self._process)
        super().close()


def remote_command_line(program: str) -> str:
    """Return a command line for git's `program` (`upload-pack` or `receive-pack`) on a local remote repository."""
    settings = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in _REMOTE_SETTINGS.items())
    return f"GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 git {settings} {program}"


def _environment(folder: Path, protocols: Iterable[str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _INHERITED}
    return {
        **inherited,
        "GIT_DIR": str(folder),
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
        "LANGUAGE": "C",
    }


def _write_input(process: subprocess.Popen[bytes], pieces: Iterable[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the command has failed, and the caller checks its exit status
        for piece in pieces:
            process.stdin.write(piece)
        process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with all processes that it started, and close its pipes."""
    if process.poll() is None:  # after the end of the command, its process id may belong to another process
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError, ValueError):
                pipe.close()


def _remove(root: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        _kill(process)
    with suppress(OSError):
        remove_folder(root)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _stored_bytes(folder: Path) -> int:
    """Return the size of all objects in a repository, including objects in transfer."""
    total = 0
    for path in folder.glob("objects/*/*"):
        with suppress(FileNotFoundError):  # git renames files after a transfer
            total += path.stat().st_size
    return total


# Error messages

_USER = re.compile(r"(?<=://)[^/\s'\"]*@")
_AUTHORIZATION = re.compile(r"(?i)(authorization\s*:\s*)\S.*")
_FAILURE = re.compile(r"fatal: |error: |!\t|ssh: ")
"""Matches the start of lines where git explains a failure. Other lines show progress, or are the server's text."""
_TOO_LARGE = re.compile(r"File too large|File size limit exceeded")
_EXPLANATIONS = {
    r"could not read (Username|Password)|Authentication failed|Permission denied \(|returned error: 40[13]":
        "the server requires a login. Give git a credential helper, or your SSH agent a key, and try git ls-remote",
    r"does not appear to be a git repository|[Rr]epository .*not found|does not exist|returned error: 404":
        "no repository is there, or you have no access to it. Check the address, and try git ls-remote",
    r"dubious ownership":
        "the repository belongs to another user. To trust it: git config --global --add safe.directory PATH",
    r"returned error: 30[1278]":
        "the repository has moved, and redirects are not followed. Use its new address",
    r"fsck error|error: object [0-9a-f]+: |error in object|invalid index-pack|bad (tree|object)|corrupt":
        "git considers the repository damaged or hostile. Tell its owner",
    r"bad revision|not our ref|no such remote ref|couldn't find remote ref|unable to find [0-9a-f]{40}":
        "a commit or file is missing in the repository. Check the revision after @, or tell its owner",
    r"expected commit type|Needed a single revision":
        "the revision is not a commit. Correct the part after @",
    r"[Oo]ut of memory|malloc|mmap failed|unable to create (async|thread)":
        "git needs more memory than the limit for reading the repository. Tell its owner",
    r"(index-pack|unpack-objects|fetch-pack|rev-list)\S* died of signal|died of signal 11":
        "git crashed while it read the repository. Update git, or tell the repository's owner",
}  # fmt: skip
"""Explanations for users, by a pattern that matches git's output. The first pattern that matches is used."""


def without_secrets(output: bytes) -> str:
    """Return git's output as text without logins in addresses, authorization headers and known secrets."""
    text = output.decode("utf-8", "backslashreplace")
    return redacted(_AUTHORIZATION.sub(r"\1[secret removed]", _USER.sub("", text)))


def _read_end(file: IO[bytes]) -> str:
    """Return the end of git's messages, without secrets."""
    file.seek(max(0, _size(file) - _SHOWN_BYTES))
    return without_secrets(file.read(_SHOWN_BYTES))


def _explain(text: str, code: int, max_bytes: int | None) -> str:
    """Explain to users why git failed, from its output and exit status."""
    if max_bytes is not None and _TOO_LARGE.search(text):
        return (
            f"the repository is larger than the limit of {max_bytes:,} bytes. Free disk space, or use another registry"
        )
    for pattern, explanation in _EXPLANATIONS.items():
        if re.search(pattern, text):
            return explanation
    lines = [line.strip() for line in text.splitlines() if _FAILURE.match(line)]
    return f"git failed with exit status {code}: {'; '.join(lines[-3:])[:600] or 'git wrote no reason'}"
