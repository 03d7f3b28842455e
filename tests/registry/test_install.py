"""Install, uninstall, search and the lock: what is pinned is what comes back, and what is refused is told."""

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
    place = tmp_path / "registry"
    publish_component(place, PROMPTS, Kind.PROMPTS, component_naming("terse"))
    shutil.copy(package_data.PROTOCOLS / "debate.yaml", tmp_path / "council.yaml")
    for version in ("1.2", "1.10"):
        said = component_naming("council", version, description=f"Five judges, {version}")
        publish_component(place, tmp_path / "council.yaml", Kind.PROTOCOL, said)
    return place


@pytest.fixture
def project(tmp_path: Path, registry: Path) -> Project:
    return Project.create(tmp_path / "user", registry)


def pins(project: Project) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((project.folder / LOCK).read_text("utf-8"))["releases"]
    return found


def test_the_newest_is_pinned_by_its_version_and_never_as_latest(project: Project, registry: Path) -> None:
    project.install("protocol/acme/council@latest")
    assert list(pins(project)) == ["protocol/acme/council@1.10"]
    with connect(str(registry)) as there:
        (entry,) = (one for one in there.entries(Kind.PROTOCOL) if one.reference.version == "1.10")
    assert pins(project)["protocol/acme/council@1.10"] == {"sha256": entry.sha256, "where": f"file:{registry}"}


def test_a_lock_has_a_line_for_each_release_and_brings_all_back(project: Project, tmp_path: Path) -> None:
    project.install("prompts/acme/terse", "protocol/acme/council@1.2")
    lock = (project.folder / LOCK).read_bytes()
    assert [line.strip()[:10] for line in lock.decode().splitlines()] == [
        '{"format":',
        '"prompts/a',
        '"protocol/',
        "}}",
    ]
    other = Project.create(tmp_path / "colleague", project.registry)
    (other.folder / LOCK).write_bytes(lock)
    done = other.nip_run("install")
    assert done.returncode == 0, done.stderr
    assert (other.folder / LOCK).read_bytes() == lock
    assert (other.store / TERSE.folder / "verifier.jinja").read_bytes() == (PROMPTS / "verifier.jinja").read_bytes()
    assert other.nip_run("install").stdout.count("already installed") == 2


def test_a_registry_that_now_has_other_bytes_is_not_believed(project: Project, registry: Path, tmp_path: Path) -> None:
    project.install("prompts/acme/terse")
    shutil.rmtree(registry / "prompts")
    publish_component(registry, PROMPTS, Kind.PROMPTS, component_naming("terse", description="others"))
    other = Project.create(tmp_path / "colleague", registry)
    shutil.copy(project.folder / LOCK, other.folder)
    done = other.nip_run("install")
    assert done.returncode == 1
    assert "is not the one that was installed before" in done.stderr
    assert not other.store.exists()
    done = project.nip_run("install", "prompts/acme/terse@1", "--from", registry)
    assert done.returncode == 1
    assert "nip-run uninstall prompts/acme/terse@1" in done.stderr


def test_a_damaged_release_is_not_installed_and_its_file_is_named(project: Project, registry: Path) -> None:
    file = registry / TERSE.folder / "prover.jinja"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    done = project.nip_run("install", "prompts/acme/terse")
    assert done.returncode == 1
    assert "prover.jinja is damaged" in done.stderr
    assert not (project.store / TERSE.folder).exists()
    assert not (project.folder / LOCK).exists()


def test_what_a_release_needs_is_installed_with_it(project: Project, registry: Path) -> None:
    link = ReleaseLink(role="prompts", release=str(TERSE))
    whole = Release(kind=Kind.SPEC, owner="acme", name="whole", version="1", links=(link,))
    lacking = replace(whole, name="lacking", links=(ReleaseLink(role="dataset", release="dataset/acme/none@3"),))
    with connect(str(registry)) as there:
        there.publish([Bundle.of(one, {"spec.yaml": b"seed: 1\n"}) for one in (whole, lacking)], "a test")
    project.install("spec/acme/whole")
    assert sorted(pins(project)) == [str(TERSE), "spec/acme/whole@1"]
    done = project.nip_run("install", "spec/acme/lacking")
    assert done.returncode == 1
    assert "spec/acme/lacking@1 needs dataset/acme/none@3" in done.stderr
    assert "lacking" not in (project.folder / LOCK).read_text("utf-8")
    done = project.nip_run("uninstall", str(TERSE))
    assert "spec/acme/whole@1 is still installed, and needs prompts/acme/terse@1" in done.stderr


def test_without_a_registry_that_of_all_the_others_is_asked(project: Project) -> None:
    project.install("prompts/acme/terse")
    words = ("install", "protocol/acme/council@1.2")
    done = nip_run_here(*words, cwd=project.folder, NIP_RUN_STORE=str(project.store))
    assert (done.returncode, "protocol/acme/council@1.2" in done.stdout) == (0, True), done.stderr


def test_a_yanked_release_is_passed_over_and_told_of_when_asked_for(project: Project, registry: Path) -> None:
    with connect(str(registry)) as there:
        there.yank(Reference(Kind.PROTOCOL, "acme", "council", "1.10"), "it leaks the label")
    project.install("protocol/acme/council")
    assert list(pins(project)) == ["protocol/acme/council@1.2"]
    assert "was yanked: it leaks the label" in project.nip_run("install", "protocol/acme/council@1.10").stderr


def test_uninstall_says_what_still_names_it(project: Project) -> None:
    project.install("prompts/acme/terse")
    done = project.nip_run("uninstall", "prompts/acme/terse")
    assert done.returncode == 0
    assert f"{project.folder / LOCK} still pins prompts/acme/terse" in done.stderr
    assert not (project.store / "prompts").exists()
    done = project.nip_run("uninstall", "prompts/acme/tersse")
    assert done.returncode == 1
    assert "prompts/acme/tersse is not installed" in done.stderr


def test_a_run_is_got_and_not_installed(project: Project, registry: Path) -> None:
    with connect(str(registry)) as there:
        there.publish([Bundle.of(Release(kind=Kind.RUN, owner="acme", name="r", version="1"), {"a": b""})], "a test")
    done = project.nip_run("install", "run/acme/r")
    assert done.returncode == 2
    assert "nip-run get run/acme/r@1 DIR" in done.stderr


def test_search_shows_the_newest_of_each_and_fits_a_terminal(project: Project, registry: Path, tmp_path: Path) -> None:
    said = component_naming("secret", visibility="private")
    publish_component(registry, PROMPTS, Kind.PROMPTS, said)
    done = project.nip_run("search", "JUDGES")
    assert "protocol/acme/council@1.10" in done.stdout
    assert "council@1.2 " not in done.stdout
    assert "secret" not in project.nip_run("search").stdout
    found = json.loads(project.nip_run("search", "--all", "--json").stdout)["releases"]
    assert {one["release"]: one["visibility"] for one in found} == {
        "prompts/acme/secret@1": "private", "prompts/acme/terse@1": "public",
        "protocol/acme/council@1.10": "public", "protocol/acme/council@1.2": "public",
    }  # fmt: skip
    assert "no match among 4 releases" in project.nip_run("search", "no such word").stdout
    assert project.nip_run("search", "--kind", "protocl").returncode == 2


# The lock's file


def test_a_lock_that_is_damaged_is_refused_with_its_line(tmp_path: Path) -> None:
    good = Lock(tmp_path / LOCK).add({TERSE: LockedPin("0" * 64, "file:/r")})
    text = good.path.read_text("utf-8")
    bad = {
        "an unresolved merge conflict": text.replace("\n  ", "\n<<<<<<< ours\n  "),
        "duplicate keys: prompts/acme/terse@1": text.replace("\n}}", f",\n{text.splitlines()[1]}\n}}}}"),
        "is damaged": text[:-3],
        "sha256 must be 64 hexadecimal digits": text.replace("0" * 64, "0" * 63),
        "is not a release with a version": text.replace("terse@1", "terse"),
        "format and releases": "[]",
        "newer version of nip-run": text.replace('"format": 1', '"format": 2'),
    }
    for message, damaged in bad.items():
        good.path.write_text(damaged, "utf-8")
        with pytest.raises(Exception, match=message) as caught:
            Lock.read(good.path)
        assert isinstance(caught.value, ReleaseError) or message == "newer version of nip-run"


def test_a_pin_is_never_changed_silently(tmp_path: Path) -> None:
    lock = Lock(tmp_path / LOCK).add({TERSE: LockedPin("0" * 64, "file:/r")})
    with pytest.raises(TakenError, match=r"pinned to sha256:000000000000 from file:/r, but git:other has sha256:1111"):
        lock.add({TERSE: LockedPin("1" * 64, "git:other")})
    assert Lock.read(lock.path) == lock


def test_a_registry_in_the_project_is_named_from_there(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "a" / LOCK)
    lock.path.parent.mkdir()
    lock.add({TERSE: LockedPin("0" * 64, f"file:{tmp_path / 'a' / 'registry'}")})
    assert str(tmp_path) not in lock.path.read_text("utf-8")
    (tmp_path / "a").rename(tmp_path / "b")
    assert Lock.read(tmp_path / "b" / LOCK).address_of(TERSE) == f"file:{tmp_path / 'b' / 'registry'}"


def test_processes_that_pin_at_once_lose_no_pin(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom runner.registry.components.lockfile import Lock, LockedPin\n"
        "from runner.documents.releases.reference import Kind, Reference\n"
        "for n in range(10):\n"
        "    name = Reference(Kind.PROMPTS, 'acme', f'p{sys.argv[2]}-{n}', '1')\n"
        "    Lock(Path(sys.argv[1])).add({name: LockedPin('0' * 64, 'file:/r')})\n"
    )
    python = command()[0]
    words = [[python, "-c", code, str(tmp_path / LOCK), str(which)] for which in range(3)]
    started = [subprocess.Popen(one, env=environment(), stderr=subprocess.PIPE) for one in words]
    assert [process.communicate()[1] for process in started] == [b""] * 3
    assert len(Lock.read(tmp_path / LOCK).pins) == 30
