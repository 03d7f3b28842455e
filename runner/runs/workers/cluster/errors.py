"""What Ray says of actors and nodes, and what is wrong with a node, in a line each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runner.base.errors import NipRunError
from runner.base.redaction import redacted
from runner.base.text import escape_controls, shortened
from runner.runs.workers.remote_errors import RemoteError
from runner.version import __version__

_LONGEST = 300

_WHY = re.compile(r"The actor (?:is dead|died) because (.+)", re.DOTALL)
"""The line of Ray's that says more than that an actor is gone."""

_ENDS = re.compile(r" Some common causes include| Last \d+ lines|\. Node Id: ")


class CannotWorkError(Exception):
    """A node where no worker can play: what it failed with."""

    def __init__(self, failure: RemoteError) -> None:
        super().__init__(str(failure.error()))
        self.failure = failure


def how_it_ended(error: Exception, where: str) -> str:
    """How an actor ended, after `a worker process`."""
    said = str(error).strip()
    if (found := _WHY.search(said)) is not None:
        said = found.group(1)
    elif type(error).__name__ == "ActorUnavailableError":
        said = "cannot be reached: " + said.partition("RpcError: ")[2]
    else:  # what was raised within it, of which the last line says most
        said = said.rpartition("\n")[2]
    return f"{where} is gone: {in_a_line(_ENDS.split(said)[0].strip().rstrip('.'))}"


def in_a_line(said: object) -> str:
    """What Ray says, in a line of a length that can be read."""
    words = redacted(escape_controls(" ".join(str(said).split())))
    return shortened(words, _LONGEST) or type(said).__name__


def wrong_node(said: Mapping[str, Any]) -> str | None:
    """Why the worker that said this of itself cannot play; None where it can."""
    node, version = said["node"], said["version"]
    if version is None:
        return (
            f"nip-run cannot be imported on node {node} of the Ray cluster ({said['missing']}): install "
            f"nip-run[ray]=={__version__} there, in the environment that Ray runs in"
        )
    if version != __version__:
        return (
            f"node {node} of the Ray cluster has nip-run {version}, and this command is {__version__}: install the "
            "same version on every node"
        )
    return None


def located(failure: RemoteError, where: str) -> RemoteError:
    """What a worker cannot start with, and where: the environment is that of its node."""
    error = failure.error()
    if not isinstance(error, NipRunError):
        return failure
    where = f"{where} of the Ray cluster: what a worker needs is in the environment of its node, before `ray start`"
    error.args = (f"{error} ({where})", *error.args[1:])
    return RemoteError.of(error)
