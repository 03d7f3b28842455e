"""One-line messages about Ray actors and about nodes of a Ray cluster, for notes and errors of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runner.base.errors import NipRunError
from runner.base.redaction import redacted
from runner.base.text import escape_controls, shortened
from runner.runs.workers.remote_errors import RemoteError
from runner.version import __version__

_MAX_LENGTH = 300
"""The maximum length of a line."""

_DEATH_REASON = re.compile(r"The actor (?:is dead|died) because (.+)", re.DOTALL)
"""Matches the part of Ray's message with the reason why an actor is gone."""

_REASON_END = re.compile(r" Some common causes include| Last \d+ lines|\. Node Id: ")
"""Matches the text that follows the reason."""


class NodeError(Exception):
    """Raised when no worker can play on a node."""

    def __init__(self, failure: RemoteError) -> None:
        super().__init__(str(failure.to_exception()))
        self.failure = failure


def describe_death(error: Exception, where: str) -> str:
    """Describe why an actor is gone, as text that follows "a worker process"; `where` names its node."""
    text = str(error).strip()
    if (match := _DEATH_REASON.search(text)) is not None:
        text = match.group(1)
    elif type(error).__name__ == "ActorUnavailableError":
        text = "cannot be reached: " + text.partition("RpcError: ")[2]
    else:  # a traceback from the actor; the last line has the error
        text = text.rpartition("\n")[2]
    return f"{where} is gone: {one_line(_REASON_END.split(text)[0].strip().rstrip('.'))}"


def one_line(message: object) -> str:
    """Return a message of Ray as one short line without secrets."""
    line = redacted(escape_controls(" ".join(str(message).split())))
    return shortened(line, _MAX_LENGTH) or type(message).__name__


def find_node_problem(info: Mapping[str, object]) -> str | None:
    """Return why a worker on this node cannot play, or None if it can; `info` is the result of `describe`."""
    node, version = info["node"], info["version"]
    if version is None:
        return (
            f"nip-run cannot be imported on node {node} of the Ray cluster ({info['missing']}): install "
            f"nip-run[ray]=={__version__} on that node, in the environment that Ray runs in"
        )
    if version != __version__:
        return (
            f"node {node} of the Ray cluster has nip-run {version}, but this command is version {__version__}: "
            f"install nip-run[ray]=={__version__} on every node"
        )
    return None


def with_node(failure: RemoteError, where: str) -> RemoteError:
    """Add the worker's node and a hint to a failure, whose cause is often the environment on that node."""
    error = failure.to_exception()
    if not isinstance(error, NipRunError):
        return failure
    where = f"{where} of the Ray cluster; set environment variables for workers on that node, before `ray start`"
    error.args = (f"{error} ({where})", *error.args[1:])
    return RemoteError.from_exception(error)
