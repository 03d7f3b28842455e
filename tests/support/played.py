"""A played run as a release, under as many names as a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runner.api import run
from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import Release
from runner.registry.transports.locations import connect
from runner.spec.loader import load_spec
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file


def played_release(folder: Path, *, size: int = 4) -> tuple[Release, Mapping[str, Content]]:
    """A small run, played in a folder, as `nip-run publish` makes it ready; its files stay there."""
    run(load_spec(spec_file(folder, size=size, benchmark="played/v1")), folder / "results", run_id="one")
    local = f"file:{folder / 'local'}"
    done = nip_run_here("publish", "one", "--to", local, "--as", "acme", "--licence", "MIT", "--force", cwd=folder)
    assert done.returncode == 0, done.stderr
    return local_release(folder)


def local_release(folder: Path) -> tuple[Release, Mapping[str, Content]]:
    """The one that `played_release` left in a folder."""
    with connect(f"file:{folder / 'local'}") as registry:
        (entry,) = registry.entries()
        release, _ = registry.read_manifest(entry)
        at = folder / "local" / entry.reference.folder
        return release, {file.path: at / file.path for file in release.files}


def named(release: Release, contents: Mapping[str, Content], name: str) -> Bundle:
    """The same run under another name."""
    return Bundle.of(replace(release, name=name), contents)
