"""The inputs that a run records at its start: the spec as written, the sources of its parts, and its packages."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from runner import load_spec, load_specs, run
from runner.documents.merged_data import ReadFile
from runner.documents.releases.paths import path_problem
from runner.results.folder import RunFolder
from runner.results.provenance.file_pins import CHANGED, NO_REMOTE
from runner.results.provenance.sources_snapshot import MAX_WRITTEN, environment_lock, written_files
from runner.runs.finished.selection import ReplayOf
from runner.spec.origin import SpecSources
from runner.version import __version__
from tests.support.git_repositories import commit_and_push, commit_folder
from tests.support.processes import python
from tests.support.runs import run_spec
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec


def read_written_inputs(run_folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run_folder / "inputs" / "written").iterdir())}


def read_manifest(run_folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((run_folder / "manifest.json").read_text())
    return manifest


def write_extending_spec(folder: Path) -> Path:
    """Write a spec that extends a file in another folder and a built-in one."""
    base = spec_file(folder, size=2, fine_tune=None)
    (folder / "bases").mkdir()
    (folder / "bases" / "spec.yaml").write_bytes(b"\xef\xbb\xbf# mine\r\n" + base.read_bytes())
    (folder / "bases" / "data.jsonl").write_bytes((folder / "data.jsonl").read_bytes())
    own_keys = "seed: 3\ndataset: {group_by: null, split: null}\n"
    base.write_text(f"extends: [base/offline.yaml, bases/spec.yaml]   # two\n{own_keys}")
    return base


def test_spec_files_are_stored_byte_for_byte_and_built_in_files_by_name(tmp_path: Path) -> None:
    spec = write_extending_spec(tmp_path)
    run_folder = run_spec(spec, tmp_path / "results", "seed=4", "+models.m.temperature=0.5").folder.path
    stored = read_written_inputs(run_folder)
    assert stored["spec.yaml"] == spec.read_bytes()
    assert stored["spec-2.yaml"] == (tmp_path / "bases" / "spec.yaml").read_bytes()
    assert stored["overrides.txt"] == b"seed=4\n+models.m.temperature=0.5\n"
    assert json.loads(stored["files.json"]) == {
        "nip-run": __version__,
        "files": [
            {
                "file": "spec.yaml",
                "kept": True,
                "extends": [
                    {"name": "base/offline.yaml", "builtin": "specs/base/offline.yaml"},
                    {"name": "bases/spec.yaml", "file": "spec-2.yaml"},
                ],
            },
            {"file": "spec-2.yaml", "kept": True, "extends": []},
        ],
    }
    assert len(stored) == 4
    assert str(tmp_path).encode() not in b"".join(stored.values())


@pytest.mark.full
def test_each_sweep_point_stores_its_overrides(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2, fine_tune=None, sweep={"seed": [1, 2], "models.m": [{"provider": "dummy"}]})
    for point in load_specs(spec, ["votes=3"]):
        overrides = (
            read_written_inputs(run(point, tmp_path / "results").folder.path)["overrides.txt"].decode().splitlines()
        )
        assert overrides == ["votes=3", "sweep={}", f"seed={point.experiment.seed}", "models.m={provider: dummy}"]
        point_overrides = [override for override in overrides if not override.startswith("votes")]
        assert load_spec(spec, [*point_overrides, "votes=3"]).experiment == point.experiment


def test_spec_from_a_python_mapping_has_no_file_and_no_spec_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = json.loads(spec_file(tmp_path, size=2, fine_tune=None).read_text())
    commit_and_push(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = run(load_spec(mapping, {"seed": 5, "description": "a: b"}), tmp_path / "results").folder.path
    assert set(read_written_inputs(folder)) == {"overrides.txt", "files.json"}
    assert read_written_inputs(folder)["overrides.txt"] == b'seed=5\ndescription="a: b"\n'
    assert {name: source["clean"] for name, source in read_manifest(folder)["sources"].items()} == {
        "protocol": True, "prompts": True, "dataset": True,
    }  # fmt: skip


@pytest.mark.full
def test_run_records_the_commit_of_each_part_and_keeps_it_on_resume(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4, fine_tune=None)
    prompts = shutil.copytree("prompts/code_validation/nip", tmp_path / "prompts" / "mine")
    spec.write_text(spec.read_text().replace("prompts/code_validation/nip", "prompts/mine"))
    commit = commit_and_push(tmp_path)
    first = run_spec(spec, tmp_path / "results", "dataset.limit=2", run_id="mine").folder
    sources = read_manifest(first.path)["sources"]
    for part, path in (("spec", "spec.yaml"), ("prompts", "prompts/mine"), ("dataset", "data.jsonl")):
        assert (sources[part]["commit"], sources[part]["path"], sources[part]["clean"]) == (commit, path, True)
    before = read_written_inputs(first.path), (first.path / "inputs" / "environment.lock").read_bytes()
    spec.write_text(spec.read_text() + "\n")
    (tmp_path / "unused.txt").write_text("x")
    run_spec(spec, tmp_path / "results", run_id="mine")
    assert read_manifest(first.path)["rollouts"] == 4
    assert read_manifest(first.path)["sources"] == sources
    assert (read_written_inputs(first.path), (first.path / "inputs" / "environment.lock").read_bytes()) == before
    (prompts / "notes.txt").write_text("no template")
    new_sources = read_manifest(run_spec(spec, tmp_path / "results", run_id="another").folder.path)["sources"]
    assert (new_sources["spec"]["why"], new_sources["prompts"]["clean"]) == (CHANGED, True)


@pytest.mark.full
def test_sources_and_layout_of_a_spec_do_not_change_the_run_identity(tmp_path: Path) -> None:
    hashes = []
    for name in ("plain", "in_git", "split"):
        (tmp_path / name).mkdir()
        spec = spec_file(tmp_path / name, size=2, fine_tune=None)
        if name == "in_git":
            commit_folder(tmp_path / name)
        if name == "split":
            spec.rename(tmp_path / name / "base.yaml")
            spec.write_text("extends: base.yaml\n")
        manifest = read_manifest(run_spec(spec, tmp_path / name / "results").folder.path)
        hashes.append([manifest[key] for key in ("run_id", "identity", "game_sha256", "spec_sha256")])
        if name == "in_git":
            assert manifest["sources"]["spec"]["why"] == NO_REMOTE
    assert hashes[0] == hashes[1] == hashes[2]


@pytest.mark.full
def test_training_parts_record_the_same_sources_as_the_training_run(tmp_path: Path) -> None:
    spec = training_spec(tmp_path, training={"iterations": 1})
    commit_and_push(tmp_path, "spec.yaml", "data.jsonl")
    folder = run_training(spec, tmp_path / "results").folder
    part = folder.path.with_name(f"{folder.run_id}-i0")
    assert read_manifest(part)["sources"] == read_manifest(folder.path)["sources"]
    assert read_manifest(part)["sources"]["spec"]["clean"]
    assert read_written_inputs(part)["spec.yaml"] == read_written_inputs(folder.path)["spec.yaml"] == spec.read_bytes()


@pytest.mark.full
def test_resumed_run_without_recorded_sources_stays_without_them(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4, fine_tune=None)
    folder = run_spec(spec, tmp_path / "results", "dataset.limit=2", run_id="mine").folder.path
    shutil.rmtree(folder / "inputs" / "written")
    (folder / "inputs" / "environment.lock").unlink()
    manifest = read_manifest(folder)
    del manifest["sources"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run_spec(spec, tmp_path / "results", run_id="mine")
    assert read_manifest(folder)["rollouts"] == 4
    assert "sources" not in read_manifest(folder)
    assert not (folder / "inputs" / "environment.lock").exists()


@pytest.mark.full
def test_replay_records_its_own_inputs(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2, fine_tune=None)
    first = run_spec(spec, tmp_path / "results").folder
    replay = run_spec(spec, tmp_path / "results", replay=ReplayOf(first.path, None)).folder
    assert read_written_inputs(replay.path) == read_written_inputs(first.path)


@pytest.mark.parametrize(
    "name",
    ["con.yaml", ".hidden.yaml", "with space.yaml", "é.yaml", "x" * 300 + ".yaml", "end.", "release.json", "-", "a\nb"],
)
def test_spec_files_with_odd_names_get_valid_release_names(name: str) -> None:
    files = tuple(ReadFile(Path(f"/p{number}/{name}"), b"%d" % number) for number in range(3))
    stored = written_files(SpecSources(files))
    assert len(stored) == 5
    assert [stored[stored_name] for stored_name in stored if stored_name not in ("overrides.txt", "files.json")] == [
        b"0",
        b"1",
        b"2",
    ]
    assert [path_problem(f"written/{stored_name}") for stored_name in stored] == [None] * 5
    assert len({stored_name.lower() for stored_name in stored}) == 5
    assert stored == written_files(SpecSources(files))


def test_stored_spec_files_are_bounded_and_omitted_files_are_listed() -> None:
    files = tuple(ReadFile(Path(f"/p/{number}.yaml"), bytes(MAX_WRITTEN // 4)) for number in range(6))
    stored = written_files(SpecSources(files))
    index = {entry["file"]: entry["kept"] for entry in json.loads(stored["files.json"])["files"]}
    assert [index[f"{number}.yaml"] for number in range(6)] == [True] * 4 + [False] * 2
    assert sum(map(len, stored.values())) < MAX_WRITTEN + 10_000


def test_environment_lock_lists_packages_by_version_only(tmp_path: Path) -> None:
    folder = RunFolder(run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results").folder.path)
    python_version, *lines = (folder.path / "inputs" / "environment.lock").read_text().splitlines()
    assert python_version == f"# Python {folder.manifest().python}"
    versions = dict(line.split("==") for line in lines)
    assert list(versions) == sorted(versions)
    for name in ("openai", "aiohttp", "orjson", "numpy", "pydantic", "jinja2", "markupsafe"):
        assert versions[name] == distribution(name).version
    assert versions["nip-run"] == __version__
    assert not {"pytest", "ruff", "mypy"} & versions.keys()
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.!+_-]+", line) for line in lines)


def test_environment_lock_does_not_depend_on_the_hash_seed() -> None:
    code = "from runner.results.provenance.sources_snapshot import environment_lock; print(environment_lock(), end='')"
    assert {python(code, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")} == {environment_lock()}
