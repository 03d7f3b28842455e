"""Install, uninstall, search and the lock file: pinned releases are restored unchanged, and errors have a reason."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from runner.base import package_data
from runner.base.errors import ReleaseError, TakenError
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.reference import Kind, Reference
from runner.registry.components.lockfile import LOCK, Lock, LockedPin
from runner.registry.transports.locations import connect
from tests.support.components import Project, component_naming, publish_component
from tests.support.processes import command, environment, nip_run_here

PROMPTS = package_data.root() / "prompts" / "code_validation" / "nip"
TERSE = Reference(Kind.PROMPTS, "acme", "terse", "1")


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "registry"
    publish_component(folder, PROMPTS, Kind.PROMPTS, component_naming("terse"))
    shutil.copy(package_data.PROTOCOLS / "debate.yaml", tmp_path / "council.yaml")
    for version in ("1.2", "1.10"):
        choices = component_naming("council", version, description=f"Five judges, {version}")
        publish_component(folder, tmp_path / "council.yaml", Kind.PROTOCOL, choices)
    return folder


@pytest.fixture
def project(tmp_path: Path, registry: Path) -> Project:
    return Project.create(tmp_path / "user", registry)


def read_pins(project: Project) -> dict[str, dict[str, str]]:
    releases: dict[str, dict[str, str]] = json.loads((project.folder / LOCK).read_text("utf-8"))["releases"]
    return releases


def test_latest_release_is_pinned_by_its_version(project: Project, registry: Path) -> None:
    project.install("protocol/acme/council@latest")
    assert list(read_pins(project)) == ["protocol/acme/council@1.10"]
    with connect(str(registry)) as opened:
        (entry,) = (listed for listed in opened.entries(Kind.PROTOCOL) if listed.reference.version == "1.10")
    assert read_pins(project)["protocol/acme/council@1.10"] == {"sha256": entry.sha256, "where": f"file:{registry}"}


def test_lock_has_one_line_per_release_and_restores_all(project: Project, tmp_path: Path) -> None:
    project.install("prompts/acme/terse", "protocol/acme/council@1.2")
    lock = (project.folder / LOCK).read_bytes()
    assert [line.strip()[:10] for line in lock.decode().splitlines()] == [
        '{"format":',
        '"prompts/a',
        '"protocol/',
        "}}",
    ]
    colleague = Project.create(tmp_path / "colleague", project.registry)
    (colleague.folder / LOCK).write_bytes(lock)
    done = colleague.nip_run("install")
    assert done.returncode == 0, done.stderr
    assert (colleague.folder / LOCK).read_bytes() == lock
    assert (colleague.store / TERSE.folder / "verifier.jinja").read_bytes() == (PROMPTS / "verifier.jinja").read_bytes()
    assert colleague.nip_run("install").stdout.count("already installed") == 2


def test_install_refuses_a_release_that_differs_from_its_pin(project: Project, registry: Path, tmp_path: Path) -> None:
    project.install("prompts/acme/terse")
    shutil.rmtree(registry / "prompts")
    publish_component(registry, PROMPTS, Kind.PROMPTS, component_naming("terse", description="others"))
    colleague = Project.create(tmp_path / "colleague", registry)
    shutil.copy(project.folder / LOCK, colleague.folder)
    done = colleague.nip_run("install")
    assert done.returncode == 1
    assert "is not the one that was installed before" in done.stderr
    assert not colleague.store.exists()
    done = project.nip_run("install", "prompts/acme/terse@1", "--from", registry)
    assert done.returncode == 1
    assert "nip-run uninstall prompts/acme/terse@1" in done.stderr


def test_damaged_release_is_not_installed_and_its_file_is_named(project: Project, registry: Path) -> None:
    file = registry / TERSE.folder / "prover.jinja"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    done = project.nip_run("install", "prompts/acme/terse")
    assert done.returncode == 1
    assert "prover.jinja is damaged" in done.stderr
    assert not (project.store / TERSE.folder).exists()
    assert not (project.folder / LOCK).exists()


def test_dependencies_of_a_release_are_installed_with_it(project: Project, registry: Path) -> None:
    link = ReleaseLink(role="prompts", release=str(TERSE))
    complete = Release(kind=Kind.SPEC, owner="acme", name="whole", version="1", links=(link,))
    lacking = replace(complete, name="lacking", links=(ReleaseLink(role="dataset", release="dataset/acme/none@3"),))
    with connect(str(registry)) as opened:
        opened.publish([Bundle.of(release, {"spec.yaml": b"seed: 1\n"}) for release in (complete, lacking)], "a test")
    project.install("spec/acme/whole")
    assert sorted(read_pins(project)) == [str(TERSE), "spec/acme/whole@1"]
    done = project.nip_run("install", "spec/acme/lacking")
    assert done.returncode == 1
    assert "spec/acme/lacking@1 needs dataset/acme/none@3" in done.stderr
    assert "lacking" not in (project.folder / LOCK).read_text("utf-8")
    done = project.nip_run("uninstall", str(TERSE))
    assert "spec/acme/whole@1 is still installed, and needs prompts/acme/terse@1" in done.stderr


def test_install_without_a_registry_uses_that_of_the_other_pins(project: Project) -> None:
    project.install("prompts/acme/terse")
    arguments = ("install", "protocol/acme/council@1.2")
    done = nip_run_here(*arguments, cwd=project.folder, NIP_RUN_STORE=str(project.store))
    assert (done.returncode, "protocol/acme/council@1.2" in done.stdout) == (0, True), done.stderr


def test_yanked_release_is_skipped_and_reported_if_requested_by_version(project: Project, registry: Path) -> None:
    with connect(str(registry)) as opened:
        opened.yank(Reference(Kind.PROTOCOL, "acme", "council", "1.10"), "it leaks the label")
    project.install("protocol/acme/council")
    assert list(read_pins(project)) == ["protocol/acme/council@1.2"]
    assert "was yanked: it leaks the label" in project.nip_run("install", "protocol/acme/council@1.10").stderr


def test_uninstall_warns_about_remaining_pins(project: Project) -> None:
    project.install("prompts/acme/terse")
    done = project.nip_run("uninstall", "prompts/acme/terse")
    assert done.returncode == 0
    assert f"{project.folder / LOCK} still pins prompts/acme/terse" in done.stderr
    assert not (project.store / "prompts").exists()
    done = project.nip_run("uninstall", "prompts/acme/tersse")
    assert done.returncode == 1
    assert "prompts/acme/tersse is not installed" in done.stderr


def test_install_of_a_run_suggests_get(project: Project, registry: Path) -> None:
    with connect(str(registry)) as opened:
        opened.publish([Bundle.of(Release(kind=Kind.RUN, owner="acme", name="r", version="1"), {"a": b""})], "a test")
    done = project.nip_run("install", "run/acme/r")
    assert done.returncode == 2
    assert "nip-run get run/acme/r@1 DIR" in done.stderr


def test_search_shows_only_the_newest_version_of_each_release(project: Project, registry: Path, tmp_path: Path) -> None:
    choices = component_naming("secret", visibility="private")
    publish_component(registry, PROMPTS, Kind.PROMPTS, choices)
    done = project.nip_run("search", "JUDGES")
    assert "protocol/acme/council@1.10" in done.stdout
    assert "council@1.2 " not in done.stdout
    assert "secret" not in project.nip_run("search").stdout
    releases = json.loads(project.nip_run("search", "--all", "--json").stdout)["releases"]
    assert {release["release"]: release["visibility"] for release in releases} == {
        "prompts/acme/secret@1": "private", "prompts/acme/terse@1": "public",
        "protocol/acme/council@1.10": "public", "protocol/acme/council@1.2": "public",
    }  # fmt: skip
    assert "no match among 4 releases" in project.nip_run("search", "no such word").stdout
    assert project.nip_run("search", "--kind", "protocl").returncode == 2


# The lock file


def test_damaged_lock_file_is_refused_with_a_reason(tmp_path: Path) -> None:
    lock = Lock(tmp_path / LOCK).add({TERSE: LockedPin("0" * 64, "file:/r")})
    text = lock.path.read_text("utf-8")
    damaged_texts = {
        "an unresolved merge conflict": text.replace("\n  ", "\n<<<<<<< ours\n  "),
        "duplicate keys: prompts/acme/terse@1": text.replace("\n}}", f",\n{text.splitlines()[1]}\n}}}}"),
        "is damaged": text[:-3],
        "sha256 must be 64 hexadecimal digits": text.replace("0" * 64, "0" * 63),
        "is not a release with a version": text.replace("terse@1", "terse"),
        "format and releases": "[]",
        "newer version of nip-run": text.replace('"format": 1', '"format": 2'),
    }
    for message, damaged_text in damaged_texts.items():
        lock.path.write_text(damaged_text, "utf-8")
        with pytest.raises(Exception, match=message) as caught:
            Lock.read(lock.path)
        assert isinstance(caught.value, ReleaseError) or message == "newer version of nip-run"


def test_a_pin_is_never_changed_silently(tmp_path: Path) -> None:
    lock = Lock(tmp_path / LOCK).add({TERSE: LockedPin("0" * 64, "file:/r")})
    with pytest.raises(TakenError, match=r"pinned to sha256:000000000000 from file:/r, but git:other has sha256:1111"):
        lock.add({TERSE: LockedPin("1" * 64, "git:other")})
    assert Lock.read(lock.path) == lock


def test_registry_inside_the_project_is_stored_as_a_relative_path(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "a" / LOCK)
    lock.path.parent.mkdir()
    lock.add({TERSE: LockedPin("0" * 64, f"file:{tmp_path / 'a' / 'registry'}")})
    assert str(tmp_path) not in lock.path.read_text("utf-8")
    (tmp_path / "a").rename(tmp_path / "b")
    assert Lock.read(tmp_path / "b" / LOCK).address_of(TERSE) == f"file:{tmp_path / 'b' / 'registry'}"


def test_concurrent_processes_lose_no_pin(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom runner.registry.components.lockfile import Lock, LockedPin\n"
        "from runner.documents.releases.reference import Kind, Reference\n"
        "for n in range(10):\n"
        "    name = Reference(Kind.PROMPTS, 'acme', f'p{sys.argv[2]}-{n}', '1')\n"
        "    Lock(Path(sys.argv[1])).add({name: LockedPin('0' * 64, 'file:/r')})\n"
    )
    python = command()[0]
    commands = [[python, "-c", code, str(tmp_path / LOCK), str(number)] for number in range(3)]
    processes = [subprocess.Popen(arguments, env=environment(), stderr=subprocess.PIPE) for arguments in commands]
    assert [process.communicate()[1] for process in processes] == [b""] * 3
    assert len(Lock.read(tmp_path / LOCK).pins) == 30
