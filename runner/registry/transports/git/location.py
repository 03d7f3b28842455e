"""Parse the address of a git repository with an optional revision: the text after `git:` in a registry's address.

`GitTransport` uses this. It refuses addresses that contain a password or make git run a program.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from runner.base.errors import UsageError
from runner.base.hashing import COMMIT
from runner.base.storage.safe_files import read_bounded
from runner.registry.transports.folder import local_path

_FORMS = (
    "a path, file:///PATH, https://HOST/PATH, ssh://[USER@]HOST/PATH or USER@HOST:PATH, followed by @BRANCH, @TAG or "
    "@COMMIT for a revision other than the default branch"
)
_UNENCRYPTED = ("http", "git")
"""Schemes without encryption. They are accepted only for this machine."""
_LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]")

_REMOTE_HELPER = re.compile(r"[A-Za-z0-9.+_-]*::")
"""Matches the start of an address such as `ext::COMMAND`. Git would run a program to access it."""
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?:(?P<user>[^/]*)@)?(?P<host>[^/@:\[\]]*|\[[0-9A-Fa-f:.]*\])"
    r"(?P<port>:[^/]*)?(?P<path>/.*)?"
)
"""Matches a URL. The group `port` includes the colon."""
_SSH_SHORTHAND = re.compile(r"(?P<scheme>)(?:(?P<user>[^/:@]*)@)?(?P<host>[^/:@]+)(?P<port>):(?P<path>.*)")
"""Matches USER@HOST:PATH, with the same groups as `_URL`."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"(?!.*\.lock(?:/|\Z))(?=.{1,200}\Z)[A-Za-z0-9_][A-Za-z0-9_+-]*(?:[./][A-Za-z0-9_+-]+)*")
"""Matches names of branches and tags. It is stricter than git: it excludes names that git could read as options, and
names that differ only in look-alike characters."""

HEAD = "HEAD"


@dataclass(frozen=True)
class GitLocation:
    """The address of a repository, with a revision."""

    url: str
    """The address without the revision, as git gets it: an absolute path, or a URL without any secret."""
    revision: str | None
    """The branch, tag or commit; None for the default branch of the repository."""
    protocols: tuple[str, ...]
    """The protocols that git may use."""

    @property
    def is_local(self) -> bool:
        """Whether the repository is on this machine. Git would then use the repository's configuration and hooks."""
        return self.protocols == ("file",)

    @property
    def commit(self) -> str | None:
        """The revision if it is a commit; None for a branch, a tag or the default branch."""
        return self.revision if self.revision and COMMIT.fullmatch(self.revision) else None

    @property
    def unborn_branch(self) -> str | None:
        """The default branch of a local repository without commits.

        None for a remote repository, because git does not report the default branch of an empty one.
        """
        for folder in (Path(self.url), Path(self.url) / ".git") if self.is_local else ():
            with suppress(OSError, UnicodeDecodeError):
                name = read_bounded(folder / HEAD, 1_000).decode().strip().removeprefix("ref: refs/heads/")
                return name if is_revision_name(name) and not COMMIT.fullmatch(name) else None
        return None

    def __str__(self) -> str:
        revision = self.revision if self.revision != self.commit else None
        misread_revision = _split_revision(self.url)[1] if self.is_local else parse_location(self.url).revision
        if revision is None and misread_revision is not None:
            revision = HEAD  # the path has an "@", and without "@HEAD" its end would be read as a revision
        return f"git:{self.url}" + ("" if revision is None else f"@{revision}")


def parse_location(text: str) -> GitLocation:
    """Parse the part of an address after `git:`.

    Raises:
        UsageError: it is not an address, has a secret, or would make git run a program.
    """
    if not text or _CONTROL.search(text):
        raise UsageError(f"git: needs a repository: {_FORMS}")
    if text.startswith("-"):
        raise UsageError(f"git:{text}: git would read an address that begins with '-' as an option. Write git:./{text}")
    if _REMOTE_HELPER.match(text):
        raise UsageError(f"git:{text.partition('::')[0]}::...: git would run a program for this address. Use {_FORMS}.")
    match = _URL.fullmatch(text)
    if match is None and "://" in text:
        raise _invalid_address(text)
    if match is None and "/" not in text.partition(":")[0]:
        match = _SSH_SHORTHAND.fullmatch(text)
    if match is not None:
        return _parse_url(match)
    path, revision = (text, None) if _absolute_path(text).exists() else _split_revision(text)
    return GitLocation(str(_absolute_path(path)), _normalize_revision(revision), ("file",))


def _parse_url(match: re.Match[str]) -> GitLocation:
    """Return the location for a match of `_URL` or `_SSH_SHORTHAND`."""
    scheme, user, host, port = match["scheme"].lower(), match["user"], match["host"], match["port"] or ""
    start = f"{scheme}://" if scheme else ""
    path, revision = _split_revision(match["path"] or "")
    safe_address = f"git:{start}{host}{port}{'' if scheme else ':'}{path}"
    if scheme not in ("", "https", "ssh", "file", *_UNENCRYPTED) or not re.fullmatch(r"(?::[0-9]{1,5})?", port):
        raise _invalid_address(start)
    if user is not None and (scheme not in ("", "ssh") or ":" in user):
        raise UsageError(
            f"{safe_address}: other processes and logs could show the user or password in this address. Remove them, "
            "and use a credential helper of git, or ssh."
        )
    if scheme and ("?" in path or "#" in path):
        raise UsageError(f"git:{start}{host}: the address of a repository cannot have '?' or '#'; remove the query")
    if scheme == "file" and not (host or port) and path:
        return GitLocation(str(_absolute_path(unquote(path))), _normalize_revision(revision), ("file",))
    if scheme == "file" or not _HOST.fullmatch(host) or not path.strip("/") or (user and not _USER.fullmatch(user)):
        raise _invalid_address(start)
    if scheme in _UNENCRYPTED and not _LOOPBACK.fullmatch(host):
        raise UsageError(
            f"{safe_address}: {scheme}: is not encrypted, so others could read and change it. Use https: or ssh:"
        )
    if any(part.startswith("-") for part in path.split("/")[:2]) or any(char.isspace() for char in path):
        raise UsageError(
            f"{safe_address}: the path of a repository cannot begin with '-' or have white space; rename the repository"
        )
    url = f"{start}{'' if user is None else user + '@'}{host}{port}{'' if scheme else ':'}{path}"
    # https and ssh are both allowed, because the user's git configuration (`url.*.insteadOf`) may replace one by the
    # other.
    return GitLocation(
        url, _normalize_revision(revision), ("https", "ssh", *((scheme,) if scheme in _UNENCRYPTED else ()))
    )


def _absolute_path(path: str) -> Path:
    try:
        return local_path(path)
    except UsageError as error:
        raise UsageError(f"git:{error}") from error


def _invalid_address(text: str) -> UsageError:
    # Show only the scheme: an address that cannot be parsed may contain a password anywhere.
    start = text.partition("://")[0] + "://" if "://" in text else ""
    return UsageError(f"git:{start}... is not a valid address of a repository. Use {_FORMS}.")


def _split_revision(text: str) -> tuple[str, str | None]:
    """Split a path from the revision after its last '@'. An '@' after a '/' begins a name, as in `/@scope/board`."""
    path, sign, revision = text.rpartition("@")
    return (path, revision) if sign and path and not path.endswith("/") else (text, None)


def _normalize_revision(revision: str | None) -> str | None:
    """Return a valid revision; None for the default branch, which can also be written as HEAD."""
    if revision is None or revision == HEAD:
        return None
    if not is_revision_name(revision):
        raise UsageError(f"@{revision} is not a valid name of a branch, tag or commit; correct the part after @")
    return revision


def is_revision_name(name: str) -> bool:
    """Return whether a name is valid for a branch, tag or commit."""
    return _NAME.fullmatch(name) is not None
