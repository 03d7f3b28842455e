"""What in the words of a machine looks like a place: addresses, hosts, users at hosts, and paths.

One rule, read more or less strictly. Of the words of a machine (errors, comments) it rather takes out too much; classes
of exceptions and the names of files say nothing of a machine, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum

GONE = "???"

_PUBLIC = re.compile(
    r"(?:[\w-]+\.)*(?:openai\.com|pydantic\.dev|vllm\.ai|huggingface\.co|json-schema\.org)", re.IGNORECASE
)
"""Whose addresses stand in errors everywhere."""
_REST = r"[^\s'\"<>|;,()`:]*"
_HOMES = r"(?:/(?:home|homes|Users|root|mnt|Volumes)/|\\(?:[Uu]sers|home)\\)"
"""Folders whose names alone say that a machine's path goes through them, wherever in a word they stand."""
_HOME = re.compile(rf"{_HOMES}{_REST}|(?<!\w)[A-Za-z]:(?:[Uu]sers[\\/]|[\w.-]+\\){_REST}")
_SLASH = r"%(?:25)?(?:2[fF]|5[cC])"
_ENCODED_HOME = re.compile(rf"{_SLASH}(?:home|homes|[Uu]sers|root|mnt|Volumes){_SLASH}[\w.@+~%-]*")
_ENCODED = re.compile(
    rf"(?<![\w%])(?:[A-Za-z]%3[aA])?(?:{_SLASH}[\w.@+~-]+){{2,}}(?:{_SLASH})?|{_ENCODED_HOME.pattern}"
)
_VARIABLE = re.compile(
    rf"(?:\$(?:env:)?(?:\{{[A-Z_][A-Z0-9_]*\}}|[A-Z_][A-Z0-9_]*)|%[A-Za-z_][A-Za-z0-9_()]*%)[\\/]{_REST}"
)
_MOUNT = re.compile(rf"(?<![\w:/.])//(?P<at>[\w.\x24-]+)/{_REST}")
_STORE = re.compile(
    r"(?i)(?:unix|ipc|s3[an]?|gs|gcs|az|azure|abfss?|wasbs?|hdfs|dbfs|r2|oci|swift|minio|rsync|sftp|scp)://"
)
"""Places that are one's own, whatever their names."""
_FILES = (
    r"(?:py|pyc|json|jsonl|ya?ml|toml|txt|csv|log|md|so|c|cc|cpp|cu|h|hpp|js|ts|rs|go|parquet|gguf|bin|pt|pth|lock|"
    r"safetensors|jinja|html|sock)"
)
_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z][a-z]\w*(?:Error|Exception|Warning|Timeout|Interrupt)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:///?(?P<at>[^\s/'\"<>()\[\]]*(?:\[[0-9A-Fa-f:.]+\])?)[^\s'\"<>)\]]*")
_WEB = re.compile(
    r"(?i)(?:https?|wss?|tcp|udp|grpcs?|rpc|rediss?|file|ftp|ssh|nfs|smb|zmq|amqps?|postgres(?:ql)?|mysql)://"
)
_IS_PUBLIC = re.compile(
    r"(?i)(?:[\w-]+\.)+(?!(?:local|lan|internal|intern|intranet|corp|home|localdomain|private)\Z)[a-z][a-z-]+"
)
"""A name that anybody can ask for; one with a port is a server's."""
_SITE = re.compile(r"(?:(?:www|docs|github|gitlab)\.)?[A-Za-z-]+\.(?:com|org|net|io|ai|edu)")
_USER = re.compile(r"(?<![\w/.@-])(?P<user>[A-Za-z_][\w.-]*)@(?P<at>[A-Za-z0-9][\w-]*(?:\.[\w-]+)*)(?::(?P<rest>\S+))?")
_NO_USER = re.compile(r"(?i)v?\d[\w.]*|i\d+|latest|main|master|stable")
"""What stands behind `@` in names of versions, of iterations and of branches."""
_SHARE = re.compile(r"\\\\[\w.\x24-]+(?:\\[^\s\\'\"<>|]*)*")
_DRIVE = re.compile(r"(?<![\w])[A-Za-z]:[\\/][^\s'\"<>|;,]*")
_PATH = re.compile(
    r"(?<![\w.~/?%<-])(?:file:)?(?:~[\w.-]*(?:/[^\s'\"<>|;,():`]*)?|\.{1,2}(?=/)|(?=/))(?:/[\w.@+~%-]+)*/?(?<![?])"
)
_FOUR = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2})?(?![\w.]*\d)(?:(?::|', ?)\d{1,5})?")
_SIX = re.compile(
    r"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]+(?:%\w+)?\](?::\d+)?"
    r"|(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){1,7}(?::[0-9A-Fa-f]{1,4}){1,6}"
    r"|(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}|::[0-9A-Fa-f]{1,4})(?:%\w+)?(?![\w:])"
)
_DOMAIN = re.compile(
    r"(?<![\w.@/-])(?:[A-Za-z0-9_](?:[\w-]*\w)?\.)+(?P<top>[A-Za-z][A-Za-z0-9-]{1,62})\.?(?::\d+)?(?![\w-])"
)
_TOP = re.compile(
    r"(?i)com|net|org|edu|gov|mil|int|local|lan|internal|intern|intranet|corp|home|localdomain|private|cluster|svc|"
    r"cloud|ac|uk|de|fr|ch|at|nl|be|it|es|se|no|dk|fi|pl|cz|eu|us|ca|au|nz|jp|kr|cn|tw|sg|in|br|mx|ru|il"
)
_INTERNAL = re.compile(
    r"(?i)(?<![\w.@/-])(?:[\w-]+\.)+(?:lan|internal|intern|intranet|corp|localdomain|(?<=\w\.)[\w-]+\.local)"
    r"(?::\d+)?(?![\w./-])"
)
"""Hosts by endings that no name of anything else has."""
_PORT = re.compile(r"(?<![\w./-])(?P<host>[A-Za-z][\w.-]*):\d{2,5}(?![\w.])")
_NO_HOST = re.compile(
    rf"(?i)(?:line|code|status|errno|rank|row|col|column|char|position|error|cuda|gpu|step|[\w.-]+\.{_FILES})"
)
_NAMED = re.compile(
    r"(?i)\b(?P<before>(?:host|hostname|node|nodename|server|machine|peer|on|from|at|to|via|by|ssh)(?:\s*[=:]\s*|\s+)[\"'`(]?)"
    r"(?P<host>(?=[A-Za-z][\w-]*[\d-])[A-Za-z][\w-]*[A-Za-z0-9])(?![\w?.])"
)
_PORT_OF = re.compile(r"(?i)\b(?P<before>ports?(?:\s*[=:]\s*|\s+))\d{2,5}\b")


class Strictness(IntEnum):
    """How strictly a text is read."""

    NAMES = 0
    """A value of a spec or a manifest: public addresses, relative paths and names with dots are meant to be there."""
    PROSE = 1
    """A description: also hosts with a port, and those that are more than `example.org`."""
    FREE = 2
    """A value under a key that is anybody's: also hosts that are the whole of it, or end as hosts do."""
    WORDS = 3
    """What a machine says: also relative paths, and what is a host by the word before it, as in `host gpu-7`."""


def is_public(host: str) -> bool:
    """Whether a host's name is one that anybody can ask for."""
    return _IS_PUBLIC.fullmatch(host) is not None


def without_places(text: str, took: Callable[[str], None], reading: Strictness = Strictness.WORDS) -> str:
    """The text with `???` for every place in it; `took` is told "address" or "path" for each."""
    return _Reader(text, took, reading).cleaned()


class _Reader:
    """One text that is read: for each thing that looks like a place, what stands there instead."""

    def __init__(self, text: str, took: Callable[[str], None], reading: Strictness) -> None:
        self._text, self._took, self._reading = text, took, reading
        self._kept: list[str] = []

    def cleaned(self) -> str:
        text = _URL.sub(self._aside, self._text.replace("\0", ""))
        for least, pattern, by in (
            (Strictness.NAMES, _ENCODED, self._path), (Strictness.NAMES, _VARIABLE, self._path),
            (Strictness.NAMES, _MOUNT, self._mount),
            (Strictness.NAMES, _SHARE, self._path), (Strictness.NAMES, _DRIVE, self._path),
            (Strictness.NAMES, _USER, self._user), (Strictness.NAMES, _SIX, self._address),
            (Strictness.NAMES, _FOUR, self._address), (Strictness.NAMES, _PATH, self._shown),
            (Strictness.NAMES, _HOME, self._path), (Strictness.NAMES, _INTERNAL, self._address),
            (Strictness.PROSE, _PORT, self._port), (Strictness.PROSE, _DOMAIN, self._domain),
            (Strictness.WORDS, _PORT_OF, self._named), (Strictness.WORDS, _NAMED, self._named),
        ):  # fmt: skip
            if self._reading >= least:
                text = pattern.sub(by, text)
        return re.sub(r"\0(\d+)\0", lambda found: self._kept[int(found[1])], text)

    def _aside(self, found: re.Match[str]) -> str:
        """A public address is put aside, so that no other rule reads it."""
        by = self._url(found)
        if by == GONE:
            return by
        self._kept.append(by)
        return f"\0{len(self._kept) - 1}\0"

    def _address(self, _: object) -> str:
        self._took("address")
        return GONE

    def _url(self, found: re.Match[str]) -> str:
        host, has_login = found["at"].rpartition("@")[2], "@" in found["at"]
        is_strict = self._reading == Strictness.WORDS
        if _STORE.match(found[0]) or _ENCODED_HOME.search(found[0]):
            return self._address(found)
        if not is_strict and not has_login and (_WEB.match(found[0]) is None or _IS_PUBLIC.fullmatch(host)):
            return found[0]
        return found[0] if _PUBLIC.fullmatch(host) and not has_login else self._address(found)

    def _user(self, found: re.Match[str]) -> str:
        is_version = _NO_USER.fullmatch(found["at"]) and self._reading == Strictness.NAMES
        is_everybody = (
            found["user"] == "git" and _IS_PUBLIC.fullmatch(found["at"]) and self._reading != Strictness.WORDS
        )
        return found[0] if is_version or is_everybody else self._address(found)

    def _mount(self, found: re.Match[str]) -> str:
        is_public = _IS_PUBLIC.fullmatch(found["at"]) and self._reading != Strictness.WORDS
        return found[0] if is_public else self._path(found)

    def _domain(self, found: re.Match[str]) -> str:
        whole = found[0].rstrip(".")
        is_file = re.fullmatch(rf"[\w-]+\.{_FILES}(?::\d+)?", whole)
        spared = is_file or _CLASS.fullmatch(whole) or _PUBLIC.fullmatch(whole) or whole in ("e.g", "i.e")
        if self._reading < Strictness.WORDS and found[0] != self._text and not _TOP.fullmatch(found["top"]):
            spared = True  # as `message.role` in a template
        if self._reading == Strictness.PROSE and _SITE.fullmatch(whole):
            spared = True
        return found[0] if spared else self._address(found)

    def _port(self, found: re.Match[str]) -> str:
        return found[0] if _NO_HOST.fullmatch(found["host"]) else self._address(found)

    def _shown(self, found: re.Match[str]) -> str:
        """A path that a value may not have: one of a spec's own is relative, and a word may begin with a stroke."""
        relative = found[0].startswith(".")
        short = found[0].count("/") < (1 if found[0].startswith("~") else 2)
        is_strict = self._reading == Strictness.WORDS
        return self._path(found) if is_strict or not (relative or short) else found[0]

    def _path(self, found: re.Match[str]) -> str:
        if found[0] in ("/", ".", "..", "~", ""):
            return found[0]
        self._took("path")
        last = re.split(r"[\\/]", found[0].rstrip("\\/"))[-1]
        return last if re.fullmatch(rf"[\w-]+\.{_FILES}", last) else GONE

    def _named(self, found: re.Match[str]) -> str:
        self._took("address")
        return found["before"] + GONE
