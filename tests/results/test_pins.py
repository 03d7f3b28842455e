"""Pins of spec files: the public commit that contains each file, or the reason why there is none."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base import package_data
from runner.documents.fetched_files import MARKER, marker_bytes
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import FileSource, Release
from runner.documents.releases.reference import Kind
from runner.results.provenance import file_pins
from runner.results.provenance.file_pins import PinnedFiles, find_sources, hub_source, public_url
from tests.support.git_repositories import REMOTE_URL, commit_and_push, commit_folder, git


def find_source(path: Path, *files: Path) -> FileSource:
    return find_sources({"part": PinnedFiles(path, files or (path,))})["part"]


def write_nested_spec(folder: Path) -> Path:
    """Write a spec in a subfolder and a base file above it; return the path of the spec."""
    (folder / "specs").mkdir(parents=True)
    spec = folder / "specs" / "mine.yaml"
    spec.write_text("name: mine\n")
    (folder / "base.yaml").write_text("seed: 1\n")
    return spec


def test_pushed_file_is_pinned_by_its_repository_commit_and_path(tmp_path: Path) -> None:
    spec = write_nested_spec(tmp_path)
    commit = commit_and_push(tmp_path, url="https://someone:secret@example.org:8443/acme/games.git?token=secret")
    address = "https://example.org:8443/acme/games.git"
    assert find_source(spec) == FileSource(repository=address, commit=commit, path="specs/mine.yaml", clean=True)


def test_file_is_pinned_to_its_own_repository_not_to_the_enclosing_one(tmp_path: Path) -> None:
    outer_spec, inner_spec = (
        write_nested_spec(tmp_path / "ours"),
        write_nested_spec(tmp_path / "ours" / "modules" / "theirs"),
    )
    inner_commit = commit_and_push(tmp_path / "ours" / "modules" / "theirs", url="https://example.org/theirs.git")
    (tmp_path / "ours" / ".gitignore").write_text("modules\n")
    outer_commit = commit_and_push(tmp_path / "ours")
    sources = find_sources(
        {"ours": PinnedFiles(outer_spec, (outer_spec,)), "theirs": PinnedFiles(inner_spec, (inner_spec,))}
    )
    assert (sources["ours"].repository, sources["ours"].commit) == (REMOTE_URL, outer_commit)
    assert (sources["theirs"].repository, sources["theirs"].commit) == ("https://example.org/theirs.git", inner_commit)
    link = tmp_path / "link.yaml"
    link.symlink_to(inner_spec)
    assert find_source(link) == sources["theirs"]


def no_repository(folder: Path) -> None:
    assert not (folder / ".git").exists()


def no_commit(folder: Path) -> None:
    git(folder, "init", "-q")


def no_remote(folder: Path) -> None:
    commit_folder(folder)


def a_remote_on_this_machine(folder: Path) -> None:
    commit_and_push(folder, url=str(folder.parent / "bare.git"))


def not_pushed(folder: Path) -> None:
    commit_and_push(folder)
    git(folder, "commit", "-q", "--allow-empty", "-m", "more")


def changed(folder: Path) -> None:
    commit_and_push(folder)
    (folder / "specs" / "mine.yaml").write_text("name: other\n")


def changed_and_staged(folder: Path) -> None:
    changed(folder)
    git(folder, "add", ".")


def changed_behind_gits_back(folder: Path) -> None:
    """`git status` calls this clean."""
    commit_and_push(folder)
    git(folder, "update-index", "--assume-unchanged", "specs/mine.yaml")
    (folder / "specs" / "mine.yaml").write_text("name: mine!\n")
    assert git(folder, "status", "--porcelain") == ""


def not_tracked(folder: Path) -> None:
    commit_and_push(folder, "base.yaml")


def ignored(folder: Path) -> None:
    (folder / ".gitignore").write_text("specs\n")
    commit_and_push(folder)


def damaged(folder: Path) -> None:
    (folder / ".git").write_text("gitdir: nowhere\n")


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (no_repository, file_pins.NOT_IN_GIT),
        (no_commit, file_pins.NO_COMMIT),
        (no_remote, file_pins.NO_REMOTE),
        (a_remote_on_this_machine, file_pins.LOCAL_REMOTE),
        (not_pushed, file_pins.NOT_PUSHED),
        (changed, file_pins.CHANGED),
        (changed_and_staged, file_pins.CHANGED),
        (changed_behind_gits_back, file_pins.CHANGED),
        (not_tracked, file_pins.NOT_TRACKED),
        (ignored, file_pins.NOT_TRACKED),
        (damaged, file_pins.GIT_FAILED),
    ],
)
def test_file_that_is_not_public_is_not_pinned_and_has_a_reason(
    tmp_path: Path, setup: Callable[[Path], None], reason: str
) -> None:
    spec = write_nested_spec(tmp_path / "here")
    setup(tmp_path / "here")
    source = find_source(spec)
    assert (source.clean, source.why) == (False, reason)
    assert str(tmp_path) not in str(source)


def test_reason_names_the_file_that_is_not_pinned(tmp_path: Path) -> None:
    spec = write_nested_spec(tmp_path)
    commit_and_push(tmp_path)
    assert find_source(spec, spec, tmp_path / "base.yaml").clean
    (tmp_path / "base.yaml").write_text("seed: 2\n")
    source = find_source(spec, spec, tmp_path / "base.yaml")
    assert (source.clean, source.path, source.why) == (False, "specs/mine.yaml", f"base.yaml: {file_pins.CHANGED}")


def test_git_lfs_file_is_compared_with_its_pointer(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    content = b'{"id": 1}\n' * 100
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(content).hexdigest()}\n"
    data.write_text(f"{pointer}size {len(content)}\n")
    commit_and_push(tmp_path)
    data.write_bytes(content)
    assert find_source(data).clean
    data.write_bytes(content + b"\n")
    assert find_source(data).why == file_pins.CHANGED


def test_commands_in_the_git_configuration_are_not_executed(tmp_path: Path) -> None:
    """The configuration of a repository can name monitors, filters and other commands."""
    spec = write_nested_spec(tmp_path / "here")
    (tmp_path / "here" / ".gitattributes").write_text("* filter=own diff=own\n")
    commit_and_push(tmp_path / "here")
    executed = tmp_path / "ran"
    for key in ("core.fsmonitor", "filter.own.clean", "filter.own.process", "diff.own.textconv", "core.sshCommand"):
        git(tmp_path / "here", "config", key, f"touch {executed}")
    spec.touch()
    assert find_source(spec).clean
    assert not executed.exists()


def test_git_dir_variable_of_a_hook_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_nested_spec(tmp_path / "here")
    commit = commit_and_push(tmp_path / "here")
    write_nested_spec(tmp_path / "other")
    commit_folder(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert (find_source(spec).commit, find_source(spec).clean) == (commit, True)


@pytest.mark.full
def test_hanging_git_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_nested_spec(tmp_path / "here")
    commit_and_push(tmp_path / "here")
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 3600\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_source(spec).why == file_pins.TOO_LATE


def test_number_of_git_calls_does_not_depend_on_the_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_nested_spec(tmp_path / "here")
    files = [tmp_path / "here" / f"f{number}.yaml" for number in range(50)]
    for file in files:
        file.write_text(file.name)
    commit_and_push(tmp_path / "here")
    git_path = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "git").write_text(f'#!/bin/sh\necho >> {tmp_path}/asked\nexec {git_path} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert all(
        source.clean
        for source in find_sources({file.name: PinnedFiles(file, (file,)) for file in [spec, *files]}).values()
    )
    assert len((tmp_path / "asked").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("remote_url", "public"),
    [
        ("https://example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://u:p@example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://ghp_token@example.org/a/b", "https://example.org/a/b"),
        ("https://example.org/a/b?private_token=x#y", "https://example.org/a/b"),
        ("ssh://git@example.org:2222/a/b.git", "ssh://example.org:2222/a/b.git"),
        ("git@example.org:a/b.git", "ssh://example.org/a/b.git"),
        ("example.org:a/b.git", "ssh://example.org/a/b.git"),
        ("https://[2001:db8::1]/a", "https://[2001:db8::1]/a"),
        ("/srv/git/b.git", None),
        ("../b.git", None),
        ("file:///srv/git/b.git", None),
        ("ext::sh -c x", None),
        ("https://[broken/a", None),
        ("https:///a", None),
        ("", None),
    ],
)
def test_public_url_contains_no_user_or_password(remote_url: str, public: str | None) -> None:
    assert public_url(remote_url) == public


def test_a_built_in_file_is_pinned_by_the_version_of_nip_run() -> None:
    path = package_data.root() / "specs" / "quickstart.yaml"
    source = find_source(path)
    assert (source.clean, source.repository, source.path) == (True, None, "nip-run:specs/quickstart.yaml")


def test_hub_dataset_is_pinned_only_by_a_commit() -> None:
    commit = "0123456789" * 4
    assert hub_source("hf://acme/data", commit).clean
    assert hub_source("hf://acme/data", "main").why == hub_source("hf://acme/data", None).why == file_pins.NO_REVISION


@pytest.mark.parametrize(
    ("part", "change", "clean", "reason"),
    [
        ("dataset", None, True, None),
        ("dataset", "rows.jsonl", False, file_pins.NOT_IN_GIT),
        ("spec", "rows.jsonl", True, "run/acme/x@1 with rows.jsonl edited"),
        ("spec", "release.json", False, file_pins.NOT_IN_GIT),
    ],
)
def test_files_of_a_release_are_pinned_by_it(
    part: str, change: str | None, clean: bool, reason: str | None, tmp_path: Path
) -> None:
    """Other files must be unchanged; a spec may be edited, because the run stores it as written."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    release = Release(kind=Kind.RUN, owner="acme", name="x", version="1")
    bundle = Bundle.of(release, {"rows.jsonl": rows})
    (tmp_path / "release.json").write_bytes(bundle.manifest)
    (tmp_path / MARKER).write_bytes(marker_bytes("run/acme/x@1", bundle.sha256, "file:/r"))
    if change is not None:
        with (tmp_path / change).open("a") as file:
            file.write("\n")
    source = find_sources({part: PinnedFiles(rows, (rows,))})[part]
    assert (source.clean, source.why) == (clean, reason)
    if clean:
        assert (source.repository, source.commit) == ("release:run/acme/x@1", bundle.sha256)
