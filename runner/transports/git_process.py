"""Git, run so that no repository decides what it does: nothing of its configuration, no hook, filter or submodule.

Git's own configuration of the user counts where it says how to reach a server and who they are: credential helpers,
proxies, keys, `url.*.insteadOf`, `core.sshCommand`. What could make git run or write more is set here, at each call.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.errors import ReleaseError
from runner.redaction import redacted

_KEPT = frozenset(
    (
        "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS",
        "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY",
        "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
    )
)  # fmt: skip
"""Of the variables of git those by which a user says how to reach a server, and where their configuration is. The
others lead git to another repository, or have it write what it sends, tokens and all."""

_SETTINGS: Mapping[str, str] = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",
    "core.bigFileThreshold": "1m",  # what is larger is handed through, and never whole in memory
    "core.packedGitWindowSize": "32m",
    "core.packedGitLimit": "256m",
    "protocol.version": "2",
    "transfer.fsckObjects": "true",
    "fetch.fsckObjects": "true",
    "fetch.unpackLimit": "1",  # one pack, whose size is bounded, instead of any number of files
    "transfer.unpackLimit": "1",
    "transfer.bundleURI": "false",  # neither may a server send us on to another
    "fetch.uriProtocols": "",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "push.recurseSubmodules": "no",
    "push.followTags": "false",
    "push.gpgSign": "false",
    "push.pushOption": "",
    "fetch.prune": "false",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "pack.threads": "1",
    "advice.graftFileDeprecated": "false",
}

_THERE: Mapping[str, str] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",
    "core.sshCommand": "false",
    "core.gitProxy": "false",
    "core.askPass": "false",
    "credential.helper": "",
    "receive.autogc": "false",
    "receive.denyCurrentBranch": "refuse",
    "receive.fsckObjects": "true",
}
"""For the half of git that works inside a repository on this machine, whose configuration may be anybody's."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a repository may take of this machine before it is refused."""

    idle_seconds: float = 120.0
    """Without a word of git."""
    seconds: float = 3_600.0
    pack_bytes: int = 16 << 30
    """On the disk; not more than half of what is free there."""
    memory_bytes: int = 4 << 30
    answer_bytes: int = 64 << 20
    """Of what git says, such as all branches."""
    entries: int = 1_000_000
    """Files and folders of a registry."""
    pushes: int = 30
    """How often what is to be added is tried again because somebody else's came first."""


USUAL = Bounds()

_KEEP = 16 << 10
_PIECE = 1 << 16


class GitFailed(Exception):
    """Git ended with an error, in words; `said` is what it wrote, without secrets."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


def program_there(program: str) -> str:
    """The command by which git starts its other half in a repository on this machine."""
    settings = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in _THERE.items())
    return f"GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 git {settings} {program}"


class Git:
    """Git in a bare repository of our own; each call is bounded in time, disk and memory, and ends with us."""

    def __init__(self, folder: Path, protocols: Iterable[str], bounds: Bounds = USUAL) -> None:
        self.folder = folder
        self.bounds = bounds
        self._environment = _environment(folder, protocols)

    def __call__(
        self, *arguments: str, feed: Iterable[bytes] | None = None, seconds: float | None = None, unbounded: bool = False
    ) -> bytes:
        """What a command says on stdout. `feed` is written to it; `unbounded` are commands on files of our own alone.

        Raises:
            GitFailed: it ended with an error, or took more than it may.
            OSError: what is to be fed cannot be read.
        """
        disk = None if unbounded else self._disk()
        process = self.start(*arguments, disk=disk, takes=feed is not None)
        try:
            feeder = None if feed is None else _Feeder(process, feed)
            watch = _Watch(process, self.bounds, seconds or self.bounds.seconds)
            try:
                watch.follow()
            finally:
                if feeder is not None:
                    feeder.end()
        except BaseException:
            end(process)
            raise
        finally:
            _close(process)
        if process.returncode != 0:
            said = "\n".join([watch.said(), *_refusals(watch.answer)]) if "push" in arguments else watch.said()
            raise self._failed(process.returncode, said, disk)
        return watch.answer

    def start(self, *arguments: str, disk: int | None = None, takes: bool = True) -> subprocess.Popen[bytes]:
        """A command that is talked to; `disk` bounds each file that it writes, in bytes."""
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        # By a shell, which has `ulimit` on every system, so that nothing of ours runs between fork and exec.
        # What is larger than it may be is an error then, which git says, and not the end of one of its processes.
        limits = f"trap '' XFSZ; ulimit -v {self.bounds.memory_bytes >> 10} 2>/dev/null; "
        if disk is not None:
            limits += f"ulimit -S -f {disk >> 9} 2>/dev/null; "  # it fails where the limit is a lower one
        return subprocess.Popen(
            ["sh", "-c", limits + 'exec "$@"', "sh", _git(), *settings, *arguments],
            cwd=self.folder, env=self._environment, start_new_session=True,
            stdin=subprocess.PIPE if takes else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _disk(self) -> int:
        return min(self.bounds.pack_bytes, shutil.disk_usage(self.folder).free // 2)

    def _failed(self, code: int, said: str, disk: int | None) -> GitFailed:
        if disk is not None and _TOO_LARGE.search(said):
            return GitFailed(f"it has more than {disk:,} bytes, which is more than is taken", said)
        for pattern, words in _WORDS:
            if pattern.search(said):
                return GitFailed(words, said)
        lines = [line.strip() for line in said.splitlines() if _TOLD.match(line)]
        return GitFailed(f"git ended with code {code}: {'; '.join(lines[-3:])[:600] or 'it does not say why'}", said)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with all that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _git() -> str:
    found = shutil.which("git")
    if found is None:
        raise ReleaseError("there is no git on this machine; install it (version 2.28 or later)")
    return found


def _environment(folder: Path, protocols: Iterable[str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    return {
        **kept,
        "GIT_DIR": str(folder),
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
        "LANGUAGE": "C",
    }


class _Feeder:
    """Writes to a command beside the reading of what it says."""

    def __init__(self, process: subprocess.Popen[bytes], pieces: Iterable[bytes]) -> None:
        assert process.stdin is not None
        self._process, self._pieces, self._to = process, pieces, process.stdin
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                self._to.write(piece)
            self._to.close()
        except BrokenPipeError:
            return  # its end says why
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            self._error = error
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Once the command has ended, or is to.

        Raises:
            OSError: what was to be fed could not be read.
        """
        if self._process.poll() is None:
            end(self._process)
        self._thread.join()
        if self._error is not None:
            raise self._error


class _Watch:
    """Reads what a command says, until it ends or has taken more than it may."""

    def __init__(self, process: subprocess.Popen[bytes], bounds: Bounds, seconds: float) -> None:
        self._process, self._bounds, self._seconds = process, bounds, seconds
        self._out, self._errors, self._heard = bytearray(), bytearray(), 0

    @property
    def answer(self) -> bytes:
        return bytes(self._out)

    def said(self) -> str:
        """The last of what it wrote on stderr, without secrets."""
        return without_secrets(self._errors.decode("utf-8", "backslashreplace"))

    def follow(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        begun = last = time.monotonic()
        with selectors.DefaultSelector() as pipes:
            pipes.register(self._process.stdout, selectors.EVENT_READ, self._hear_answer)
            pipes.register(self._process.stderr, selectors.EVENT_READ, self._hear_error)
            while pipes.get_map():
                now = time.monotonic()
                if now - begun > self._seconds:
                    raise GitFailed(f"it took more than {self._seconds:g} seconds", self.said())
                if now - last > self._bounds.idle_seconds:
                    raise GitFailed(f"nothing came for {self._bounds.idle_seconds:g} seconds", self.said())
                ended = self._process.poll() is not None
                ready = pipes.select(0 if ended else min(0.5, self._bounds.idle_seconds, self._seconds))
                for key, _ in ready:
                    piece = os.read(key.fd, _PIECE)
                    last = time.monotonic()
                    if piece:
                        key.data(piece)
                    else:
                        pipes.unregister(key.fileobj)
                if ended and not ready:
                    break  # what it left behind, such as a connection that is shared, may hold the pipes
        self._process.wait()

    def _hear_answer(self, piece: bytes) -> None:
        self._out += piece
        if len(self._out) > self._bounds.answer_bytes:
            raise GitFailed(f"its answer is larger than {self._bounds.answer_bytes:,} bytes", self.said())

    def _hear_error(self, piece: bytes) -> None:
        self._errors += piece
        self._heard += len(piece)
        del self._errors[:-_KEEP]
        if self._heard > self._bounds.answer_bytes:
            raise GitFailed(f"it says more than {self._bounds.answer_bytes:,} bytes", self.said())


_USER = re.compile(r"(?<=://)[^/\s'\"]*@")
_AUTHORIZATION = re.compile(r"(?i)(authorization\s*:\s*)\S.*")


def without_secrets(text: str) -> str:
    """What git said, without names and passwords in addresses, headers that log in, and keys of this process."""
    return redacted(_AUTHORIZATION.sub(r"\1[secret removed]", _USER.sub("", text)))


def _refusals(answer: bytes) -> list[str]:
    """What `push --porcelain` says of branches that were not moved."""
    lines = answer.decode("utf-8", "backslashreplace").splitlines()
    return [without_secrets(line) for line in lines if line.startswith("!")]


_TOLD = re.compile(r"fatal: |error: |!\t|ssh: ")
"""Lines that say why; the others are of what git does, or a server's own words."""
_TOO_LARGE = re.compile(r"File too large|File size limit exceeded")
_WORDS = (
    (
        re.compile(r"could not read (Username|Password)|Authentication failed|Permission denied \(|returned error: 40[13]"),
        "it wants to know who you are; give git a credential helper, or a key to your SSH agent, and try `git ls-remote`",
    ),
    (
        re.compile(r"does not appear to be a git repository|[Rr]epository .*not found|does not exist|returned error: 404"),
        "no repository is there, or none that you may see",
    ),
    (re.compile(r"dubious ownership"), "it is another user's; have git trust it: git config --global --add safe.directory"),
    (
        re.compile(r"returned error: 30[1278]"),
        "it has moved, and is not followed; ask for its new address, and give that",
    ),
    (
        re.compile(r"fsck error|error: object [0-9a-f]+: |error in object|invalid index-pack|bad (tree|object)|corrupt"),
        "it holds what git takes for damaged, or for an attack",
    ),
    (
        re.compile(r"bad revision|not our ref|no such remote ref|couldn't find remote ref|unable to find [0-9a-f]{40}"),
        "something that it ought to hold is missing in it",
    ),
    (re.compile(r"expected commit type|Needed a single revision"), "what is named so in it is no commit"),
    (re.compile(r"[Oo]ut of memory|malloc|mmap failed|unable to create (async|thread)"), "it needs more memory than is taken"),
    (
        re.compile(r"(index-pack|unpack-objects|fetch-pack|rev-list)\S* died of signal|died of signal 11"),
        "git itself gave up on what it holds",
    ),
)
"""What git says, in words that say what to do; the first that is found."""


def read_line(pipe: IO[bytes]) -> bytes:
    """A line of at most 4 KiB, without its end."""
    return pipe.readline(4096).rstrip(b"\n")
