"""Find the versions of nip-run and of all packages that it needs."""

from __future__ import annotations

import platform
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from runner.version import __version__

PACKAGE = "nip-run"
_RUNTIME_EXTRAS = ("hf",)
"""The extras of nip-run whose packages a run may use, unlike those for tests and releases."""

_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?(?P<rest>.*)", re.DOTALL
)
_EXTRA_MARKER = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@cache
def environment_lock() -> str:
    """Return Python's version as a comment, and a line `NAME==VERSION` for each package, sorted by name.

    Packages that were installed from a folder are included.
    """
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(installed_versions().items()))
    return f"# Python {platform.python_version()}\n{lines}"


def installed_versions() -> dict[str, str]:
    """Return the version of nip-run and of each installed package that it needs."""
    versions_by_name = {PACKAGE: __version__}
    first: tuple[str, tuple[str, ...]] = (PACKAGE, _RUNTIME_EXTRAS)
    queue, visited = deque([first]), {first}
    while queue:
        name, extras = queue.popleft()
        headers = _read_metadata(name)
        versions = [value for key, value in headers if key == "version"]
        if name != PACKAGE and versions and _VERSION.fullmatch(versions[0]):
            versions_by_name[name] = versions[0]
        for requirement in _requirements([value for key, value in headers if key == "requires-dist"], extras):
            if requirement not in visited:
                visited.add(requirement)
                queue.append(requirement)
    return versions_by_name


@cache
def _read_metadata(name: str) -> list[tuple[str, str]]:
    """Return the metadata headers of a package; empty if it is not installed.

    The headers are parsed here, since `importlib` also parses the README below them, which takes 0.1 s in total.
    """
    try:
        package = distribution(name)
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    except (PackageNotFoundError, OSError, ValueError):
        return []
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines() if line[:1].isalpha())
    return [(key.lower(), value.strip()) for key, _, value in lines]


def _requirements(requirements: Iterable[str], extras: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and the extras of each package that a package with `extras` requires, on any system."""
    for line in requirements:
        requirement = _REQUIREMENT.fullmatch(line)
        if requirement is None:
            continue
        own_extras = _EXTRA_MARKER.findall(requirement["rest"].partition(";")[2])
        if own_extras and set(map(_normalize, own_extras)).isdisjoint(map(_normalize, extras)):
            continue
        required_extras = (extra.strip() for extra in (requirement["extras"] or "").split(","))
        yield _normalize(requirement["name"]), tuple(sorted(filter(None, required_extras)))


def _normalize(name: str) -> str:
    """Return the normalized name of a package or of an extra."""
    return re.sub(r"[-_.]+", "-", name).lower()
