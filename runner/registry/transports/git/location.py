"""What is written behind `git:` into a repository's address and a revision; what git would run or leak is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from runner.base.errors import UsageError
from runner.base.storage.safe_files import read_bounded
from runner.registry.transports.local_path import local_path

_FORMS = (
    "a path, file:///PATH, https://HOST/PATH, ssh://[USER@]HOST/PATH or USER@HOST:PATH, with @BRANCH, @TAG or @COMMIT "
    "behind it where another revision is meant than the repository's own"
)
_PLAIN = ("http", "git")
"""Schemes by which anybody on the way reads and changes what is sent: for this machine alone."""
_LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]")

_HELPER = re.compile(r"[A-Za-z0-9.+_-]*::")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?:(?P<user>[^/]*)@)?(?P<host>[^/@:\[\]]*|\[[0-9A-Fa-f:.]*\])"
    r"(?P<port>:[^/]*)?(?P<path>/.*)?"
)
_SCP = re.compile(r"(?:(?P<user>[^/:@]*)@)?(?P<host>[^/:@]+):(?P<path>.*)")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")
_PORT = re.compile(r":[0-9]{1,5}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+-]*(?:[./][A-Za-z0-9_+-]+)*")
"""Of a branch or a tag: narrower than git's rule, so that no two can be confused and none is an option."""

HEAD = "HEAD"


@dataclass(frozen=True)
class GitLocation:
    """A repository, and the revision of it that is meant."""

    url: str
    """As git is given it: a whole path, or an address without any secret."""
    revision: str | None
    """None: whatever branch the repository itself says."""
    protocols: tuple[str, ...]
    """What git may talk while it goes there."""

    @property
    def local(self) -> bool:
        """Whether git reads and writes the repository itself, with the configuration and hooks in it."""
        return self.protocols == ("file",)

    @property
    def commit(self) -> str | None:
        """The revision, where it is a commit: pinned, and nothing can be added to it."""
        return self.revision if self.revision and _COMMIT.fullmatch(self.revision) else None

    @property
    def own_branch(self) -> str | None:
        """What an empty repository of this machine calls its branch; of others git does not say it."""
        if not self.local:
            return None
        for folder in (Path(self.url), Path(self.url) / ".git"):
            with suppress(OSError, UnicodeDecodeError):
                name = read_bounded(folder / HEAD, 1_000).decode().strip().removeprefix("ref: refs/heads/")
                return name if is_branch_name(name) and not _COMMIT.fullmatch(name) else None
        return None

    def __str__(self) -> str:
        named = self.revision if self.revision != self.commit else None
        if named is None and (_split(self.url)[1] if self.local else parse_place(self.url).revision) is not None:
            named = HEAD  # or its path would be read as one with a revision
        return f"git:{self.url}" + ("" if named is None else f"@{named}")


def parse_place(text: str) -> GitLocation:
    """A place as somebody writes it, without `git:`.

    Raises:
        UsageError: git would run a program for it, or it holds a secret, or cannot be an address.
    """
    if not text or _CONTROL.search(text):
        raise UsageError(f"git: needs a repository: {_FORMS}")
    if text.startswith("-"):
        raise UsageError(f"git:{text}: an address that begins with '-' is an option to git; write ./{text} for a path")
    if _HELPER.match(text):
        raise UsageError(f"git:{text.partition('::')[0]}::...: git would run a program for it; write {_FORMS}")
    found = _URL.fullmatch(text)
    if found is not None:
        return _of_url(found)
    if "://" in text:
        raise _no_address(text)
    scp = _SCP.fullmatch(text)
    if scp is not None and "/" not in text.partition(":")[0]:
        return _of_scp(scp)
    path, revision = (text, None) if _whole(text).exists() else _split(text)
    return GitLocation(str(_whole(path)), _checked_revision(revision), ("file",))


def _whole(path: str) -> Path:
    try:
        return local_path(path)
    except UsageError as error:
        raise UsageError(f"git:{error}") from error


def _no_address(text: str) -> UsageError:
    # Not all of it is said: what cannot be read as an address may hold a password anywhere.
    return UsageError(f"git:{text.partition('://')[0]}://... is no address that is taken; write {_FORMS}")


def _of_url(found: re.Match[str]) -> GitLocation:
    scheme, host, port = found["scheme"].lower(), found["host"], found["port"] or ""
    path, revision = _split(found["path"] or "")
    user = found["user"]
    if scheme not in ("https", "ssh", "file", *_PLAIN) or (port and not _PORT.fullmatch(port)):
        raise _no_address(f"{scheme}://")
    where = f"git:{scheme}://{host}{port}{path}"
    if user is not None and (scheme != "ssh" or ":" in user):
        raise UsageError(
            f"{where}: a name or password in an address can be read by every process, and ends up in logs; leave it "
            "out, and give it to git by a credential helper, or use ssh"
        )
    if "?" in path or "#" in path:
        raise UsageError(f"git:{scheme}://{host}: an address with '?' or '#' is none of a repository")
    if scheme == "file" and not (host or port) and path:
        return GitLocation(str(_whole(unquote(path))), _checked_revision(revision), ("file",))
    if scheme == "file" or not _HOST.fullmatch(host) or not path.strip("/") or (user and not _WORD.fullmatch(user)):
        raise _no_address(f"{scheme}://")
    if scheme in _PLAIN and not _LOOPBACK.fullmatch(host):
        raise UsageError(f"{where}: whoever is on the way reads and changes what {scheme}: sends; use https: or ssh:")
    _check_path(path, where)
    url = f"{scheme}://{'' if user is None else user + '@'}{host}{port}{path}"
    more = (scheme,) if scheme in _PLAIN else ()
    # The user's own configuration of git may say ssh for https, or the other way round.
    return GitLocation(url, _checked_revision(revision), ("https", "ssh", *more))


def _of_scp(found: re.Match[str]) -> GitLocation:
    user, host = found["user"], found["host"]
    path, revision = _split(found["path"])
    url = f"{'' if user is None else user + '@'}{host}:{path}"
    if not _HOST.fullmatch(host) or (user is not None and not _WORD.fullmatch(user)) or not path.strip("/"):
        raise UsageError(f"git:{url} is no address that is taken; write {_FORMS}")
    _check_path(path, f"git:{url}")
    return GitLocation(url, _checked_revision(revision), ("https", "ssh"))


def _check_path(path: str, where: str) -> None:
    if any(part.startswith("-") for part in path.split("/")[:2]) or any(sign.isspace() for sign in path):
        raise UsageError(f"{where}: a path that begins with '-', or has white space, is not taken")


def _split(text: str) -> tuple[str, str | None]:
    """A path and what stands behind its last '@'; one right behind a '/' begins a name, as in `/@scope/board`."""
    path, sign, revision = text.rpartition("@")
    return (path, revision) if sign and path and not path.endswith("/") else (text, None)


def _checked_revision(revision: str | None) -> str | None:
    if revision is None or revision == HEAD:
        return None
    if not is_branch_name(revision):
        raise UsageError(f"@{revision} cannot be a branch, a tag or a commit")
    return revision


def is_branch_name(name: str) -> bool:
    """Whether a branch or a tag may be called so."""
    locks = name.endswith(".lock") or ".lock/" in name
    return _NAME.fullmatch(name) is not None and not locks and len(name) <= 200
