"""Open the registry at a given address, with the transport for its scheme. All commands on registries use this."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.text import in_one_line, shortened
from runner.registry.transports.folder_check import check_registry
from runner.registry.transports.interface import Transport
from runner.registry.transports.registry import Registry

REGISTRY_VARIABLE = "NIP_RUN_REGISTRY"
"""The environment variable with the default registry."""

ADDRESS_FORMS = (
    "a folder (file:DIR or DIR), git:URL, hf:OWNER/NAME or https://HOST (git: and hf: accept @REVISION at the end)"
)


def default_address() -> str:
    """Return the address in `NIP_RUN_REGISTRY`.

    Raises:
        UsageError: it is not set.
    """
    address = os.environ.get(REGISTRY_VARIABLE, "")
    if not address:
        raise UsageError(
            f"no registry is given; add --from WHERE (`publish`: --to WHERE), or set {REGISTRY_VARIABLE}. WHERE is "
            f"{ADDRESS_FORMS}"
        )
    return address


def connect(address: str | None = None, *, pull_request: bool = False) -> Registry:
    """Open the registry at an address, by default the one in `NIP_RUN_REGISTRY`. The caller closes the registry.

    With `pull_request`, releases are published to a new branch or a pull request, not to the branch that others read.

    Raises:
        UsageError: the address is not valid.
        ReleaseError: the registry cannot be read.
    """
    return Registry(_open_transport(address or default_address(), pull_request=pull_request))


def connect_to_read(address: str | None = None) -> Registry:
    """Open a registry for reading. If the address names a folder, check that this folder is a registry.

    Raises:
        UsageError, ReleaseError: as `connect` and `check_registry`.
    """
    registry = connect(address)
    if registry.address.startswith("file:"):
        check_registry(Path(registry.address.removeprefix("file:")))
    return registry


def _open_transport(address: str, *, pull_request: bool) -> Transport:
    if "\0" in address or in_one_line(address) != address:
        raise UsageError(
            f"not the address of a registry: {in_one_line(shortened(address, 200))!r} has control characters; remove "
            "them"
        )
    scheme, colon, rest = address.partition(":")
    if not colon or "/" in scheme:  # a path without a scheme
        scheme, rest = "file", address
    if scheme == "git":
        from runner.registry.transports.git.transport import GitTransport

        return GitTransport(rest, pull_request=pull_request)
    if scheme == "hf":
        from runner.registry.transports.hub import HubTransport

        return HubTransport(rest, pull_request=pull_request)
    if scheme in ("http", "https"):
        from runner.registry.transports.http.transport import HttpTransport

        if pull_request:
            raise UsageError("a server has no pull requests; omit --pull-request")
        return HttpTransport(address)
    if scheme != "file":
        raise UsageError(f"not the address of a registry: {_without_secret(address)!r}; name {ADDRESS_FORMS}")
    if pull_request:
        raise UsageError("a folder has no pull requests; omit --pull-request")
    names_host = rest.startswith("//") and not rest.startswith("///")  # file://HOST/DIR
    if rest != address and (names_host or not rest):
        raise UsageError(f"not the address of a registry: {address!r} names no folder; write file:DIR")
    from runner.registry.transports.folder import FolderTransport

    return FolderTransport(rest)


def _without_secret(address: str) -> str:
    """Return an address for messages, without a user or token before an @."""
    return re.sub(r"//[^/@]*@", "//...@", shortened(address, 200))
