"""Addresses of registry servers, and the access tokens for these servers.

Each token is sent only to its own server. The token in the environment variable `NIP_RUN_TOKEN` belongs to the server
in `NIP_RUN_REGISTRY`. `nip-run login` stores other tokens in a file, by the address of their server.
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

from runner.base.errors import RunError, UsageError, os_errors_as
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import make_folders, read_bounded
from runner.base.text import shortened

TOKEN_ENV = "NIP_RUN_TOKEN"  # noqa: S105 - a name
"""The environment variable with the token for the server in `NIP_RUN_REGISTRY`."""
REGISTRY_ENV = "NIP_RUN_REGISTRY"
_MAX_BYTES = 1 << 20


def normalize_address(address: str) -> str:
    """Return the address of a server without a default port and without a slash at its end.

    Raises:
        UsageError: the address is not that of a server, or a remote server has no TLS.
    """
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise UsageError(
            f"not the address of a registry: {shortened(address, 200)!r}: {error}; write https://HOST"
        ) from error
    if url.userinfo or "@" in address:
        raise UsageError(
            "the address of a registry cannot have a user or password; remove them, and give a token to `nip-run login`"
        )
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise UsageError(f"not the address of a registry: {shortened(address, 200)!r}; write https://HOST")
    if url.scheme == "http" and not _is_loopback(url.host):
        raise UsageError(
            f"{shortened(address, 200)!r} has no TLS, so others could read and change the traffic; write https://"
        )
    if url.port == {"http": 80, "https": 443}[url.scheme]:
        url = url.copy_with(port=None)
    return str(url).rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def token_for(server: str) -> str | None:
    """Return the token for a server; None if the user has no token for it.

    Raises:
        UsageError: `NIP_RUN_TOKEN` is set without the address of a server in `NIP_RUN_REGISTRY`.
        RunError: the stored tokens cannot be read.
    """
    token, registry = os.environ.get(TOKEN_ENV, "").strip(), os.environ.get(REGISTRY_ENV, "")
    # Do not use a stored token instead, which could belong to another account than the user expects.
    if token and not registry.startswith(("http://", "https://")):
        raise UsageError(
            f"{TOKEN_ENV} is set, but {REGISTRY_ENV} does not name its server: set {REGISTRY_ENV}={server}, or unset "
            f"{TOKEN_ENV}"
        )
    return token if token and _is_same_server(registry, server) else _read_tokens().get(server)


def is_token_for_other_server(server: str) -> bool:
    """Return whether `NIP_RUN_TOKEN` is set for another server."""
    return bool(os.environ.get(TOKEN_ENV, "").strip()) and not _is_same_server(os.environ.get(REGISTRY_ENV, ""), server)


def _is_same_server(address: str, server: str) -> bool:
    with suppress(UsageError):
        return normalize_address(address) == server
    return False


def tokens_path() -> Path:
    """Return the path of the file where `login` stores tokens."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(config) if config.startswith("/") else Path("~/.config").expanduser()
    return folder / "nip-run" / "tokens.json"


def store_token(server: str, token: str | None) -> bool:
    """Store the token for a server, or remove it if `token` is None; return whether an earlier token was stored.

    Raises:
        RunError: the file cannot be written.
    """
    path = tokens_path()
    with os_errors_as(RunError, f"cannot write {path}", "; set XDG_CONFIG_HOME to another folder"):
        make_folders(path.parent)
        path.parent.chmod(stat.S_IRWXU)
    with locked(path.with_name(".lock"), str(path), 10):
        tokens = _read_tokens()
        had_token = tokens.pop(server, None) is not None
        if token is not None:
            tokens[server] = token
        atomic_write(path, orjson.dumps(tokens, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n", mode=0o600)
    return had_token


def _read_tokens() -> dict[str, str]:
    """Return the stored tokens, by the address of their server.

    Raises:
        RunError: the file is damaged, or other users can read it.
    """
    path = tokens_path()
    try:
        data = read_bounded(path, _MAX_BYTES)
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise RunError(
            f"other users can read the tokens in {path}; run `chmod 600 {path}`, and create new tokens on the servers"
        )
    try:
        tokens: Any = orjson.loads(data)
        if not isinstance(tokens, dict) or not all(isinstance(token, str) for token in tokens.values()):
            raise ValueError("not a mapping of servers to tokens")
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}); remove this file, and log in again with nip-run login") from error
    return tokens
