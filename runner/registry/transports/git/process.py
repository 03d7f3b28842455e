"""Git, run so that no repository decides what it does: nothing of its configuration, no hook, filter or submodule.

Git's own configuration of the user counts where it says how to reach a server and who they are: credential helpers,
proxies, keys, `url.*.insteadOf`, `core.sshCommand`. What could make git run or write more is set here, at each call.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from runner.base.errors import ReleaseError
from runner.registry.transports.git.bounded_process import (
    USUAL,
    Feeder,
    GitFailed,
    ProcessLimits,
    Watch,
    close_pipes,
    end,
)
from runner.registry.transports.git.errors import in_words, refusals

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


def program_there(program: str) -> str:
    """The command by which git starts its other half in a repository on this machine."""
    settings = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in _THERE.items())
    return f"GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 git {settings} {program}"


class GitProcess:
    """Git in a bare repository of our own; each call is bounded in time, disk and memory, and ends with us."""

    def __init__(self, folder: Path, protocols: Iterable[str], bounds: ProcessLimits = USUAL) -> None:
        self.folder = folder
        self.bounds = bounds
        self._environment = _environment(folder, protocols)

    def __call__(
        self,
        *arguments: str,
        feed: Iterable[bytes] | None = None,
        seconds: float | None = None,
        unbounded: bool = False,
    ) -> bytes:
        """What a command says on stdout. `feed` is written to it; `unbounded` are commands on files of our own alone.

        Raises:
            GitFailed: it ended with an error, or took more than it may.
            OSError: what is to be fed cannot be read.
        """
        bounds = replace(self.bounds, seconds=seconds or self.bounds.seconds)
        if unbounded:  # git says nothing while it takes in what is to be published, however much that is
            bounds = replace(bounds, seconds=math.inf, idle_seconds=math.inf)
        disk = None if unbounded else self._disk()
        process = self.start(*arguments, disk=disk, takes=feed is not None)
        try:
            feeder = None if feed is None else Feeder(process, feed)
            watch = Watch(process, bounds, self._stored_bytes if seconds is None else lambda: 0)
            try:
                watch.follow()
            finally:
                if feeder is not None:
                    feeder.end()
        except BaseException:
            end(process)
            raise
        finally:
            close_pipes(process)
        if process.returncode != 0:
            said = "\n".join([watch.said(), *refusals(watch.answer)]) if "push" in arguments else watch.said()
            raise GitFailed(in_words(said, process.returncode, disk), said)
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

    def _stored_bytes(self) -> int:
        """Bytes of all objects here, including those that are being received and those to be pushed."""
        found = 0
        for path in self.folder.glob("objects/*/*"):
            with suppress(FileNotFoundError):  # renamed since it was listed
                found += path.stat().st_size
        return found

    def _disk(self) -> int:
        return min(self.bounds.pack_bytes, shutil.disk_usage(self.folder).free // 2)


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
