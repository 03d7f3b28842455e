"""`nip-run serve` on a folder that `publish --to` filled refuses with the command that imports it, or imports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.documents.releases.reference import Kind
from runner.registry.transports.locations import connect
from tests.support.processes import nip_run_here
from tests.support.registry_locations import bundle
from tests.support.server_process import run_server
from tests.support.server_releases import copy_bundle, run_bundle


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with a run, a dataset that was yanked, and a private dataset."""
    hidden = copy_bundle(bundle("hidden", kind=Kind.DATASET), visibility="private")
    taken_back = bundle("wrong", kind=Kind.DATASET)
    with connect(str(tmp_path / "registry")) as registry:
        registry.publish([run_bundle(tmp_path, size=3), taken_back, hidden], "Publish")
        registry.yank(taken_back.release.reference, "a label is wrong")
    return tmp_path / "registry"


def test_a_folder_of_releases_is_refused_with_the_command_that_imports_it(filled: Path) -> None:
    done = nip_run_here("serve", filled, "--port", "0", cwd=filled.parent)
    assert done.returncode == 2
    assert f"{filled} has 3 releases from `publish --to`" in done.stderr
    assert f"nip-run serve {filled} --import" in done.stderr


@pytest.mark.full
def test_what_is_imported_is_served_as_it_was_published_and_served_again_without_the_option(filled: Path) -> None:
    with connect(str(filled)) as registry:
        before = {entry.reference: (entry.sha256, entry.yanked) for entry in registry.entries()}
    with run_server(filled, "--import", people=False) as served:
        with served.registry() as registry:
            entries = registry.entries()
            assert [problem for entry in entries for problem in registry.find_problems(entry)] == []
        token = served.create_token("acme")
        own = served.request("/api/v1/releases", token=token).json["releases"]
    public = {entry.reference: (entry.sha256, entry.yanked) for entry in entries}
    assert public.items() <= before.items()
    assert [reference.name for reference in before.keys() - public.keys()] == ["hidden"]
    assert {one["folder"] for one in own} == {reference.folder for reference in before}
    with run_server(filled, people=False) as again:
        assert len(again.request("/api/v1/releases").json["releases"]) == 2


@pytest.mark.full
def test_what_is_damaged_is_named_and_not_served_and_the_rest_is_imported(filled: Path) -> None:
    (journal,) = filled.rglob("journal.jsonl")
    journal.write_bytes(journal.read_bytes()[:-10] + b"0000000000")
    with run_server(filled, "--import", people=False) as served:
        said = served.log
        assert len(served.request("/api/v1/releases").json["releases"]) == 1
    assert "2 releases imported" in said
    (problem,) = [line for line in said.splitlines() if line.startswith("run/acme/")]
    assert "hash" in problem
    again = nip_run_here("serve", filled, "--port", "0", cwd=filled.parent)
    assert "has 1 release from `publish --to`" in again.stderr
