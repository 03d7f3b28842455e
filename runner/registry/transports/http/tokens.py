"""Addresses of registries' servers, and the tokens that belong to them: each goes to its own server, and nowhere else.

A token comes from `NIP_RUN_TOKEN`, for the registry of `NIP_RUN_REGISTRY` alone; else from where `nip-run login` kept
it, by the address of the server.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import orjson

from runner.base.errors import RunError, UsageError
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import make_folders, read_bounded
from runner.base.text import shortened

TOKEN = "NIP_RUN_TOKEN"  # noqa: S105 - a name
"""The token for the registry of `NIP_RUN_REGISTRY`, and for no other."""
REGISTRY = "NIP_RUN_REGISTRY"
_MOST = 1 << 20


def place_of(address: str) -> str:
    """An address of a server as it is written everywhere: without a slash at its end.

    Raises:
        UsageError: no server can be there, or it is far away and without TLS.
    """
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise UsageError(f"no registry can be at {shortened(address, 200)!r}: {error}") from error
    if url.userinfo or "@" in address:
        raise UsageError("the address of a registry has no user and no password; `nip-run login` takes a token")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise UsageError(f"no registry can be at {shortened(address, 200)!r}; write https://HOST")
    if url.scheme == "http" and not _is_loopback(url.host):
        raise UsageError(
            f"{shortened(address, 200)!r} has no TLS, so that anybody on the way reads and writes; write https://"
        )
    if url.port == {"http": 80, "https": 443}[url.scheme]:
        url = url.copy_with(port=None)
    return str(url).rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def token_for(base: str) -> str | None:
    """The token that belongs to a server; None where none does.

    Raises:
        UsageError: one is set, and nobody says for which server, so that another account's could be taken instead.
        RunError: those that are kept cannot be read.
    """
    said, meant = os.environ.get(TOKEN, "").strip(), os.environ.get(REGISTRY, "")
    if said and not meant.startswith(("http://", "https://")):
        raise UsageError(
            f"{TOKEN} is set, and {REGISTRY} does not say for which server: set {REGISTRY}={base}, or unset {TOKEN}"
        )
    return said if said and _is_meant(meant, base) else _read().get(base)


def is_for_another(base: str) -> bool:
    """Whether `NIP_RUN_TOKEN` is set, and not for this server."""
    return bool(os.environ.get(TOKEN, "").strip()) and not _is_meant(os.environ.get(REGISTRY, ""), base)


def _is_meant(address: str, base: str) -> bool:
    with suppress(UsageError):
        return place_of(address) == base
    return False


def tokens_file() -> Path:
    """Where `login` keeps tokens."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(config) if config.startswith("/") else Path("~/.config").expanduser()
    return folder / "nip-run" / "tokens.json"


def keep_token(base: str, token: str | None) -> bool:
    """Keep the token of a server, or with None forget it; whether one was there before.

    Raises:
        RunError: it cannot be written.
    """
    path = tokens_file()
    try:
        make_folders(path.parent)
        path.parent.chmod(stat.S_IRWXU)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; XDG_CONFIG_HOME names another place") from error
    with locked(path.with_name(".lock"), str(path), 10):
        known = _read()
        was_there = known.pop(base, None) is not None
        if token is not None:
            known[base] = token
        atomic_write(path, orjson.dumps(known, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n", mode=0o600)
    return was_there


def _read() -> dict[str, str]:
    """The tokens that are kept, by the address of their server.

    Raises:
        RunError: they are damaged, or others may read them.
    """
    path = tokens_file()
    try:
        data = read_bounded(path, _MOST)
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise RunError(f"others may read {path}, which has tokens: chmod 600 it, and make new ones on the servers")
    try:
        said: Any = orjson.loads(data)
        if not isinstance(said, dict) or not all(isinstance(token, str) for token in said.values()):
            raise ValueError("it holds no tokens")
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}); remove it, and log in again") from error
    return said
