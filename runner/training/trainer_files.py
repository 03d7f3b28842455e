"""Store the script and the files of a `command` trainer with its run, and restore those of a fetched trainer."""

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
from runner.training.weights import is_path, without_path

MOST_LINES = 40
"""Lines of a trainer's script that are shown before the user allows it."""
_TOO_MUCH = f"at most {MAX_TRAINER_FILES} files of {MAX_TRAINER_BYTES >> 20} MiB in all are stored; list fewer"
_EARLIER = "an earlier version of "


@dataclass
class CollectedFiles:
    """The content of a trainer's files by path, whether each is executable, and what cannot be stored."""

    contents: dict[str, tuple[bytes, bool]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def collect_files(group: str, trainer: TrainerSettings, stored: TrainerFiles | None) -> CollectedFiles:
    """Read the script and the files of a trainer: those stored with a fetched one, else those in the current folder.

    Raises:
        ReleaseError: a stored file is missing or was changed.
    """
    if stored is not None:
        contents = {path: (stored.read(path), bool(facts["executable"])) for path, facts in stored.files.items()}
        return CollectedFiles(contents, list(stored.missing))
    found, here, command = CollectedFiles(), Path.cwd(), trainer.command or ("",)
    names = [name for name in (script_of(command), *(trainer.files or ())) if name is not None]
    if os.sep in command[0] and not Path(command[0]).is_absolute():
        names.insert(0, command[0])
    else:
        found.missing.append(f"the program {Path(command[0]).name}: install it, so that it is on the PATH")
    for path in (path for name in names for path in _files_at(here, Path(os.path.normpath(name)))):
        reason = None if path.as_posix() in found.contents else _add_file(found, here, group, path)
        found.missing += [f"{path.name if path.is_absolute() else path}: {reason}"] if reason else []
        if reason == _TOO_MUCH:
            break
    found.missing += dict.fromkeys(_unlisted(command, found, here))
    return found


def _files_at(here: Path, path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder without hidden ones and compiled Python."""
    if path.is_absolute() or not (here / path).is_dir():
        yield path
        return
    for at, folders, names in os.walk(here / path):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        yield from (Path(at, name).relative_to(here) for name in sorted(names) if name[0] != ".")


def _add_file(found: CollectedFiles, here: Path, group: str, path: Path) -> str | None:
    """Add a file that is named relative to `here`, or return why it cannot be stored."""
    if path.is_absolute() or ".." in path.parts:
        return "it is stored only if it is in the current folder of nip-run and named by a relative path"
    if not is_storable(group, path.as_posix()):
        return "a release can have no file of this name; rename it"
    room = MAX_TRAINER_BYTES - sum(len(data) for data, _ in found.contents.values())
    try:
        with open_below(here, path.parts) as file:
            data, mode = file.read(room + 1), os.fstat(file.fileno()).st_mode
    except OSError as error:
        return error.strerror
    if len(found.contents) >= MAX_TRAINER_FILES or len(data) > room:
        return _TOO_MUCH
    found.contents[path.as_posix()] = data, bool(mode & 0o100)
    return None


def _unlisted(command: Collection[str], found: CollectedFiles, here: Path) -> Iterator[str]:
    """Yield what the command names, or a Python file imports, that is in the current folder and not stored."""
    words = [word.rpartition("=")[2] for word in [*command][1:]]
    used = [*map(Path, words), *(Path(f"{word}.py") for word in words)]
    for path, (data, _) in found.contents.items():
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.walk(ast.parse(data if path.endswith(".py") else "")):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                modules = (Path(path).with_name(name.partition(".")[0]) for name in names if name)
                used += (beside for module in modules for beside in (module.with_suffix(".py"), module))
    for named in used:
        is_known = any(Path(path).is_relative_to(named) for path in found.contents)
        is_known = is_known or any(line.startswith(f"{named}: ") for line in found.missing)
        if not named.is_absolute() and (here / named).exists() and not is_known:
            yield f"{named}: the trainer uses it, and `files` does not list it"


def stored_contents(trainers: Mapping[str, CollectedFiles]) -> dict[str, bytes]:
    """Return the index of trainers' files, and the files by the names that they are stored under."""
    stored, index = {}, {}
    for group, found in sorted(trainers.items()):
        files = {}
        for path, (data, is_executable) in found.contents.items():
            stored[stored_name(group, path)] = data
            files[path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "executable": is_executable}
        index[group] = {"files": files, "missing": list(dict.fromkeys(found.missing))}
    return {**stored, INDEX: json.dumps({"format": 1, "trainers": index}, indent=2).encode()}


def store_trainer_files(plan: TrainingPlan, folder: RunFolder, trained: Collection[str]) -> None:
    """Store the files of a run's trainers in its folder; `trained` are the groups that have been trained already.

    Raises:
        RunError: they cannot be read or written.
    """
    place, collected = folder.path / "inputs" / FOLDER, {}
    before = read_index(place)
    for group, trainer in plan.training.trainers.items():
        if trainer.command is None:
            continue
        found = collected[group] = collect_files(group, trainer, plan.spec.trainer_files.get(group))
        base = plan.spec.experiment.models[group].name
        if is_path(base):
            shown = f"the weights of the base model {without_path(base)}"
            found.missing.append(f"{shown}: say where yours are, by models.{group}.model")
        if group in trained and group in before:
            found.missing += _earlier_versions(before[group], found)
    _write(folder, ("inputs", FOLDER), stored_contents(collected) if collected else {})


def _earlier_versions(before: TrainerFiles, now: CollectedFiles) -> Iterator[str]:
    """Yield the files that an earlier iteration was trained with and that were changed afterwards."""
    yield from (line for line in before.missing if line.startswith(_EARLIER))
    for path, facts in before.files.items():
        data, _ = now.contents.get(path, (b"", False))
        if path not in now.contents or hashlib.sha256(data).hexdigest() != facts["sha256"]:
            yield f"{_EARLIER}{path}: it was changed after an iteration had been trained with it"


def _write(folder: RunFolder, place: tuple[str, ...], contents: Mapping[str, bytes], mode: int = 0o644) -> None:
    for path, data in contents.items():
        *folders, name = path.split("/")
        atomic_write(folder.make(*place, *folders) / name, data, mode=mode)


def restore_files(stored: TrainerFiles | None, folder: RunFolder, group: str) -> Path | None:
    """Write the files of a model group's fetched trainer under their own names into the run's folder, and return the
    folder to run it in; None if no files came with it.

    Raises:
        RunError: they cannot be read or written.
    """
    if stored is None or not stored.files:
        return None
    for path, facts in stored.files.items():
        _write(folder, (FOLDER, group), {path: stored.read(path)}, 0o755 if facts["executable"] else 0o644)
    return (folder.path / FOLDER / group).absolute()


def shown_files(stored: TrainerFiles, command: Sequence[str]) -> Iterator[str]:
    """Yield lines that show a fetched trainer to the user: its files, the start of what runs, and what is missing."""
    script = os.path.normpath(script_of(command) or command[0])
    if script not in stored.files:
        yield in_one_line(
            f"trainer {stored.group}: none of these files is the script; read them all before you allow it"
        )
    for path, facts in stored.files.items():
        place = stored.folder / stored_name(stored.group, path)
        size = f"{facts['size']:,} bytes, sha256:{facts['sha256'][:12]}"
        yield in_one_line(f"trainer {stored.group}: {path}: {size}, in {place}")
        if path == script:
            lines = stored.read(path).decode("utf-8", "replace").splitlines()
            yield from (f"  | {escape_controls(shortened(line.expandtabs(4), 160))}" for line in lines[:MOST_LINES])
            yield from [f"  | ... and {len(lines) - MOST_LINES:,} more lines"] if len(lines) > MOST_LINES else []
    yield from (in_one_line(f"trainer {stored.group}: not included: {line}") for line in stored.missing)


def missing_lines(trainers: Mapping[str, TrainerFiles | CollectedFiles]) -> Iterator[str]:
    """Yield what somebody else needs to run trainers and does not get with them, by model group."""
    yield from (f"trainer {group}: {line}" for group, files in trainers.items() for line in files.missing)
