"""Fetch a published run into the results folder, and check that it can be reproduced, for `nip-run reproduce`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from runner.base.errors import ReleaseError, UsageError
from runner.base.text import comma_join, path_argument
from runner.documents.fetched_files import fetched_registry
from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
from runner.registry.fetched_release import PUBLISHED, FetchedRelease, fetch_release, is_fetched, open_fetched
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.verification.verify import find_changed_files
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED
from runner.spec.origin import DATA
from runner.spec.run_names import MAX_RUN_ID_LENGTH
from runner.training.plan import TrainingPlan


def fetch_into_results(registry: Registry, entry: ReleaseEntry, results: Results) -> FetchedRelease:
    """Return a release in the results folder, after fetching it if the folder does not have it.

    Raises:
        ReleaseError: the existing folder is damaged or has another release; the message says how to fetch it again.
        NotFoundError, UsageError: as `fetch_release`.
    """
    reference = entry.reference
    folder = results.path / PUBLISHED / reference.owner / reference.name / str(reference.version)
    try:
        if is_fetched(folder):
            fetched = open_fetched(folder)
            if fetched.sha256 != entry.sha256:
                raise ReleaseError(
                    f"{folder} has a different release of the name {reference}; move or delete that folder, "
                    "and run the same command again"
                )
            _check_data_files(fetched)
            return fetched
        if folder.is_dir() and any(folder.iterdir()):
            raise ReleaseError(f"{folder} was not written by `nip-run get`")
    except ReleaseError as error:
        remove_command = f"rm -r {shlex.quote(path_argument(folder))}"
        raise ReleaseError(f"{error}\nremove the folder and repeat the command: {remove_command}") from error
    return fetch_release(registry, reference, folder)


def check_intact(fetched: FetchedRelease) -> None:
    """Check that the files of the run were not changed.

    Raises:
        ReleaseError: files were changed; the message names them and says how to fetch the release again.
    """
    try:
        _check_data_files(fetched)
    except ReleaseError as error:
        raise ReleaseError(f"{error}\n{_refetch_command(fetched)}") from error


def _check_data_files(fetched: FetchedRelease) -> None:
    if changed := find_changed_files(fetched, lambda path: path.startswith(f"{DATA}/")):
        raise ReleaseError("\n".join(changed.values()))


def _refetch_command(fetched: FetchedRelease) -> str:
    """Return advice with the command that fetches a damaged release again."""
    address = fetched_registry(fetched.folder)
    option = f" --from {shlex.quote(address)}" if address else ""
    return f"get the release again into another folder: nip-run get {fetched.release.reference} NEW{option}"


def check_reproducible(fetched: FetchedRelease) -> RunFolder:
    """Return the run of a release, after checking that the run can be reproduced and its files are unchanged.

    Raises:
        UsageError: the release is not a run, or the run trains, is not finished, or lacks the rows of its dataset.
        ReleaseError: files were changed.
    """
    check_intact(fetched)
    run = fetched.run
    if run is None:
        raise UsageError(
            f"{fetched.release.reference} is a {fetched.release.kind}; only a run can be reproduced; name a run"
        )
    manifest = run.manifest()
    if manifest.is_training_run:
        parts = comma_join(str(link.release) for link in fetched.release.links if link.role == "part")
        raise UsageError(
            f"{run.run_id} is a training run; reproduce the releases of its games instead: {parts or 'none'}; "
            f"to repeat the training: nip-run {shlex.quote(path_argument(fetched.folder))}"
        )
    if manifest.status not in PLAYED:
        raise UsageError(f"{run.run_id} is {manifest.status} and has no numbers to reproduce; choose a finished run")
    if lacks_rows(fetched):
        raise UsageError(f"{fetched.release.reference}: {describe_missing_rows(fetched)}")
    return run


def add_suffix(run_id: str, suffix: str) -> str:
    """Return a run id with a suffix. A long id is shortened, so that a number can still be added."""
    return run_id[: MAX_RUN_ID_LENGTH - len(suffix) - len(TrainingPlan.longest_suffix)] + suffix


def build_link(fetched: FetchedRelease) -> Mapping[str, str]:
    """Return the link to a release for the manifest of a run that reproduces it."""
    return {"release": str(fetched.release.reference), "sha256": fetched.sha256}
