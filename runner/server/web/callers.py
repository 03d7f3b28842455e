"""Identifies the caller of a request: an IPv4 address or an IPv6 network.

A caller has limits on its request rate, its connections and its open requests. The log names callers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

DISCONNECTED = "nip_run.gone"
"""Key in the ASGI scope that is set when the client disconnects, so that handlers can stop early."""
MAKE_ROOM = "nip_run.room"
"""Key in the ASGI scope of `LimitedConnection.make_room`, which ends another request that waits for its client."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> _Address | None:
    """Parse an IP address; None if it is invalid. An IPv4-mapped IPv6 address becomes an IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or `localhost`."""
    address = parse_address(host)
    return host == "localhost" if address is None else address.is_loopback


def caller_key(address: str) -> str:
    """Return the caller of an address: the IPv4 address itself, or the /64 network of an IPv6 address."""
    parsed = parse_address(address)
    if parsed is None:
        return address
    return str(ipaddress.IPv6Network((int(parsed), 64), strict=False)) if parsed.version == 6 else str(parsed)


def is_within(address: str, networks: Sequence[str]) -> bool:
    """Return whether an address is in one of these networks."""
    parsed = parse_address(address)
    return parsed is not None and any(parsed in ipaddress.ip_network(network) for network in networks)


def _peer_of(scope: Scope) -> str:
    """Return the address of the other end of the connection; "" if it is unknown."""
    return str(scope["client"][0]) if scope.get("client") else ""


def untrusted_peer(scope: Scope, proxies: Sequence[str]) -> str | None:
    """Return the address of a peer that sends `X-Forwarded-For` but is not one of the trusted proxies.

    Return None for other peers, and if the server has no trusted proxies.
    """
    peer = _peer_of(scope)
    is_forwarded = bool(proxies) and "x-forwarded-for" in Headers(scope=scope)
    return peer if is_forwarded and not is_within(peer, proxies) else None


def caller_of(scope: Scope, proxies: Sequence[str]) -> str:
    """Return the caller of a request: its peer or, behind a trusted proxy, the last address in `X-Forwarded-For`."""
    peer = _peer_of(scope)
    if not is_within(peer, proxies):
        return caller_key(peer)
    headers = Headers(scope=scope).getlist("x-forwarded-for")
    last = headers[-1].rpartition(",")[2].strip() if headers else ""
    return caller_key(last if parse_address(last) else peer)
