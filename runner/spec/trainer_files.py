"""Read the script and the files of a `command` trainer that are stored with a run or a release.

An index lists the files. Each is stored as `GROUP/PATH.txt`, a name that no program runs or imports. If the user allows
the program, nip-run restores the files with their original names in a folder of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import ReleaseError
from runner.base.storage.safe_files import open_below
from runner.base.storage.strict_json import parse_strict_json
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.releases.limits import MAX_TRAINER_BYTES
from runner.documents.releases.paths import path_problem
from runner.spec.origin import DATA, fetched_folder
from runner.spec.training_settings import TrainerSettings

FOLDER = "trainers"
"""Name of the folder with the stored files. It is in `inputs/` of a run, or at the top of a component's release."""
INDEX = "trainers.json"
MAX_INDEX = 1 << 20
NO_FILES = "its script: it was not published, and the command runs in the current folder"

_INDEX_FOLDERS = (f"inputs/{FOLDER}", f"{DATA}/inputs/{FOLDER}", FOLDER)
"""Folders of stored files, relative to the file with the command: in a run, a downloaded run, a component."""


def stored_name(group: str, path: str) -> str:
    """Return the stored path of a trainer's file, relative to the folder of the index."""
    return f"{group}/{path}.txt"


def is_storable(group: str, path: str) -> bool:
    """Return whether a trainer's file can be stored in a release of any kind."""
    return path_problem(f"{_INDEX_FOLDERS[1]}/{stored_name(group, path)}") is None


@dataclass(frozen=True)
class TrainerFiles:
    """The stored files of one trainer, and a list of what is missing to run it."""

    folder: Path
    """The folder of the index."""
    group: str
    files: Mapping[str, Mapping[str, Any]]
    """The `sha256`, the `size` and whether it is `executable`, for each file by its path in the trainer's folder."""
    missing: tuple[str, ...]
    """Descriptions of files that the trainer needs and that are not stored with it."""

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            ReleaseError: the file is missing, or was changed.
        """
        stored = stored_name(self.group, path)
        try:
            with open_below(self.folder, stored.split("/")) as file:
                data = file.read(MAX_TRAINER_BYTES + 1)
        except OSError as error:
            raise ReleaseError(f"cannot read {self.folder / stored}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != self.files[path]["sha256"]:
            raise ReleaseError(
                f"{self.folder / stored} was changed after it was stored; restore it (`nip-run verify` lists changed "
                "files), or set training.trainers.GROUP.command to your own trainer"
            )
        return data


def _check_files(files: TrainerFiles) -> None:
    """Check the paths and the facts of stored files.

    Raises:
        ValueError: a path is not valid, or a fact has a wrong type.
        KeyError: a fact is missing.
    """
    for path, facts in files.files.items():
        if not is_storable(files.group, path) or {*map(type, facts.values())} - {str, int, bool}:
            raise ValueError(f"{path!r} is not a path that a trainer's file may have")
        facts["sha256"], facts["size"], facts["executable"]


def read_index(folder: Path) -> dict[str, TrainerFiles]:
    """Return the stored files of each trainer by model group; empty if the folder has no index.

    Raises:
        ReleaseError: the index is damaged, or names a file that cannot be in a release.
    """
    try:
        with open_below(folder, (INDEX,)) as file:
            index = parse_strict_json(file.read(MAX_INDEX + 1))
        if index["format"] != 1:
            raise ReleaseError(f"{folder / INDEX} was written by a newer version of nip-run; upgrade nip-run")
        trainers = {
            group: TrainerFiles(folder, group, dict(entry["files"]), tuple(map(str, entry["missing"])))
            for group, entry in index["trainers"].items()
        }
        for files in trainers.values():
            _check_files(files)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{folder / INDEX} is damaged: {error}") from error
    return trainers


def find_trainer_files(layered: LayeredData, group: str, trainer: TrainerSettings) -> TrainerFiles | None:
    """Return the stored files of a downloaded trainer; None if the user wrote the trainer's command.

    Raises:
        ReleaseError: as in `read_index`; or a downloaded file sets `files` for a command that the user wrote.
    """
    path: KeyPath = ("training", "trainers", group)
    folders = {key: layered.folder((*path, key)) for key in ("command", "files") if getattr(trainer, key) is not None}
    fetched = {
        key
        for key, folder in folders.items()
        if layered.is_set_by_file((*path, key)) and fetched_folder([folder]) is not None
    }
    if fetched == {"files"}:
        raise ReleaseError(
            f"training.trainers.{group}.files is set by a downloaded file, but the command is not; set the files of "
            f"your command with training.trainers.{group}.files, or null for none"
        )
    for index_folder in _INDEX_FOLDERS if "command" in fetched else ():
        stored = read_index(folders["command"] / index_folder)
        if index_folder == FOLDER and len(stored) == 1:  # a trainer's release; the spec may name the group differently
            return next(iter(stored.values()))
        if group in stored:
            return stored[group]
    return TrainerFiles(Path(), group, {}, (NO_FILES,)) if "command" in fetched else None
