"""Where a registry lives, as somebody writes it, into the registry that is there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.text import in_one_line, shortened
from runner.registry.transports.folder_check import check_registry
from runner.registry.transports.interface import Transport
from runner.registry.transports.registry import Registry

VARIABLE = "NIP_RUN_REGISTRY"
"""The registry that is meant where a command names none."""

FORMS = "a folder (file:DIR or DIR), git:URL, hf:OWNER/NAME, or https://HOST; git: and hf: take @REVISION behind them"


def default_where() -> str:
    """The registry of `NIP_RUN_REGISTRY`.

    Raises:
        UsageError: it says none.
    """
    where = os.environ.get(VARIABLE, "")
    if not where:
        raise UsageError(f"which registry? Say where it is ({FORMS}), or set {VARIABLE}")
    return where


def connect(where: str | None = None, *, pull_request: bool = False) -> Registry:
    """The registry at a place, by default at that of `NIP_RUN_REGISTRY`. The caller closes it.

    With `pull_request` what is added goes to a branch, or a pull request, and not to what others read.

    Raises:
        UsageError: no place is named so.
        ReleaseError: it cannot be read.
    """
    return Registry(_transport(where or default_where(), pull_request=pull_request))


def to_read(where: str | None = None) -> Registry:
    """`connect`, for who adds nothing: a folder must be there, and hold a registry or nothing.

    Raises:
        UsageError, ReleaseError: as `connect`; or the folder is missing, or holds something else.
    """
    registry = connect(where)
    if registry.where.startswith("file:"):
        check_registry(Path(registry.where.removeprefix("file:")))
    return registry


def _transport(where: str, *, pull_request: bool) -> Transport:
    if "\0" in where or in_one_line(where) != where:
        raise UsageError(f"no registry can be at {in_one_line(shortened(where, 200))!r}: it has characters of no text")
    scheme, sign, rest = where.partition(":")
    if sign and scheme == "git":
        from runner.registry.transports.git.transport import GitTransport

        return GitTransport(rest, pull_request=pull_request)
    if sign and scheme == "hf":
        from runner.registry.transports.hub import HubTransport

        return HubTransport(rest, pull_request=pull_request)
    if sign and scheme in ("http", "https"):
        from runner.registry.transports.http.transport import HttpTransport

        if pull_request:
            raise UsageError("a server has no pull requests; leave --pull-request out")
        return HttpTransport(where)
    if pull_request:
        raise UsageError("a folder has no pull requests; leave --pull-request out")
    if sign and scheme != "file" and "/" not in scheme:
        raise UsageError(f"no registry can be at {_without_secret(where)!r}; it is {FORMS}")
    if sign and scheme == "file" and (not rest or (rest.startswith("//") and not rest.startswith("///"))):
        raise UsageError(f"no registry can be at {where!r}: which folder? write file:DIR")
    from runner.registry.transports.folder import FolderTransport

    return FolderTransport(rest if sign and scheme == "file" else where)


def _without_secret(where: str) -> str:
    """An address as messages may show it: what stands before an @ in its host may be a token."""
    return re.sub(r"//[^/@]*@", "//...@", shortened(where, 200))
