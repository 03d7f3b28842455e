"""Save the facts that are known only when a run starts: the spec as the user wrote it, and the package versions.

These facts, and the sources of the spec's parts, are not part of a run's identity, which depends only on the content of
the spec.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import orjson

from runner.base.storage.atomic_files import atomic_write
from runner.documents.merged_data import ReadFile
from runner.documents.releases.manifest import FileSource
from runner.documents.releases.paths import MAX_SEGMENT, path_problem
from runner.results.folder import RunFolder
from runner.results.provenance.file_pins import PinnedFiles, builtin_name, find_sources, hub_source
from runner.results.provenance.packages import environment_lock
from runner.spec.datasets.loader import HUB
from runner.spec.datasets.transcripts.source import transcript_files
from runner.spec.loader import Spec
from runner.spec.source_files import SpecSources
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
    lines = "".join(f"{override}\n" for override in map(_escape_line_ends, written.overrides))
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


def _escape_line_ends(override: str) -> str:
    """Return an override in one line, with escaped line ends, which only quoted YAML text can have."""
    return override.replace("\r", "\\r").replace("\n", "\\n")
