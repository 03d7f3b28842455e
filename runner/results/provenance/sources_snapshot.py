"""What is known of a run when it begins, and lost afterwards: the spec as written, where its parts came from, and the
versions of the packages that it is played with.

Nothing of it is part of what a run is: two runs are the same whoever wrote their specs, and in whichever files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from runner.base.storage.atomic_files import atomic_write
from runner.documents.layered_data import FileRead
from runner.documents.releases.manifest import FileSource
from runner.documents.releases.paths import MAX_SEGMENT, wrong_path
from runner.results.folder import RunFolder
from runner.results.provenance.file_pins import PinnedFiles, builtin_name, of_hub, sources
from runner.results.provenance.packages import environment
from runner.spec.datasets.loader import HUB
from runner.spec.loader import Spec
from runner.spec.source_files import SpecSources
from runner.version import __version__

WRITTEN = "written"
"""In `inputs/` of a run and in its release: the spec as written."""
OVERRIDES, INDEX = "overrides.txt", "files.json"
ENVIRONMENT = "environment.lock"

MAX_WRITTEN = 16 << 20
"""Bytes of all files of a spec, each at most 256 KiB: more are named, and not kept."""


def write_beginning(spec: Spec, folder: RunFolder) -> None:
    """Save what is known when a run begins; one that goes on keeps what it began with.

    Raises:
        RunError: it cannot be written.
    """
    place = folder.make("inputs", WRITTEN)
    for name, content in written_files(spec.origin.written).items():
        atomic_write(place / name, content)
    atomic_write(folder.path / "inputs" / ENVIRONMENT, environment())


def measured_sources(spec: Spec) -> dict[str, dict[str, Any]] | None:
    """Where each part of a spec came from, as a manifest has it; None of a spec that was not loaded from files."""
    found = {name: asdict(one) for name, one in sources_of(spec).items()}
    return found or None


def sources_of(spec: Spec) -> dict[str, FileSource]:
    """Where each part of a spec can be got: spec, protocol, prompts, dataset. A mapping given in Python came from none.

    Git is asked; see `runner.results.provenance.file_pins`.
    """
    found = sources(parts_of(spec))
    settings = spec.experiment.dataset
    if spec.origin.named.prompts is not None and settings.path.startswith(HUB):
        found["dataset"] = of_hub(settings.path, settings.revision)
    return found


def parts_of(spec: Spec) -> dict[str, PinnedFiles]:
    """The files of each part of a spec; a dataset on the Hub has none, and what is a release is pinned by that."""
    named = spec.origin.named
    files = [file.path for file in spec.origin.written.files if not _is_of_release(file.path, spec)]
    parts = {} if spec.path is None or not files else {"spec": PinnedFiles(files[0], _once(files))}
    if named.protocol and "protocol" not in spec.components:
        parts["protocol"] = PinnedFiles(named.protocol[0], _once(named.protocol))
    if named.prompts is not None and "prompts" not in spec.components:
        parts["prompts"] = PinnedFiles(named.prompts, named.templates)
    if named.dataset is not None and "dataset" not in spec.components:
        parts["dataset"] = PinnedFiles(named.dataset, (named.dataset,))
    return parts


def _is_of_release(path: Path, spec: Spec) -> bool:
    """Whether a file is an installed release's."""
    folders = (use.folder.resolve() for use in spec.components.values())
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def _once(files: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(files))


def written_files(written: SpecSources) -> dict[str, bytes]:
    """The files of a spec by the names that they are kept under, and what tells which is which.

    Those that come with nip-run are named alone: its version pins them.
    """
    own = {file.path.resolve(): file for file in reversed(written.files) if builtin_name(file.path) is None}
    own = {path: own[path] for path in dict.fromkeys(file.path.resolve() for file in written.files) if path in own}
    names = _names([path.name for path in own])
    by_path = dict(zip(own, names, strict=True))
    kept: dict[str, bytes] = {}
    left = MAX_WRITTEN
    for path, file in own.items():
        left -= len(file.content)
        if left >= 0:
            kept[by_path[path]] = file.content
    index = {
        "nip-run": __version__,
        "files": [
            {"file": by_path[path], "kept": by_path[path] in kept, "extends": _bases(file, by_path)}
            for path, file in own.items()
        ],
    }
    lines = "".join(f"{override}\n" for override in map(_in_one_line, written.overrides))
    return {**kept, OVERRIDES: lines.encode(), INDEX: orjson.dumps(index, option=orjson.OPT_INDENT_2)}


def _bases(file: FileRead, names: Mapping[Path, str]) -> list[dict[str, str]]:
    """What a file extends: as it says it, and the file kept here, or the one that comes with nip-run."""
    return [
        {"name": base, **({"file": names[found]} if (found := path.resolve()) in names else _builtin(path))}
        for base, path in file.bases.items()
    ]


def _builtin(path: Path) -> dict[str, str]:
    name = builtin_name(path)
    return {} if name is None else {"builtin": name}


def _names(names: Iterable[str]) -> list[str]:
    """A name for each file, as a release may have it: its own as far as it can be, and no two alike in any case."""
    taken: set[str] = {OVERRIDES, INDEX}
    found = []
    for name in names:
        found.append(_free(_as_may_be(name), taken))
        taken.add(found[-1].lower())
    return found


def _as_may_be(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-MAX_SEGMENT:]
    plain = plain if re.match(r"[A-Za-z0-9_]", plain) else f"_{plain[1:]}"
    plain = re.sub(r"\.+\Z", lambda found: "_" * len(found[0]), plain)
    return plain if wrong_path(f"{WRITTEN}/{plain}") is None else f"_{plain}"[:MAX_SEGMENT]


def _free(name: str, taken: Collection[str]) -> str:
    stem, dot, suffix = name.rpartition(".")
    stem, suffix = (stem, dot + suffix) if stem else (name, "")
    number = 1
    while name.lower() in taken:
        number += 1
        name = f"{stem[: MAX_SEGMENT - len(suffix) - 6]}-{number}{suffix}"
    return name


def _in_one_line(override: str) -> str:
    """An override as a line: one that has line ends is a text of YAML, in quotes, or nothing that can be read again."""
    return override.replace("\r", "\\r").replace("\n", "\\n")
