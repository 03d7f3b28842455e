"""`nip-run serve` on a folder that `publish --to` filled: refused without `--import`, imported with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind
from runner.registry.transports.locations import connect
from tests.support.processes import nip_run_here
from tests.support.registry_locations import bundle
from tests.support.server_process import run_server
from tests.support.server_releases import copy_bundle, run_bundle


@pytest.fixture
def release_folder(tmp_path: Path) -> Path:
    """A folder with a run, a yanked dataset and a private dataset."""
    hidden = copy_bundle(bundle("hidden", kind=Kind.DATASET), visibility="private")
    yanked = bundle("wrong", kind=Kind.DATASET)
    with connect(str(tmp_path / "registry")) as registry:
        registry.publish([run_bundle(tmp_path, size=3), yanked, hidden], "Publish")
        registry.yank(yanked.release.reference, "a label is wrong")
    return tmp_path / "registry"


def test_serving_a_release_folder_is_refused_with_the_import_command(release_folder: Path) -> None:
    process = nip_run_here("serve", release_folder, "--port", "0", cwd=release_folder.parent)
    assert process.returncode == 2
    assert f"{release_folder} has 3 releases from `publish --to`" in process.stderr
    assert f"nip-run serve {release_folder} --import" in process.stderr


@pytest.mark.full
def test_imported_releases_are_served_unchanged_and_survive_a_restart(release_folder: Path) -> None:
    with connect(str(release_folder)) as registry:
        before = {entry.reference: (entry.sha256, entry.yanked) for entry in registry.entries()}
    with run_server(release_folder, "--import", people=False) as served:
        with served.registry() as registry:
            entries = registry.entries()
            assert [problem for entry in entries for problem in registry.find_problems(entry)] == []
        token = served.create_token("acme")
        own_releases = served.request("/api/v1/releases", token=token).json["releases"]
    public = {entry.reference: (entry.sha256, entry.yanked) for entry in entries}
    assert public.items() <= before.items()
    assert [reference.name for reference in before.keys() - public.keys()] == ["hidden"]
    assert {release["folder"] for release in own_releases} == {reference.folder for reference in before}
    with run_server(release_folder, people=False) as restarted:
        assert len(restarted.request("/api/v1/releases").json["releases"]) == 2


@pytest.mark.full
def test_import_names_a_damaged_release_and_imports_the_rest(release_folder: Path) -> None:
    (journal,) = release_folder.rglob("journal.jsonl")
    journal.write_bytes(journal.read_bytes()[:-10] + b"0000000000")
    with run_server(release_folder, "--import", people=False) as served:
        log = served.log
        assert len(served.request("/api/v1/releases").json["releases"]) == 1
    assert "2 releases imported" in log
    (problem,) = [line for line in log.splitlines() if line.startswith("run/acme/")]
    assert "hash" in problem
    process = nip_run_here("serve", release_folder, "--port", "0", cwd=release_folder.parent)
    assert "has 1 release from `publish --to`" in process.stderr


@pytest.mark.full
def test_run_that_names_a_release_of_another_owner_as_its_part_does_not_prevent_its_import(tmp_path: Path) -> None:
    rows = copy_bundle(bundle("rows", kind=Kind.DATASET), owner="alice")
    link = ReleaseLink(role="part", release=str(rows.release.reference), sha256=rows.sha256)
    claiming = copy_bundle(bundle("claim", kind=Kind.DATASET), owner="mallory", links=(link,))
    with connect(str(tmp_path / "registry")) as registry:
        registry.publish([claiming, rows], "Publish")
    with run_server(tmp_path / "registry", "--import", people=False) as served:
        folders = {release["folder"] for release in served.request("/api/v1/releases").json["releases"]}
    assert rows.release.reference.folder in folders
