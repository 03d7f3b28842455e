"""One-line messages about actors and nodes."""

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

_DEATH_REASON = re.compile(r"The actor (?:is dead|died) because (.+)", re.DOTALL)
"""The part of Ray's message with the reason why an actor is gone."""

_ENDS = re.compile(r" Some common causes include| Last \d+ lines|\. Node Id: ")


class NodeError(Exception):
    """Raised when no worker can play on a node."""

    def __init__(self, failure: RemoteError) -> None:
        super().__init__(str(failure.error()))
        self.failure = failure


def describe_death(error: Exception, where: str) -> str:
    """Return why an actor is gone, as words that follow "a worker process"."""
    text = str(error).strip()
    if (match := _DEATH_REASON.search(text)) is not None:
        text = match.group(1)
    elif type(error).__name__ == "ActorUnavailableError":
        text = "cannot be reached: " + text.partition("RpcError: ")[2]
    else:  # a traceback from the actor, whose last line is the error
        text = text.rpartition("\n")[2]
    return f"{where} is gone: {one_line(_ENDS.split(text)[0].strip().rstrip('.'))}"


def one_line(message: object) -> str:
    """Convert a message of Ray to one short line."""
    line = redacted(escape_controls(" ".join(str(message).split())))
    return shortened(line, _LONGEST) or type(message).__name__


def find_node_problem(info: Mapping[str, Any]) -> str | None:
    """Return why the described worker cannot play; None if it can."""
    node, version = info["node"], info["version"]
    if version is None:
        return (
            f"nip-run cannot be imported on node {node} of the Ray cluster ({info['missing']}): install "
            f"nip-run[ray]=={__version__} there, in the environment that Ray runs in"
        )
    if version != __version__:
        return (
            f"node {node} of the Ray cluster has nip-run {version}, but this command is {__version__}: install the "
            "same version on every node"
        )
    return None


def with_node(failure: RemoteError, where: str) -> RemoteError:
    """Add the node of the worker to a failure, because the worker's environment is that of its node."""
    error = failure.error()
    if not isinstance(error, NipRunError):
        return failure
    where = f"{where} of the Ray cluster: set the environment of a worker on its node, before `ray start`"
    error.args = (f"{error} ({where})", *error.args[1:])
    return RemoteError.of(error)
