"""Find private locations in a text: URLs, users at hosts, IP addresses, internal hosts, buckets, sockets and paths.

`runner.registry.redaction.rules` applies these patterns to all strings of structured data.
"""

from __future__ import annotations

import re
from collections.abc import Callable

ADDRESS, PATH = "address", "path"
REMOVED = "???"

_REST = r"[^\s'\"<>|;,()`:]*"
_HOMES = r"(?:/(?:home|homes|Users|root|mnt|Volumes)/|\\(?:[Uu]sers|home)\\)"
_HOME = re.compile(rf"{_HOMES}{_REST}|(?<!\w)[A-Za-z]:(?:[Uu]sers[\\/]|[\w.-]+\\){_REST}")
"""Matches home folders, and paths relative to a drive, such as `C:work\\data` (but not `C:work/data`)."""
_SLASH = r"%(?:25)?(?:2[fF]|5[cC])"
_ENCODED_HOME = re.compile(rf"{_SLASH}(?:home|homes|[Uu]sers|root|mnt|Volumes){_SLASH}[\w.@+~%-]*")
_ENCODED = re.compile(
    rf"(?<![\w%])(?:[A-Za-z]%3[aA])?(?:{_SLASH}[\w.@+~-]+){{2,}}(?:{_SLASH})?|{_ENCODED_HOME.pattern}"
)
_VARIABLE = re.compile(
    rf"(?:\$(?:env:)?(?:\{{[A-Z_][A-Z0-9_]*\}}|[A-Z_][A-Z0-9_]*)|%[A-Za-z_][A-Za-z0-9_()]*%)[\\/]{_REST}"
)
_HOST_PATH = re.compile(rf"(?<![\w:/.])//(?P<host>[\w.\x24-]+)/{_REST}")
_SHARE = re.compile(r"\\\\[\w.\x24-]+(?:\\[^\s\\'\"<>|]*)*")
"""Matches Windows shares, such as `\\\\host\\c$`. In this pattern and the one above, `\\x24` is a dollar sign."""
_DRIVE = re.compile(r"(?<![\w])[A-Za-z]:[\\/][^\s'\"<>|;,]*")
_ABSOLUTE = re.compile(
    r"(?<![\w.~/?%<-])(?:file:)?(?:~[\w.-]*/[^\s'\"<>|;,():`]*|(?:/[\w.@+~%-]+){2,}/?|/[\w.@+~%-]+/)"
)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:///?(?P<host>[^\s/'\"<>()\[\]]*(?:\[[0-9A-Fa-f:.]+\])?)[^\s'\"<>)\]]*")
_STORE = re.compile(
    r"(?i)(?:unix|ipc|s3[an]?|gs|gcs|az|azure|abfss?|wasbs?|hdfs|dbfs|r2|oci|swift|minio|rsync|sftp|scp)://"
)
"""Matches schemes of buckets and sockets, which are always private."""
_NETWORK_SCHEME = re.compile(
    r"(?i)(?:https?|wss?|tcp|udp|grpcs?|rpc|rediss?|file|ftp|ssh|nfs|smb|zmq|amqps?|postgres(?:ql)?|mysql)://"
)
"""Matches schemes whose URLs are private unless their host is public."""
_PUBLIC_HOST = re.compile(
    r"(?i)(?:[\w-]+\.)+(?!(?:local|lan|internal|intern|intranet|corp|home|localdomain|private)\Z)[a-z][a-z-]+"
)
_USER = re.compile(
    r"(?<![\w/.@-])(?P<user>[A-Za-z_][\w.-]*)@(?P<host>[A-Za-z0-9][\w-]*(?:\.[\w-]+)*)(?::(?P<rest>\S+))?"
)
_VERSION = re.compile(r"(?i)v?\d[\w.]*|i\d+|latest|main|master|stable")
"""Matches versions, iterations and branches. They may follow an `@`, and are not hosts."""
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2})?(?![\w.]*\d)(?:(?::|', ?)\d{1,5})?")
"""Matches an address, with the port in `10.0.0.1:80` and in a Python tuple, `10.0.0.1', 80`."""
_IPV6 = re.compile(
    r"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]+(?:%\w+)?\](?::\d+)?"
    r"|(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){1,7}(?::[0-9A-Fa-f]{1,4}){1,6}"
    r"|(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}|::[0-9A-Fa-f]{1,4})(?:%\w+)?(?![\w:])"
)
_INTERNAL_HOST = re.compile(
    r"(?i)(?<![\w.@/-])(?:[\w-]+\.)+(?:lan|internal|intern|intranet|corp|localdomain|(?<=\w\.)[\w-]+\.local)"
    r"(?::\d+)?(?![\w./-])"
)
"""Matches `gpu.corp` and `gpu.lab.local`, but not `threading.local`, which is Python code."""


def is_public_host(host: str) -> bool:
    """Return whether a host name is one of the public internet, which is not private."""
    return _PUBLIC_HOST.fullmatch(host) is not None


_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (_ENCODED, PATH), (_VARIABLE, PATH), (_HOST_PATH, PATH), (_SHARE, PATH), (_DRIVE, PATH), (_USER, ADDRESS),
    (_IPV6, ADDRESS), (_IPV4, ADDRESS), (_ABSOLUTE, PATH), (_HOME, PATH), (_INTERNAL_HOST, ADDRESS),
)  # fmt: skip
"""The patterns of private locations. They are applied after the pattern of URLs, from the first to the last."""


def redact_locations(text: str, count: Callable[[str], None]) -> str:
    """Return a text with each private location replaced by `???`; call `count` with "address" or "path" for each."""
    public_urls: list[str] = []

    def redact_url(match: re.Match[str]) -> str:
        if _is_private_url(match):
            count(ADDRESS)
            return REMOVED
        # Hide the URL behind a number, because the other patterns could match a part of it.
        public_urls.append(match[0])
        return f"\0{len(public_urls) - 1}\0"

    text = _URL.sub(redact_url, text.replace("\0", ""))
    for pattern, category in _PATTERNS:

        def redact(match: re.Match[str], category: str = category) -> str:
            if _is_public(match):
                return match[0]
            count(category)
            return REMOVED

        text = pattern.sub(redact, text)
    return re.sub(r"\0(\d+)\0", lambda match: public_urls[int(match[1])], text)


def _is_private_url(match: re.Match[str]) -> bool:
    if _STORE.match(match[0]) or _ENCODED_HOME.search(match[0]) or "@" in match["host"]:
        return True
    return _NETWORK_SCHEME.match(match[0]) is not None and not is_public_host(match["host"])


def _is_public(match: re.Match[str]) -> bool:
    """Return whether a match is not private: a path on a public host, a version after `@`, or a public git remote."""
    if match.re is _HOST_PATH:
        return is_public_host(match["host"])
    if match.re is _USER:
        is_git = match["user"] == "git" and is_public_host(match["host"])
        return is_git or _VERSION.fullmatch(match["host"]) is not None
    return False
