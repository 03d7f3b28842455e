"""Who asks, as limits count them: one address, however it is written, or the network that one caller has of it."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

GONE = "nip_run.gone"
"""Stands in the scope of a request once its connection is lost, so that nothing more is made for it."""
ROOM = "nip_run.room"
"""Stands there, too: what ends another request that waits for its client, of the same address or of any."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(said: str) -> _Address | None:
    """An address; of IPv4 that is written as IPv6, as a socket for both does it, that of IPv4."""
    try:
        found = ipaddress.ip_address(said)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if found.version == 6 else None
    return mapped or found


def caller(address: str) -> str:
    """Who is counted as one: an address of IPv4, the /64 of one of IPv6; what is no address stays as it is."""
    found = _address(address)
    if found is None:
        return address
    return str(ipaddress.IPv6Network((int(found), 64), strict=False)) if found.version == 6 else str(found)


def is_within(address: str, networks: Sequence[str]) -> bool:
    """Whether an address is in one of these networks."""
    found = _address(address)
    return found is not None and any(found in ipaddress.ip_network(network) for network in networks)


def unbelieved(scope: Scope, proxies: Sequence[str]) -> str | None:
    """The other end of a connection that says who asks, as a proxy does, and is none of the proxies that are named."""
    peer = str(scope["client"][0]) if scope.get("client") else ""
    says = bool(proxies) and "x-forwarded-for" in Headers(scope=scope)
    return peer if says and not is_within(peer, proxies) else None


def address_of(scope: Scope, proxies: Sequence[str]) -> str:
    """Who asks: the other end of the connection, or whom a proxy that is trusted says last."""
    client = scope.get("client")
    peer = str(client[0]) if client else ""
    if not is_within(peer, proxies):
        return caller(peer)
    said = Headers(scope=scope).getlist("x-forwarded-for")
    last = said[-1].rpartition(",")[2].strip() if said else ""
    return caller(last if _address(last) else peer)
