"""What a run keeps of its beginning: the spec as written, where its parts came from, its packages."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from runner.api import load_spec, load_specs, run
from runner.documents.merged_data import ReadFile
from runner.documents.releases.paths import path_problem
from runner.results.folder import RunFolder
from runner.results.provenance.file_pins import CHANGED, NO_REMOTE
from runner.results.provenance.packages import environment_lock
from runner.results.provenance.sources_snapshot import MAX_WRITTEN, written_files
from runner.runs.finished.selection import ReplayOf
from runner.spec.source_files import SpecSources
from runner.version import __version__
from tests.support.git_repositories import commit_and_push, commit_folder
from tests.support.processes import python
from tests.support.runs import run_spec
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec


def read_written_inputs(run_folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run_folder / "inputs" / "written").iterdir())}


def manifest_of(run_folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_folder / "manifest.json").read_text())
    return found


def extended(folder: Path) -> Path:
    """A spec that extends a file of its own, in another folder, and a built-in one."""
    base = spec_file(folder, size=2, fine_tune=None)
    (folder / "bases").mkdir()
    (folder / "bases" / "spec.yaml").write_bytes(b"\xef\xbb\xbf# mine\r\n" + base.read_bytes())
    (folder / "bases" / "data.jsonl").write_bytes((folder / "data.jsonl").read_bytes())
    own = "seed: 3\ndataset: {group_by: null, split: null}\n"
    base.write_text(f"extends: [base/offline.yaml, bases/spec.yaml]   # two\n{own}")
    return base


def test_every_file_of_a_spec_is_kept_by_its_bytes_and_what_comes_with_nip_run_by_its_name(tmp_path: Path) -> None:
    spec = extended(tmp_path)
    run_folder = run_spec(spec, tmp_path / "results", "seed=4", "+models.m.temperature=0.5").folder.path
    found = read_written_inputs(run_folder)
    assert found["spec.yaml"] == spec.read_bytes()
    assert found["spec-2.yaml"] == (tmp_path / "bases" / "spec.yaml").read_bytes()
    assert found["overrides.txt"] == b"seed=4\n+models.m.temperature=0.5\n"
    assert json.loads(found["files.json"]) == {
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
    assert len(found) == 4
    assert str(tmp_path).encode() not in b"".join(found.values())


@pytest.mark.full
def test_each_point_of_a_sweep_says_which_it_is(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2, fine_tune=None, sweep={"seed": [1, 2], "models.m": [{"provider": "dummy"}]})
    for point in load_specs(spec, ["votes=3"]):
        overrides = (
            read_written_inputs(run(point, tmp_path / "results").folder.path)["overrides.txt"].decode().splitlines()
        )
        assert overrides == ["votes=3", "sweep={}", f"seed={point.experiment.seed}", "models.m={provider: dummy}"]
        again = [one for one in overrides if not one.startswith("votes")]
        assert load_spec(spec, [*again, "votes=3"]).experiment == point.experiment


def test_a_mapping_given_in_python_has_no_file_and_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.loads(spec_file(tmp_path, size=2, fine_tune=None).read_text())
    commit_and_push(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = run(load_spec(said, {"seed": 5, "description": "a: b"}), tmp_path / "results").folder.path
    assert set(read_written_inputs(folder)) == {"overrides.txt", "files.json"}
    assert read_written_inputs(folder)["overrides.txt"] == b'seed=5\ndescription="a: b"\n'
    assert {name: one["clean"] for name, one in manifest_of(folder)["sources"].items()} == {
        "protocol": True, "prompts": True, "dataset": True,
    }  # fmt: skip


@pytest.mark.full
def test_a_run_says_which_commit_each_part_is_in_and_keeps_it_when_it_goes_on(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4, fine_tune=None)
    prompts = shutil.copytree("prompts/code_validation/nip", tmp_path / "prompts" / "mine")
    spec.write_text(spec.read_text().replace("prompts/code_validation/nip", "prompts/mine"))
    commit = commit_and_push(tmp_path)
    first = run_spec(spec, tmp_path / "results", "dataset.limit=2", run_id="mine").folder
    began = manifest_of(first.path)["sources"]
    for part, path in (("spec", "spec.yaml"), ("prompts", "prompts/mine"), ("dataset", "data.jsonl")):
        assert (began[part]["commit"], began[part]["path"], began[part]["clean"]) == (commit, path, True)
    before = read_written_inputs(first.path), (first.path / "inputs" / "environment.lock").read_bytes()
    spec.write_text(spec.read_text() + "\n")
    (tmp_path / "unused.txt").write_text("x")
    run_spec(spec, tmp_path / "results", run_id="mine")
    assert manifest_of(first.path)["rollouts"] == 4
    assert manifest_of(first.path)["sources"] == began
    assert (read_written_inputs(first.path), (first.path / "inputs" / "environment.lock").read_bytes()) == before
    (prompts / "notes.txt").write_text("no template")
    again = manifest_of(run_spec(spec, tmp_path / "results", run_id="another").folder.path)["sources"]
    assert (again["spec"]["why"], again["prompts"]["clean"]) == (CHANGED, True)


@pytest.mark.full
def test_nothing_of_it_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    hashes = []
    for name in ("plain", "in_git", "split"):
        (tmp_path / name).mkdir()
        spec = spec_file(tmp_path / name, size=2, fine_tune=None)
        if name == "in_git":
            commit_folder(tmp_path / name)
        if name == "split":
            spec.rename(tmp_path / name / "base.yaml")
            spec.write_text("extends: base.yaml\n")
        manifest = manifest_of(run_spec(spec, tmp_path / name / "results").folder.path)
        hashes.append([manifest[one] for one in ("run_id", "identity", "game_sha256", "spec_sha256")])
        if name == "in_git":
            assert manifest["sources"]["spec"]["why"] == NO_REMOTE
    assert hashes[0] == hashes[1] == hashes[2]


@pytest.mark.full
def test_the_parts_of_a_training_run_have_what_it_began_with(tmp_path: Path) -> None:
    spec = training_spec(tmp_path, training={"iterations": 1})
    commit_and_push(tmp_path, "spec.yaml", "data.jsonl")
    folder = run_training(spec, tmp_path / "results").folder
    part = folder.path.with_name(f"{folder.run_id}-i0")
    assert manifest_of(part)["sources"] == manifest_of(folder.path)["sources"]
    assert manifest_of(part)["sources"]["spec"]["clean"]
    assert read_written_inputs(part)["spec.yaml"] == read_written_inputs(folder.path)["spec.yaml"] == spec.read_bytes()


@pytest.mark.full
def test_a_run_that_was_begun_without_any_goes_on_without_any(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4, fine_tune=None)
    folder = run_spec(spec, tmp_path / "results", "dataset.limit=2", run_id="mine").folder.path
    shutil.rmtree(folder / "inputs" / "written")
    (folder / "inputs" / "environment.lock").unlink()
    said = manifest_of(folder)
    del said["sources"]
    (folder / "manifest.json").write_text(json.dumps(said))
    run_spec(spec, tmp_path / "results", run_id="mine")
    assert manifest_of(folder)["rollouts"] == 4
    assert "sources" not in manifest_of(folder)
    assert not (folder / "inputs" / "environment.lock").exists()


@pytest.mark.full
def test_a_replay_has_its_own_beginning(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2, fine_tune=None)
    first = run_spec(spec, tmp_path / "results").folder
    replay = run_spec(spec, tmp_path / "results", replay=ReplayOf(first.path, None)).folder
    assert read_written_inputs(replay.path) == read_written_inputs(first.path)


@pytest.mark.parametrize(
    "name",
    ["con.yaml", ".hidden.yaml", "with space.yaml", "é.yaml", "x" * 300 + ".yaml", "end.", "release.json", "-", "a\nb"],
)
def test_whatever_a_file_is_called_it_is_kept_under_a_name_of_a_release(name: str) -> None:
    files = tuple(ReadFile(Path(f"/p{number}/{name}"), b"%d" % number) for number in range(3))
    found = written_files(SpecSources(files))
    assert len(found) == 5
    assert [found[one] for one in found if one not in ("overrides.txt", "files.json")] == [b"0", b"1", b"2"]
    assert [path_problem(f"written/{one}") for one in found] == [None] * 5
    assert len({one.lower() for one in found}) == 5
    assert found == written_files(SpecSources(files))


def test_what_is_kept_is_bounded_and_what_is_left_out_is_named() -> None:
    files = tuple(ReadFile(Path(f"/p/{number}.yaml"), bytes(MAX_WRITTEN // 4)) for number in range(6))
    found = written_files(SpecSources(files))
    index = {one["file"]: one["kept"] for one in json.loads(found["files.json"])["files"]}
    assert [index[f"{number}.yaml"] for number in range(6)] == [True] * 4 + [False] * 2
    assert sum(map(len, found.values())) < MAX_WRITTEN + 10_000


def test_the_packages_stand_by_their_versions_alone(tmp_path: Path) -> None:
    folder = RunFolder(run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results").folder.path)
    python_version, *lines = (folder.path / "inputs" / "environment.lock").read_text().splitlines()
    assert python_version == f"# Python {folder.manifest().python}"
    found = dict(line.split("==") for line in lines)
    assert list(found) == sorted(found)
    for name in ("openai", "aiohttp", "orjson", "numpy", "pydantic", "jinja2", "markupsafe"):
        assert found[name] == distribution(name).version
    assert found["nip-run"] == __version__
    assert not {"pytest", "ruff", "mypy"} & found.keys()
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.!+_-]+", line) for line in lines)


def test_the_packages_are_the_same_whatever_the_hash_seed() -> None:
    code = "from runner.results.provenance.packages import environment_lock; print(environment_lock(), end='')"
    assert {python(code, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")} == {environment_lock()}
