"""A small run, played once and published under as many names as a test needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runner import run
from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import Release
from runner.registry.transports.locations import connect
from runner.spec.loader import load_spec
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file


def play_and_publish(folder: Path, *, size: int = 4) -> tuple[Release, Mapping[str, Content]]:
    """Play a run in `folder`, publish it to a registry in `folder` and return its release and contents."""
    run(load_spec(spec_file(folder, size=size, benchmark="played/v1")), folder / "results", run_id="one")
    registry = f"file:{folder / 'local'}"
    process = nip_run_here(
        "publish", "one", "--to", registry, "--as", "acme", "--licence", "MIT", "--force", cwd=folder
    )
    assert process.returncode == 0, process.stderr
    return load_local_release(folder)


def load_local_release(folder: Path) -> tuple[Release, Mapping[str, Content]]:
    """Load the release that `play_and_publish` left in a folder."""
    with connect(f"file:{folder / 'local'}") as registry:
        (entry,) = registry.entries()
        release, _ = registry.read_manifest(entry)
        release_folder = folder / "local" / entry.reference.folder
        return release, {file.path: release_folder / file.path for file in release.files}


def rename_release(release: Release, contents: Mapping[str, Content], name: str) -> Bundle:
    """Return the same release under another name."""
    return Bundle.of(replace(release, name=name), contents)
