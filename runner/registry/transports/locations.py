"""Open the registry at a given address, with the transport for its scheme. All commands on registries use this."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.base.errors import ReleaseError, UsageError
from runner.base.text import did_you_mean, in_one_line, shortened
from runner.documents.releases.reference import Kind
from runner.registry.transports.interface import Transport
from runner.registry.transports.registry import Registry
from runner.registry.transports.staging import INCOMING

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
            f"no registry is given; add --from WHERE (to publish: --to WHERE), or set {REGISTRY_VARIABLE}. WHERE is "
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
        address = re.sub(r"//[^/@]*@", "//...@", shortened(address, 200))  # without a user or token
        raise UsageError(f"not the address of a registry: {address!r}; name {ADDRESS_FORMS}")
    if pull_request:
        raise UsageError("a folder has no pull requests; omit --pull-request")
    names_host = rest.startswith("//") and not rest.startswith("///")  # file://HOST/DIR
    if rest != address and (names_host or not rest):
        raise UsageError(f"not the address of a registry: {address!r} names no folder; write file:DIR")
    from runner.registry.transports.folder import FolderTransport

    return FolderTransport(rest)


def check_registry(folder: Path) -> None:
    """Check that a folder exists, and has releases or is empty (except for a README and a license).

    Raises:
        ReleaseError: the folder is not a registry; the message suggests a registry next to the folder.
    """
    if not folder.exists():
        hint = _suggest_registry(folder) or "; check the path"
        raise ReleaseError(f"no registry is at {folder}: there is no such folder{hint}")
    if not folder.is_dir():
        raise ReleaseError(f"no registry is at {folder}, because it is a file; name a folder")
    if not _has_releases(folder) and not all(name.upper().startswith(("README", "LICEN")) for name in _names(folder)):
        inside = next((name for name in _names(folder) if _has_releases(folder / name)), None)
        hint = "; check the path" if inside is None else f"; did you mean {str(folder / inside)!r}?"
        raise ReleaseError(f"no registry is at {folder}: the folder has other files, but no release{hint}")


def _has_releases(folder: Path) -> bool:
    """Return whether a folder has a release, or the folder of an unfinished publish."""
    versions = (path for kind in Kind for path in folder.glob(f"{kind}/[!.]*/[!.]*/[!.]*"))  # KIND/OWNER/NAME/VERSION
    return (folder / INCOMING).is_dir() or any(path.is_dir() for path in versions)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _suggest_registry(folder: Path) -> str:
    names = [name for name in _names(folder.parent) if _has_releases(folder.parent / name)]
    if not names:
        return ""
    return did_you_mean(folder.name, names) or (f"; did you mean {names[0]!r}?" if len(names) == 1 else "")
