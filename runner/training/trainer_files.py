"""Stores the script and the files of a `command` trainer with its run, and restores the files of a fetched trainer.

A trainer is the user's own program that fine-tunes a model. A fetched (downloaded) spec comes with the files of its
trainer, so that others can repeat the training.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import open_below
from runner.base.text import escape_controls, in_one_line, shortened
from runner.documents.releases.limits import MAX_TRAINER_BYTES, MAX_TRAINER_FILES
from runner.results.folder import RunFolder
from runner.spec.trainer_files import FOLDER, INDEX, TrainerFiles, is_storable, read_index, stored_name
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.command import script_of
from runner.training.plan import TrainingPlan
from runner.training.weights import is_path, public_model_name

SHOWN_LINES = 40
"""The maximum number of lines of a trainer's script to show to the user who must allow the trainer."""
_TOO_MANY_FILES = (
    f"at most {MAX_TRAINER_FILES} files of {MAX_TRAINER_BYTES >> 20} MiB in total can be stored; list fewer in `files`"
)
_EARLIER_VERSION = "an earlier version of "
"""The start of a message about a file that was changed after an iteration had used it."""


@dataclass
class CollectedFiles:
    """The files of a trainer."""

    contents: dict[str, tuple[bytes, bool]] = field(default_factory=dict)
    """The content of each file by path, and whether the file is executable."""
    missing: list[str] = field(default_factory=list)
    """A message for each part of the trainer that is not stored."""


def collect_files(group: str, trainer: TrainerSettings, stored: TrainerFiles | None) -> CollectedFiles:
    """Read the script and files of a trainer, from `stored` for a fetched trainer or else from the current folder.

    Raises:
        ReleaseError: a stored file is missing or has changed.
    """
    if stored is not None:
        contents = {path: (stored.read(path), bool(facts["executable"])) for path, facts in stored.files.items()}
        return CollectedFiles(contents, list(stored.missing))
    collected, root, command = CollectedFiles(), Path.cwd(), trainer.command or ("",)
    names = [name for name in (script_of(command), *(trainer.files or ())) if name is not None]
    if os.sep in command[0] and not Path(command[0]).is_absolute():
        names.insert(0, command[0])
    else:
        program = Path(command[0]).name
        collected.missing.append(f"the program {program}: install {program} in a folder on the PATH")
    for path in (path for name in names for path in _files_at(root, Path(os.path.normpath(name)))):
        if path.as_posix() in collected.contents:
            continue
        reason = _add_file(collected, root, group, path)
        if reason is not None:
            collected.missing.append(f"{path.name if path.is_absolute() else path}: {reason}")
        if reason == _TOO_MANY_FILES:
            break
    collected.missing += dict.fromkeys(_unlisted(command, collected, root))
    return collected


def _files_at(root: Path, path: Path) -> Iterator[Path]:
    """Yield a file, or all files of a folder except hidden files and compiled Python."""
    if path.is_absolute() or not (root / path).is_dir():
        yield path
        return
    for folder, folders, names in os.walk(root / path):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        yield from (Path(folder, name).relative_to(root) for name in sorted(names) if name[0] != ".")


def _add_file(collected: CollectedFiles, root: Path, group: str, path: Path) -> str | None:
    """Add a file, given relative to `root`. If it cannot be stored, return the reason; otherwise None."""
    if path.is_absolute() or ".." in path.parts:
        return "not stored; only files in the current folder of nip-run, named by a relative path, are stored"
    if not is_storable(group, path.as_posix()):
        return "not stored, because releases do not allow this file name; rename the file"
    bytes_left = MAX_TRAINER_BYTES - sum(len(data) for data, _ in collected.contents.values())
    try:
        with open_below(root, path.parts) as file:
            data, mode = file.read(bytes_left + 1), os.fstat(file.fileno()).st_mode
    except OSError as error:
        return error.strerror
    if len(collected.contents) >= MAX_TRAINER_FILES or len(data) > bytes_left:
        return _TOO_MANY_FILES
    collected.contents[path.as_posix()] = data, bool(mode & 0o100)
    return None


def _unlisted(command: Collection[str], collected: CollectedFiles, root: Path) -> Iterator[str]:
    """Yield a message for each used file that `files` does not list.

    These are files in the current folder that the command names, or that a stored Python file imports.
    """
    arguments = [argument.rpartition("=")[2] for argument in [*command][1:]]
    used = [*map(Path, arguments), *(Path(f"{argument}.py") for argument in arguments)]
    for path, (data, _) in collected.contents.items():
        if path.endswith(".py"):
            for name in _imported_names(data):
                module = Path(path).with_name(name)
                used += (module.with_suffix(".py"), module)
    for path_used in used:
        is_reported = any(Path(path).is_relative_to(path_used) for path in collected.contents)
        is_reported = is_reported or any(line.startswith(f"{path_used}: ") for line in collected.missing)
        if not path_used.is_absolute() and (root / path_used).exists() and not is_reported:
            yield f"{path_used}: not stored, although the trainer uses this file; add it to `files`"


def _imported_names(code: bytes) -> Iterator[str]:
    """Yield the top-level names that Python code imports; none if the code cannot be parsed."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def stored_contents(trainers: Mapping[str, CollectedFiles]) -> dict[str, bytes]:
    """Return the files to store by their stored names: all files of all trainers, and the index."""
    stored, index = {}, {}
    for group, collected in sorted(trainers.items()):
        files = {}
        for path, (data, is_executable) in collected.contents.items():
            stored[stored_name(group, path)] = data
            files[path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "executable": is_executable}
        index[group] = {"files": files, "missing": list(dict.fromkeys(collected.missing))}
    return {**stored, INDEX: json.dumps({"format": 1, "trainers": index}, indent=2).encode()}


def store_trainer_files(plan: TrainingPlan, folder: RunFolder, trained: Collection[str]) -> None:
    """Store the files of a run's trainers in its folder; `trained` are the groups that have already been trained.

    Raises:
        RunError: a file cannot be read or written.
    """
    target, collected = folder.path / "inputs" / FOLDER, {}
    before = read_index(target)
    for group, trainer in plan.training.trainers.items():
        if trainer.command is None:
            continue
        files = collected[group] = collect_files(group, trainer, plan.spec.trainer_files.get(group))
        base = plan.spec.experiment.models[group].name
        if is_path(base):
            description = f"the weights of the base model {public_model_name(base)}"
            files.missing.append(f"{description}: set models.{group}.model to the path of your copy")
        if group in trained and group in before:
            files.missing += _earlier_versions(before[group], files)
    _write(folder, ("inputs", FOLDER), stored_contents(collected) if collected else {})


def _earlier_versions(before: TrainerFiles, current: CollectedFiles) -> Iterator[str]:
    """Yield a line for each file that has changed since an earlier iteration used it."""
    yield from (line for line in before.missing if line.startswith(_EARLIER_VERSION))
    for path, facts in before.files.items():
        data, _ = current.contents.get(path, (b"", False))
        if path not in current.contents or hashlib.sha256(data).hexdigest() != facts["sha256"]:
            yield f"{_EARLIER_VERSION}{path}: this file was changed after an iteration had used it"


def _write(folder: RunFolder, folders: tuple[str, ...], contents: Mapping[str, bytes], mode: int = 0o644) -> None:
    for path, data in contents.items():
        *subfolders, name = path.split("/")
        atomic_write(folder.make(*folders, *subfolders) / name, data, mode=mode)


def restore_files(stored: TrainerFiles | None, folder: RunFolder, group: str) -> Path | None:
    """Write the files of a model group's fetched trainer to the run's folder, and return the folder for the trainer.

    Return None if no files came with the trainer.

    Raises:
        RunError: a file cannot be read or written.
    """
    if stored is None or not stored.files:
        return None
    for path, facts in stored.files.items():
        _write(folder, (FOLDER, group), {path: stored.read(path)}, 0o755 if facts["executable"] else 0o644)
    return (folder.path / FOLDER / group).absolute()


def shown_files(stored: TrainerFiles, command: Sequence[str]) -> Iterator[str]:
    """Yield lines that show a fetched trainer to the user: its files, the start of its script, and missing files."""
    script = os.path.normpath(script_of(command) or command[0])
    if script not in stored.files:
        yield in_one_line(
            f"trainer {stored.group}: the script is not among these files; read all files before you allow the trainer"
        )
    for path, facts in stored.files.items():
        place = stored.folder / stored_name(stored.group, path)
        size = f"{facts['size']:,} bytes, sha256:{facts['sha256'][:12]}"
        yield in_one_line(f"trainer {stored.group}: {path}: {size}, in {place}")
        if path == script:
            lines = stored.read(path).decode("utf-8", "replace").splitlines()
            yield from (f"  | {escape_controls(shortened(line.expandtabs(4), 160))}" for line in lines[:SHOWN_LINES])
            if len(lines) > SHOWN_LINES:
                yield f"  | ... and {len(lines) - SHOWN_LINES:,} more lines"
    yield from (in_one_line(f"trainer {stored.group}: not included: {line}") for line in stored.missing)


def missing_lines(trainers: Mapping[str, TrainerFiles | CollectedFiles]) -> Iterator[str]:
    """Yield a line for each part of the trainers that is not stored with them."""
    yield from (f"trainer {group}: {line}" for group, files in trainers.items() for line in files.missing)
