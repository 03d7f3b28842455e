"""Where a spec came from: the user's own files are trusted, and what was fetched from elsewhere is not.

A spec is fetched if any of its files is (see `runner.documents.fetched_files`). To trust one for good is to copy it
out. What is checked here is which files a fetched file may name by the keys of a spec; `extends` is checked where files
are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import Problem
from runner.documents.dataclass_schema import path_keys
from runner.documents.fetched_files import MARKER, fetched_folder, path_refusal, read_marker
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.releases.reference import is_reference
from runner.game.protocols.loader import find_protocol
from runner.spec.datasets.loader import HUB
from runner.spec.experiment import Experiment

__all__ = ["DATA", "MARKER", "fetched_folder", "path_problems", "read_marker"]

DATA = "data"
"""The folder of a got run, in the folder that the release was got into."""

_Named = Callable[[str, Path], Path | None]
"""What a spec's value, in a file of this folder, names; None: nothing that is read."""

_ITERATION = re.compile(r"@(?:i[0-9]{1,4}|last)\Z")


def _found(name: str, folder: Path) -> Path | None:
    return package_data.find_file(name, folder)


def _dataset(name: str, folder: Path) -> Path | None:
    return None if name.startswith(HUB) else _found(name, folder)


def _beside(name: str, folder: Path) -> Path:
    return folder / name


def _run(name: str, folder: Path) -> Path:
    return folder / _ITERATION.sub("", name)


NAMING: dict[KeyPath, _Named] = {
    ("dataset", "path"): _dataset,
    ("protocol", "use"): find_protocol,
    ("prompts",): _found,
    ("cache",): _beside,
    ("rejudge", "run"): _beside,
    ("models", "*", "run"): _beside,
    ("models", "*", "from_run"): _run,
    ("training", "rerun_tests", "run"): _run,
    ("training", "from"): _run,
}
"""Every key by which a spec names a file, or the folder of a run, and how it is looked up; `*` is any one name.

`until.compare` names a run, too; `runs.comparing` sees to it when it is played.
"""

assert set(path_keys(Experiment)) <= NAMING.keys()

_BY_ID = {
    ("rejudge", "run"),
    ("models", "*", "from_run"),
    ("training", "rerun_tests", "run"),
    ("training", "from"),
}
"""Those by which a run may be named by its id, in the user's own results."""

_NOT_READ = {("cache",)}
"""Those that are of no matter to who reads the records of a run."""


def path_problems(layered: LayeredData, *, saved: bool) -> Iterator[Problem]:
    """The files and runs that a fetched file names and may not; with `saved`, for who reads records alone."""
    if fetched_folder(layered.folders.values()) is None:
        return
    for key, named in NAMING.items():
        for at, value in _values(layered.data, key, ()):
            if isinstance(value, str) and layered.is_set_by_file(at) and not (saved and key in _NOT_READ):
                why = _why(key, value, layered.folder(at), named)
                if why is not None and not _is_only_a_name(layered, key):
                    where = ".".join(map(str, at))
                    yield Problem(layered.place(at), where, f"{why}. If you mean it, say it yourself: {where}=...")
    for at, _ in _values(layered.data, ("execution", "*"), ()):
        if not saved and layered.is_set_by_file(at) and fetched_folder([layered.folder(at)]) is not None:
            where = ".".join(map(str, at))
            why = "what plays the games, and on whose machines, is not for what came from elsewhere to say"
            yield Problem(layered.place(at), where, f"{why}. If you mean it, say it yourself: {where}=...")


def _why(key: KeyPath, value: str, folder: Path, named: _Named) -> str | None:
    """Why what is said in a file of this folder may not be; None where it may."""
    if fetched_folder([folder]) is None:
        return None
    if key == ("dataset", "path") and value.startswith(HUB):
        return "it is on the Hub, which what came from elsewhere may not contact"
    path = named(value, folder)
    if is_reference(value) and (path is None or not package_data.exists(path)):
        return None  # an installed release, which the user pinned
    if key in _BY_ID and (path is None or not package_data.exists(path)):
        return "it is no folder beside the spec, and what came from elsewhere may not name runs by their ids"
    return None if path is None else path_refusal(folder, path)


def _is_only_a_name(layered: LayeredData, key: KeyPath) -> bool:
    """Whether a run is named whose models stand in the spec already."""
    training = layered.data.get("training")
    rerun = training.get("rerun_tests") if isinstance(training, dict) else None
    return key == ("training", "rerun_tests", "run") and isinstance(rerun, dict) and bool(rerun.get("models"))


def _values(data: Any, key: KeyPath, at: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """What stands at a key, for each name that its `*` may be."""
    if not key:
        yield at, data
    elif isinstance(data, dict):
        for name in data if key[0] == "*" else [key[0]]:
            if name in data:
                yield from _values(data[name], key[1:], (*at, name))
