"""Where the files of a spec can be got by others: the commit that holds each, or why none does."""

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


def source(path: Path, *files: Path) -> FileSource:
    return find_sources({"part": PinnedFiles(path, files or (path,))})["part"]


def laid_out(folder: Path) -> Path:
    """A folder with a spec below another one."""
    (folder / "specs").mkdir(parents=True)
    spec = folder / "specs" / "mine.yaml"
    spec.write_text("name: mine\n")
    (folder / "base.yaml").write_text("seed: 1\n")
    return spec


def test_a_file_that_was_pushed_is_pinned_by_its_repository_commit_and_path(tmp_path: Path) -> None:
    spec = laid_out(tmp_path)
    commit = commit_and_push(tmp_path, url="https://someone:secret@example.org:8443/acme/games.git?token=secret")
    address = "https://example.org:8443/acme/games.git"
    assert source(spec) == FileSource(repository=address, commit=commit, path="specs/mine.yaml", clean=True)


def test_the_repository_is_the_files_own_and_not_that_of_the_working_folder(tmp_path: Path) -> None:
    ours, theirs = laid_out(tmp_path / "ours"), laid_out(tmp_path / "ours" / "modules" / "theirs")
    inner = commit_and_push(tmp_path / "ours" / "modules" / "theirs", url="https://example.org/theirs.git")
    (tmp_path / "ours" / ".gitignore").write_text("modules\n")
    outer = commit_and_push(tmp_path / "ours")
    found = find_sources({"ours": PinnedFiles(ours, (ours,)), "theirs": PinnedFiles(theirs, (theirs,))})
    assert (found["ours"].repository, found["ours"].commit) == (REMOTE_URL, outer)
    assert (found["theirs"].repository, found["theirs"].commit) == ("https://example.org/theirs.git", inner)
    link = tmp_path / "link.yaml"
    link.symlink_to(theirs)
    assert source(link) == found["theirs"]


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
    ("happened", "why"),
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
def test_what_nobody_else_can_get_is_not_pinned_and_says_why(
    tmp_path: Path, happened: Callable[[Path], None], why: str
) -> None:
    spec = laid_out(tmp_path / "here")
    happened(tmp_path / "here")
    found = source(spec)
    assert (found.clean, found.why) == (False, why)
    assert str(tmp_path) not in str(found)


def test_of_several_files_the_one_that_is_not_pinned_is_named(tmp_path: Path) -> None:
    spec = laid_out(tmp_path)
    commit_and_push(tmp_path)
    assert source(spec, spec, tmp_path / "base.yaml").clean
    (tmp_path / "base.yaml").write_text("seed: 2\n")
    found = source(spec, spec, tmp_path / "base.yaml")
    assert (found.clean, found.path, found.why) == (False, "specs/mine.yaml", f"base.yaml: {file_pins.CHANGED}")


def test_a_file_in_git_lfs_is_the_one_that_its_pointer_names(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    content = b'{"id": 1}\n' * 100
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(content).hexdigest()}\n"
    data.write_text(f"{pointer}size {len(content)}\n")
    commit_and_push(tmp_path)
    data.write_bytes(content)
    assert source(data).clean
    data.write_bytes(content + b"\n")
    assert source(data).why == file_pins.CHANGED


def test_nothing_of_the_repository_is_run(tmp_path: Path) -> None:
    """Monitors, filters and aliases that its configuration names."""
    spec = laid_out(tmp_path / "here")
    (tmp_path / "here" / ".gitattributes").write_text("* filter=own diff=own\n")
    commit_and_push(tmp_path / "here")
    ran = tmp_path / "ran"
    for key in ("core.fsmonitor", "filter.own.clean", "filter.own.process", "diff.own.textconv", "core.sshCommand"):
        git(tmp_path / "here", "config", key, f"touch {ran}")
    spec.touch()
    assert source(spec).clean
    assert not ran.exists()


def test_another_repository_that_a_hook_names_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = laid_out(tmp_path / "here")
    commit = commit_and_push(tmp_path / "here")
    laid_out(tmp_path / "other")
    commit_folder(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert (source(spec).commit, source(spec).clean) == (commit, True)


@pytest.mark.full
def test_git_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = laid_out(tmp_path / "here")
    commit_and_push(tmp_path / "here")
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 3600\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert source(spec).why == file_pins.TOO_LATE


def test_a_repository_is_asked_as_often_for_many_files_as_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = laid_out(tmp_path / "here")
    files = [tmp_path / "here" / f"f{number}.yaml" for number in range(50)]
    for file in files:
        file.write_text(file.name)
    commit_and_push(tmp_path / "here")
    real = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "git").write_text(f'#!/bin/sh\necho >> {tmp_path}/asked\nexec {real} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert all(
        one.clean for one in find_sources({file.name: PinnedFiles(file, (file,)) for file in [spec, *files]}).values()
    )
    assert len((tmp_path / "asked").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("said", "public"),
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
def test_an_address_is_told_without_who_and_by_which_password(said: str, public: str | None) -> None:
    assert public_url(said) == public


def test_a_built_in_file_is_pinned_by_the_version_of_nip_run() -> None:
    path = package_data.root() / "specs" / "quickstart.yaml"
    found = source(path)
    assert (found.clean, found.repository, found.path) == (True, None, "nip-run:specs/quickstart.yaml")


def test_a_dataset_of_the_hub_is_pinned_by_a_commit_alone() -> None:
    commit = "0123456789" * 4
    assert hub_source("hf://acme/data", commit).clean
    assert hub_source("hf://acme/data", "main").why == hub_source("hf://acme/data", None).why == file_pins.NO_REVISION


@pytest.mark.parametrize(
    ("part", "change", "clean", "why"),
    [
        ("dataset", None, True, None),
        ("dataset", "rows.jsonl", False, file_pins.NOT_IN_GIT),
        ("spec", "rows.jsonl", True, "run/acme/x@1 with rows.jsonl edited"),
        ("spec", "release.json", False, file_pins.NOT_IN_GIT),
    ],
)
def test_what_came_with_a_release_is_pinned_by_it(
    part: str, change: str | None, clean: bool, why: str | None, tmp_path: Path
) -> None:
    """Byte for byte; a spec may be edited, since the run keeps it as it was written."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    release = Release(kind=Kind.RUN, owner="acme", name="x", version="1")
    bundle = Bundle.of(release, {"rows.jsonl": rows})
    (tmp_path / "release.json").write_bytes(bundle.manifest)
    (tmp_path / MARKER).write_bytes(marker_bytes("run/acme/x@1", bundle.sha256, "file:/r"))
    if change is not None:
        with (tmp_path / change).open("a") as file:
            file.write("\n")
    found = find_sources({part: PinnedFiles(rows, (rows,))})[part]
    assert (found.clean, found.why) == (clean, why)
    if clean:
        assert (found.repository, found.commit) == ("release:run/acme/x@1", bundle.sha256)
