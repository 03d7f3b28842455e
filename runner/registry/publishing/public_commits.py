"""Find the files of a finished run in a public commit, for `publish --pin`. The commit may be newer than the run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from runner.base.errors import ReleaseError
from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import read_bounded
from runner.documents.releases.manifest import FileSource
from runner.registry.bundles.run_facts import unpinned_reasons
from runner.registry.components.lookup import make_finder_for
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.provenance import file_pins
from runner.results.provenance.file_pins import PinnedFiles
from runner.results.provenance.sources_snapshot import INDEX, MAX_WRITTEN, OVERRIDES, WRITTEN, sources_of, written_files
from runner.rollouts.identity import protocol_content
from runner.spec.loader import Spec, load_spec
from runner.spec.trainer_files import FOLDER as TRAINERS
from runner.spec.trainer_files import read_index
from runner.training.trainer_files import CollectedFiles, collect_files


def pinned_sources(folder: RunFolder, path: Path) -> dict[str, FileSource]:
    """Return the sources (repository and commit) of a run's files as they are now. `path` is the played spec.

    Raises:
        ReleaseError: a file differs from the file that was played, or is in no public commit.
        SpecError: the spec cannot be loaded.
    """
    written_folder = folder.path / "inputs" / WRITTEN
    try:
        overrides = read_bounded(written_folder / OVERRIDES, MAX_WRITTEN).decode().splitlines()
    except OSError as error:
        raise ReleaseError(
            f"--pin: run {folder.run_id} cannot be pinned, because it has no copy of its original spec "
            f"({error.strerror}); to publish it without pins, add --force"
        ) from error
    spec = load_spec(path, overrides, Results.of(folder).path_of, make_finder_for(path))
    sources = sources_of(spec)
    trainers = {f"trainer of {group}": part for group, part in _pin_trainers(spec).items()}
    problems = [
        *_find_changes(spec, folder, written_folder),
        *unpinned_reasons({**sources, **file_pins.find_sources(trainers)}),
    ]
    if problems:
        raise ReleaseError(
            f"--pin {path}: run {folder.run_id} cannot be pinned; restore, commit and push the files that were played"
        ).with_notes(problems)
    return sources


def _trainer_files(spec: Spec) -> Iterator[tuple[str, CollectedFiles]]:
    """Yield the current files of each `command` trainer, with its model group."""
    training = spec.experiment.training
    for group, trainer in ({} if training is None else training.trainers).items():
        if trainer.command is not None:
            yield group, collect_files(group, trainer, spec.trainer_files.get(group))


def _pin_trainers(spec: Spec) -> dict[str, PinnedFiles]:
    """Return the files of each trainer, except installed trainers, which are pinned by their release."""
    own_files = [
        (group, files) for group, files in _trainer_files(spec) if group not in spec.trainer_files and files.contents
    ]
    cwd = Path.cwd()
    return {group: PinnedFiles(cwd, tuple(cwd / path for path in files.contents)) for group, files in own_files}


def _read_saved(path: Path) -> bytes | None:
    try:
        return read_bounded(path, MAX_WRITTEN)
    except OSError:
        return None


def _find_changes(spec: Spec, folder: RunFolder, written_folder: Path) -> Iterator[str]:
    """Yield a message for each file of a spec that differs from the file that was played."""
    manifest = folder.manifest()
    for name, content in written_files(spec.origin.sources).items():
        if name != INDEX and _read_saved(written_folder / name) != content:
            yield f"spec: {name} is not the file that was played"
    prompts = {name: tagged_hash("prompt", text) for name, text in spec.prompts.sources.items()}
    for name in sorted({name for name, _ in prompts.items() ^ manifest.prompts_sha256.items()}):
        yield f"prompts: {name} is not the template that was played"
    if tagged_hash("protocol", protocol_content(spec.protocol)) != manifest.protocol_sha256:
        yield "protocol: its rules differ from the rules that were played"
    if spec.dataset.source_sha256 != manifest.dataset_source_sha256:
        yield "dataset: the file is not the one that was played"
    stored = read_index(folder.path / "inputs" / TRAINERS)
    for group, files in _trainer_files(spec):
        stored_files = stored[group].files if group in stored else {}
        played_hashes = {path: facts["sha256"] for path, facts in stored_files.items()}
        current_hashes = {path: hashlib.sha256(data).hexdigest() for path, (data, _) in files.contents.items()}
        for path in sorted({path for path, _ in played_hashes.items() ^ current_hashes.items()}):
            yield f"trainer of {group}: {path} is not the file that the run used"
