"""Save the facts that are known only when a run starts: the spec as the user wrote it, and the package versions.

These facts, and the sources of the spec's parts, are not part of a run's identity, which depends only on the content of
the spec.
"""

from __future__ import annotations

import platform
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import orjson

from runner.base.storage.atomic_files import atomic_write
from runner.documents.merged_data import ReadFile
from runner.documents.releases.manifest import FileSource
from runner.documents.releases.paths import MAX_SEGMENT, path_problem
from runner.results.folder import RunFolder
from runner.results.provenance.file_pins import PinnedFiles, builtin_name, find_sources, hub_source
from runner.spec.datasets.loader import HUB
from runner.spec.datasets.transcripts.source import transcript_files
from runner.spec.loader import Spec
from runner.spec.origin import SpecSources
from runner.version import __version__

WRITTEN = "written"
"""The folder in a run's `inputs/` and in its release that has the files of the spec as the user wrote them."""
OVERRIDES, INDEX = "overrides.txt", "files.json"
ENVIRONMENT = "environment.lock"

MAX_WRITTEN = 16 << 20
"""Maximum size of all saved files of a spec in bytes. Further files are listed, but not saved."""


def write_initial_files(spec: Spec, folder: RunFolder) -> None:
    """Save the files of the spec and the package versions when a run starts, but not when it is resumed.

    Raises:
        RunError: a file cannot be written.
    """
    target = folder.make("inputs", WRITTEN)
    for name, content in written_files(spec.origin.sources).items():
        atomic_write(target / name, content)
    atomic_write(folder.path / "inputs" / ENVIRONMENT, environment_lock())


def sources_of(spec: Spec) -> dict[str, FileSource]:
    """Return the place where others can get each part of a spec. A spec that was built in Python has no source itself.

    This runs git; see `runner.results.provenance.file_pins`.
    """
    sources_by_part = find_sources(parts_of(spec))
    settings = spec.experiment.dataset
    if spec.origin.named_files.prompts is not None and settings.path.startswith(HUB):
        sources_by_part["dataset"] = hub_source(settings.path, settings.revision)
    return sources_by_part


def parts_of(spec: Spec) -> dict[str, PinnedFiles]:
    """Return the files of each part of a spec, except datasets on the Hub and components, which releases pin."""
    named_files = spec.origin.named_files
    files = [file.path for file in spec.origin.sources.files if not _is_of_release(file.path, spec)]
    parts = {} if spec.path is None or not files else {"spec": PinnedFiles(files[0], _without_duplicates(files))}
    if named_files.protocol and "protocol" not in spec.components:
        parts["protocol"] = PinnedFiles(named_files.protocol[0], _without_duplicates(named_files.protocol))
    if named_files.prompts is not None and "prompts" not in spec.components:
        parts["prompts"] = PinnedFiles(named_files.prompts, named_files.templates)
    if named_files.dataset is not None and "dataset" not in spec.components:
        parts["dataset"] = PinnedFiles(named_files.dataset, transcript_files(named_files.dataset))
    return parts


def _is_of_release(path: Path, spec: Spec) -> bool:
    """Return whether a file belongs to an installed release."""
    folders = (use.folder.resolve() for use in spec.components.values())
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def _without_duplicates(files: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(files))


def written_files(written: SpecSources) -> dict[str, bytes]:
    """Return the content of each file to save, by its name: the files of the spec, the overrides and an index.

    Built-in files are only named in the index, since the version of nip-run determines their content.
    """
    files: dict[Path, ReadFile] = {}
    for file in written.files:
        if builtin_name(file.path) is None:
            files.setdefault(file.path.resolve(), file)
    names = dict(zip(files, _unique_names([path.name for path in files]), strict=True))
    contents: dict[str, bytes] = {}
    remaining_bytes = MAX_WRITTEN
    for path, file in files.items():
        remaining_bytes -= len(file.content)
        if remaining_bytes >= 0:
            contents[names[path]] = file.content
    index = {
        "nip-run": __version__,
        "files": [
            {"file": names[path], "kept": names[path] in contents, "extends": _describe_bases(file, names)}
            for path, file in files.items()
        ],
    }
    escaped = [override.replace("\r", "\\r").replace("\n", "\\n") for override in written.overrides]
    lines = "".join(f"{override}\n" for override in escaped)
    return {**contents, OVERRIDES: lines.encode(), INDEX: orjson.dumps(index, option=orjson.OPT_INDENT_2)}


def _describe_bases(file: ReadFile, names: Mapping[Path, str]) -> list[dict[str, str]]:
    """Return the files that a file extends: the name in the spec, and the name of the saved or built-in file."""
    rows = []
    for base, path in file.bases.items():
        row = {"name": base, "file": names.get(path.resolve()), "builtin": builtin_name(path)}
        rows.append({key: value for key, value in row.items() if value is not None})
    return rows


def _unique_names(names: Iterable[str]) -> list[str]:
    """Return a name for each file that is valid in releases, similar to the original name, and unique ignoring case."""
    used: set[str] = {OVERRIDES, INDEX}
    unique = []
    for name in names:
        unique.append(_unused_name(_safe_name(name), used))
        used.add(unique[-1].lower())
    return unique


def _safe_name(name: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-MAX_SEGMENT:]
    safe = safe if re.match(r"[A-Za-z0-9_]", safe) else f"_{safe[1:]}"
    safe = re.sub(r"\.+\Z", lambda dots: "_" * len(dots[0]), safe)
    return safe if path_problem(f"{WRITTEN}/{safe}") is None else f"_{safe}"[:MAX_SEGMENT]


def _unused_name(name: str, used: Collection[str]) -> str:
    stem, dot, suffix = name.rpartition(".")
    stem, suffix = (stem, dot + suffix) if stem else (name, "")
    number = 1
    while name.lower() in used:
        number += 1
        name = f"{stem[: MAX_SEGMENT - len(suffix) - 6]}-{number}{suffix}"
    return name


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
