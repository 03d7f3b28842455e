"""What git says when it fails, in words that say what to do, and without what nobody else may read."""

from __future__ import annotations

import re

from runner.base.redaction import redacted

_USER = re.compile(r"(?<=://)[^/\s'\"]*@")
_AUTHORIZATION = re.compile(r"(?i)(authorization\s*:\s*)\S.*")


def without_secrets(text: str) -> str:
    """What git said, without names and passwords in addresses, headers that log in, and keys of this process."""
    return redacted(_AUTHORIZATION.sub(r"\1[secret removed]", _USER.sub("", text)))


def refusals(answer: bytes) -> list[str]:
    """What `push --porcelain` says of branches that were not moved."""
    lines = answer.decode("utf-8", "backslashreplace").splitlines()
    return [without_secrets(line) for line in lines if line.startswith("!")]


_TOLD = re.compile(r"fatal: |error: |!\t|ssh: ")
"""Lines that say why; the others are of what git does, or a server's own words."""
_TOO_LARGE = re.compile(r"File too large|File size limit exceeded")
_WORDS = (
    (
        re.compile(
            r"could not read (Username|Password)|Authentication failed|Permission denied \(|returned error: 40[13]"
        ),
        "it wants to know who you are; give git a credential helper, or your SSH agent a key, and try git ls-remote",
    ),
    (
        re.compile(
            r"does not appear to be a git repository|[Rr]epository .*not found|does not exist|returned error: 404"
        ),
        "no repository is there, or none that you may see",
    ),
    (
        re.compile(r"dubious ownership"),
        "it is another user's; have git trust it: git config --global --add safe.directory",
    ),
    (
        re.compile(r"returned error: 30[1278]"),
        "it has moved, and is not followed; ask for its new address, and give that",
    ),
    (
        re.compile(
            r"fsck error|error: object [0-9a-f]+: |error in object|invalid index-pack|bad (tree|object)|corrupt"
        ),
        "it holds what git takes for damaged, or for an attack",
    ),
    (
        re.compile(r"bad revision|not our ref|no such remote ref|couldn't find remote ref|unable to find [0-9a-f]{40}"),
        "something that it ought to hold is missing in it",
    ),
    (re.compile(r"expected commit type|Needed a single revision"), "what is named so in it is no commit"),
    (
        re.compile(r"[Oo]ut of memory|malloc|mmap failed|unable to create (async|thread)"),
        "it needs more memory than is taken",
    ),
    (
        re.compile(r"(index-pack|unpack-objects|fetch-pack|rev-list)\S* died of signal|died of signal 11"),
        "git itself gave up on what it holds",
    ),
)
"""What git says, and our words for it; the first that is found."""


def in_words(said: str, code: int, most: int | None) -> str:
    """Why a command failed that was to write files of at most so many bytes."""
    if most is not None and _TOO_LARGE.search(said):
        return f"it has more than {most:,} bytes, which is more than is taken"
    for pattern, words in _WORDS:
        if pattern.search(said):
            return words
    lines = [line.strip() for line in said.splitlines() if _TOLD.match(line)]
    return f"git ended with code {code}: {'; '.join(lines[-3:])[:600] or 'it does not say why'}"
