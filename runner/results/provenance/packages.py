"""The packages that this process plays with, each by its version: nip-run, and all of what it needs."""

from __future__ import annotations

import platform
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from runner.version import __version__

OURS = "nip-run"
_EXTRAS = ("hf",)
"""Ours that a run may be played with; what tests and publishes is none of a run's."""

_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?(?P<rest>.*)", re.DOTALL
)
_OF_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@cache
def environment() -> str:
    """The requirements of this process, one a line in the order of their names, with Python's version as a comment.

    A package that was installed from a folder stands by its version, as any other.
    """
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(installed().items()))
    return f"# Python {platform.python_version()}\n{lines}"


def installed() -> dict[str, str]:
    """The version of nip-run and of each package that it needs, as far as they are installed."""
    found = {OURS: __version__}
    first: tuple[str, tuple[str, ...]] = (OURS, _EXTRAS)
    waiting, seen = deque([first]), {first}
    while waiting:
        name, extras = waiting.popleft()
        facts = _facts(name)
        versions = [value for key, value in facts if key == "version"]
        if name != OURS and versions and _VERSION.fullmatch(versions[0]):
            found[name] = versions[0]
        for needed in _needed([value for key, value in facts if key == "requires-dist"], extras):
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return found


@cache
def _facts(name: str) -> list[tuple[str, str]]:
    """What a package says of itself; nothing where it is not installed.

    Read by hand: to parse what stands below it, all its README, takes a tenth of a second for all packages.
    """
    try:
        package = distribution(name)
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    except (PackageNotFoundError, OSError, ValueError):
        return []
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines() if line[:1].isalpha())
    return [(key.lower(), value.strip()) for key, _, value in lines]


def _needed(requirements: Iterable[str], extras: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a package requires, with these extras of it. Of another system's requirements, none is installed."""
    for line in requirements:
        requirement = _REQUIREMENT.fullmatch(line)
        if requirement is None:
            continue
        asked = _OF_EXTRA.findall(requirement["rest"].partition(";")[2])
        if asked and not {_plain(one) for one in asked} & {_plain(one) for one in extras}:
            continue
        named = (one.strip() for one in (requirement["extras"] or "").split(","))
        yield _plain(requirement["name"]), tuple(sorted(filter(None, named)))


def _plain(name: str) -> str:
    """A package's name as all tools write it."""
    return re.sub(r"[-_.]+", "-", name).lower()
