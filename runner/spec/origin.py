"""The files that a spec was loaded from, and the check of what a downloaded spec may name.

Runs and releases store the files with their exact bytes. The author of a downloaded spec is not trusted.

A spec counts as downloaded if any of its files was downloaded (see `runner.documents.fetched_files`). A file that the
user copies out of the downloaded folder is trusted. The key `extends` is checked when the files are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.problems import Problem
from runner.base.storage.fetched_markers import DATA
from runner.documents.dataclass_schema import path_keys
from runner.documents.fetched_files import MARKER, fetched_folder, path_refusal, read_marker
from runner.documents.layer_loading import PathLookup
from runner.documents.merged_data import LayeredData, ReadFile
from runner.documents.overrides import Override
from runner.documents.plain_values import KeyPath, dotted, to_plain_values
from runner.documents.releases.reference import is_reference
from runner.documents.yaml_writer import dump_inline
from runner.game.protocols.loader import find_protocol
from runner.spec.datasets.loader import HUB
from runner.spec.experiment import Experiment

__all__ = ["DATA", "MARKER", "fetched_folder", "path_problems", "read_marker"]

_ITERATION = re.compile(r"@(?:i[0-9]{1,4}|last)\Z")


def _find_dataset(name: str, folder: Path) -> Path | None:
    return None if name.startswith(HUB) else package_data.find_file(name, folder)


def _join_folder(name: str, folder: Path) -> Path:
    return folder / name


def _find_run_folder(name: str, folder: Path) -> Path:
    return folder / _ITERATION.sub("", name)


PATH_LOOKUPS: dict[KeyPath, PathLookup] = {
    ("dataset", "path"): _find_dataset,
    ("protocol", "use"): find_protocol,
    ("prompts",): package_data.find_file,
    ("tournament", "players", "*", "prompts"): package_data.find_file,
    ("cache",): _join_folder,
    ("rejudge", "run"): _join_folder,
    ("models", "*", "run"): _join_folder,
    ("models", "*", "from_run"): _find_run_folder,
    ("training", "rerun_tests", "run"): _find_run_folder,
    ("training", "from"): _find_run_folder,
}
"""The keys that name a file or a run's folder, each with its lookup; `*` stands for any name.

`until.compare` also names a run; it is checked when the spec is played.
"""

assert set(path_keys(Experiment)) <= PATH_LOOKUPS.keys()

_RUN_ID_KEYS = {
    ("rejudge", "run"),
    ("models", "*", "from_run"),
    ("training", "rerun_tests", "run"),
    ("training", "from"),
}
"""Keys that may name a run of the user's results by its id."""


def path_problems(layered: LayeredData, *, saved: bool) -> Iterator[Problem]:
    """Yield a problem for each file or run that a downloaded file must not name.

    With `saved`, the spec is only loaded to read its run, so that `cache` and `execution` do not matter.
    """
    if fetched_folder(layered.folders.values()) is None:
        return
    for key, lookup in PATH_LOOKUPS.items():
        if (saved and key == ("cache",)) or _is_only_a_name(layered, key):
            continue
        for path, value in find_values(layered.data, key, ()):
            if not isinstance(value, str) or not layered.is_set_by_file(path):
                continue
            reason = _explain_refusal(key, value, layered.folder(path), lookup)
            if reason is not None:
                yield _refusal(layered, path, reason)
    for path, _ in find_values(layered.data, ("execution", "*"), ()):
        if not saved and layered.is_set_by_file(path) and fetched_folder([layered.folder(path)]) is not None:
            yield _refusal(layered, path, "a downloaded spec must not choose which machines play the games")


def _refusal(layered: LayeredData, path: KeyPath, reason: str) -> Problem:
    return layered.problem_at(path, f"{reason}. To allow this, set the key yourself: {dotted(path)}=...")


def _explain_refusal(key: KeyPath, value: str, folder: Path, lookup: PathLookup) -> str | None:
    """Return why a value in a file of this folder is not allowed; None if it is allowed."""
    if fetched_folder([folder]) is None:
        return None
    if key == ("dataset", "path") and value.startswith(HUB):
        return "a downloaded spec must not load datasets from the Hub"
    path = lookup(value, folder)
    if is_reference(value) and (path is None or not package_data.exists(path)):
        return None  # an installed release, which the user pinned
    if key in _RUN_ID_KEYS and (path is None or not package_data.exists(path)):
        return "there is no such folder next to the spec, and a downloaded spec must not name runs by id"
    return None if path is None else path_refusal(folder, path)


def _is_only_a_name(layered: LayeredData, key: KeyPath) -> bool:
    """Return whether the key names a run that is not read, because the spec already has the run's models."""
    training = layered.data.get("training")
    rerun = training.get("rerun_tests") if isinstance(training, dict) else None
    return key == ("training", "rerun_tests", "run") and isinstance(rerun, dict) and bool(rerun.get("models"))


def find_values(data: Any, pattern: KeyPath, parents: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the key and the value of each match of a pattern below `parents`. In a pattern, `*` matches any name."""
    if not pattern:
        yield parents, data
    elif isinstance(data, dict):
        for name in data if pattern[0] == "*" else [pattern[0]]:
            if name in data:
                yield from find_values(data[name], pattern[1:], (*parents, name))


@dataclass(frozen=True)
class SpecSources:
    """The files and overrides that a spec was loaded from."""

    files: tuple[ReadFile, ...] = ()
    """The spec's own file, if it has one, then the files that it extends. A file extended twice is listed twice."""
    overrides: tuple[str, ...] = ()
    """Overrides in the form of command-line arguments, including those for a point of a sweep."""


@dataclass(frozen=True)
class NamedFiles:
    """The paths of the files that a spec names."""

    protocol: tuple[Path, ...] = ()
    """The protocol's file, then the files that it extends."""
    prompts: Path | None = None
    """The folder of templates."""
    templates: tuple[Path, ...] = ()
    """The templates in this folder that agents use."""
    dataset: Path | None = None
    """The dataset's file; None if the dataset is on the Hugging Face Hub."""


@dataclass(frozen=True)
class SpecOrigin:
    """The files of a spec and the files that it names; empty if the spec was not loaded from files."""

    sources: SpecSources = field(default_factory=SpecSources)
    named_files: NamedFiles = field(default_factory=NamedFiles)


def as_argument(override: Override) -> str:
    """Return an override as an argument of a command line."""
    if override.value is None:
        return override.text
    # The loader rejects values that YAML cannot represent.
    return f"{override.text.removesuffix('...')}{dump_inline(to_plain_values(override.value[0], []))}"
