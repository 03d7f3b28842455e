"""Check the form of a server's address without connecting to it."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z", re.IGNORECASE)


def address_problem(url: str) -> str | None:
    """Return why an address is invalid, beyond what the schema checks; None if it is valid."""
    if not url.isprintable() or not url.isascii():
        return (
            "an address may contain only ASCII characters; write other characters in a path as %XX, and a host with "
            "other characters as its xn-- name"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"not an address: {error}; write an address such as http://localhost:8000/v1"
    if port == 0:
        return "not an address: no server can have port 0; write the port of your server"
    if parts.query or parts.fragment or "?" in url or "#" in url:
        return (
            "an address must end with its path, to which the path of a call is added; remove everything from ? or # on"
        )
    return _host_problem(parts.hostname or "", bracketed="[" in parts.netloc)


def _host_problem(host: str, *, bracketed: bool) -> str | None:
    if not host:
        return "not an address: the host is missing; write an address such as http://localhost:8000/v1"
    if bracketed:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return f"not an address: {host!r} is not an IPv6 address; correct it, or write the host's name"
        return None
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(map(_LABEL.match, labels)):
        return f"not an address: {host!r} is not a host name; correct it, or write an IP address"
    if labels[-1].isdigit():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return f"not an address: {host!r} is not an IPv4 address; correct it, or write the host's name"
    return None
