"""Trainer files: which are stored with a run, which are reported as missing, and how they are restored."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ReleaseError
from runner.models.api_keys import key_uses
from runner.results.folder import RunFolder
from runner.spec.trainer_files import INDEX, TrainerFiles, read_index
from runner.spec.training_settings import TrainerSettings
from runner.training import trainer_files
from runner.training.trainer_files import collect_files, restore_files, shown_files, stored_contents
from tests.support.training import run_training, training_spec


def make_trainer(*command: str, files: tuple[str, ...] | None = None) -> TrainerSettings:
    return TrainerSettings(backend="command", command=(*command, "{dataset}", "{model_file}"), files=files)


def missing_files(*command: str, files: tuple[str, ...] | None = None) -> list[str]:
    """List the missing files of a trainer, except its program."""
    collected = collect_files("p", make_trainer(*command, files=files), None)
    return [line for line in collected.missing if not line.startswith("the program")]


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "pack").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    Path("train.py").write_text("print(1)\n")
    Path("pack/a.py").write_text("")


def test_script_and_listed_folders_are_stored_without_hidden_and_compiled_files() -> None:
    for name in ("pack/.env", "pack/__pycache__/a.pyc", "pack/data/b.json"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("x")
    Path("train.py").chmod(0o755)
    collected = collect_files("p", make_trainer("python", "./train.py", files=("pack",)), None)
    assert {path: mode for path, (_, mode) in collected.contents.items()} == {
        "train.py": True, "pack/a.py": False, "pack/data/b.json": False
    }  # fmt: skip
    assert collected.missing == ["the program python: install python in a folder on the PATH"]


def test_program_in_the_current_folder_is_stored() -> None:
    Path("train.sh").write_text("#!/bin/sh\n")
    collected = collect_files("p", make_trainer("./train.sh"), None)
    assert (list(collected.contents), collected.missing) == (["train.sh"], [])


def test_files_outside_the_current_folder_are_reported_and_not_stored(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("")
    Path("link.py").symlink_to(tmp_path / "secret.py")
    reason = "not stored; only files in the current folder of nip-run, named by a relative path, are stored"
    assert missing_files("python", str(tmp_path / "secret.py")) == [f"secret.py: {reason}"]
    assert missing_files("python", "../secret.py") == [f"../secret.py: {reason}"]
    assert missing_files("python", "link.py") == [
        "link.py: this is a link, which nip-run does not follow here; remove it"
    ]
    assert missing_files("python", "train.py", files=("gone.json",)) == ["gone.json: No such file or directory"]
    assert missing_files("python", "train.py", files=(".env",)) == [
        ".env: not stored, because releases do not allow this file name; rename the file"
    ]  # fmt: skip


def test_used_but_unlisted_files_are_reported() -> None:
    Path("train.py").write_text("import json, helper\nfrom pack.a import x\n")
    Path("helper.py").write_text("import train\n")
    Path("settings.json").write_text("{}")
    reason = "not stored, although the trainer uses this file; add it to `files`"
    assert missing_files("python", "train.py", "--settings=settings.json") == [
        f"settings.json: {reason}", f"helper.py: {reason}", f"pack: {reason}"
    ]  # fmt: skip
    assert missing_files("python", "-m", "helper") == [f"helper.py: {reason}"]
    assert missing_files("python", "train.py", "settings.json", files=("helper.py", "pack", "settings.json")) == []


def test_files_beyond_the_limits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_files, "MAX_TRAINER_FILES", 1)
    Path("pack/b.py").write_text("")
    assert missing_files("python", "train.py", files=("pack",)) == [
        "pack/a.py: at most 200 files of 16 MiB in total can be stored; list fewer in `files`"
    ]  # fmt: skip


def store_files(folder: Path) -> TrainerFiles:
    """Store the files of a trainer in a folder, as a release does."""
    collected = collect_files("p", make_trainer("python", "train.py", files=("pack",)), None)
    for name, data in stored_contents({"p": collected}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return read_index(folder)["p"]


def test_stored_files_are_restored_with_their_names_and_modes(tmp_path: Path) -> None:
    Path("train.py").chmod(0o755)
    files = store_files(tmp_path / "stored")
    assert not list((tmp_path / "stored").rglob("*.py"))
    folder = restore_files(files, RunFolder(tmp_path / "run"), "mine")
    assert folder == tmp_path / "run" / "trainers" / "mine"
    modes = {path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777 for path in folder.rglob("*.py")}
    assert modes == {"train.py": 0o755, "pack/a.py": 0o644}


def test_changed_stored_file_is_rejected_by_name(tmp_path: Path) -> None:
    files = store_files(tmp_path / "stored")
    (tmp_path / "stored" / "p" / "train.py.txt").write_text("print(2)\n")
    with pytest.raises(ReleaseError, match=r"train\.py\.txt was changed after it was stored"):
        restore_files(files, RunFolder(tmp_path / "run"), "mine")


@pytest.mark.parametrize("path", ["../evil.py", "/evil.py", "a/../../evil.py", ".bashrc", ""])
def test_index_with_a_path_outside_its_folder_is_rejected(tmp_path: Path, path: str) -> None:
    entry = {"files": {path: {"sha256": "0" * 64, "size": 1, "executable": True}}, "missing": []}
    (tmp_path / INDEX).write_text(json.dumps({"format": 1, "trainers": {"p": entry}}))
    with pytest.raises(ReleaseError, match="is not a path that a trainer's file may have"):
        read_index(tmp_path)


@pytest.mark.parametrize("content", [[], {}, {"format": 1, "trainers": []}, {"format": 1, "trainers": {"p": {}}}, "x"])
def test_damaged_index_is_rejected_by_name(tmp_path: Path, content: Any) -> None:
    (tmp_path / INDEX).write_text(json.dumps(content))
    with pytest.raises(ReleaseError, match=r"trainers\.json is damaged"):
        read_index(tmp_path)


def test_start_of_a_script_is_shown_without_control_characters(tmp_path: Path) -> None:
    Path("train.py").write_text("\x1b[2Jevil\n" + "more\n" * 50)
    lines = list(shown_files(store_files(tmp_path / "stored"), ["python", "./train.py"]))
    assert lines[0].startswith("trainer p: train.py: 259 bytes, sha256:")
    assert lines[1] == "  | \\x1b[2Jevil"
    assert f"  | ... and {51 - trainer_files.SHOWN_LINES} more lines" in lines
    assert any(line.startswith("trainer p: pack/a.py: ") for line in lines)


def test_executed_script_is_shown_regardless_of_its_position_in_the_index(tmp_path: Path) -> None:
    Path("train.py").write_text("evil = 1\n")
    files = store_files(tmp_path / "stored")
    reordered = replace(files, files=dict(reversed(list(files.files.items()))))
    assert "  | evil = 1" in list(shown_files(reordered, ["python", "train.py"]))
    assert "the script is not among these files" in next(shown_files(reordered, ["python", "-m", "train"]))


def test_groups_with_one_command_show_the_files_of_both() -> None:
    command = ["python", "train.py"]
    (use,) = key_uses((), [(command, ["trainer p: train.py: 1"]), (command, ["trainer v: train.py: 2"])])
    assert use.files == ("trainer p: train.py: 1", "trainer v: train.py: 2")


@pytest.mark.full
def test_file_changed_between_iterations_is_stored_again_and_reported(tmp_path: Path) -> None:
    Path("train.py").write_text("import sys\nopen(sys.argv[2], 'w').write('dummy:' + str(len(sys.argv[0])))\n")
    command = [sys.executable, "train.py", "{dataset}", "{model_file}"]
    own_trainer = {"backend": "command", "command": command, "poll_seconds": 0.02}
    path = training_spec(Path(), training={
        "iterations": 1, "trainers": {"p": own_trainer}, "selection": {"reward_threshold": -9.0},
        "test": {"scheme": "none"},
    })  # fmt: skip
    results = tmp_path / "results"
    run_training(path, results, run_id="learn")
    trainers_folder = results / "runs" / "learn" / "inputs" / "trainers"
    before = read_index(trainers_folder)["p"]
    Path("train.py").write_text("import sys\nopen(sys.argv[2], 'w').write('dummy:other')\n")
    run_training(path, results, "training.iterations=2", run_id="learn")
    after = read_index(trainers_folder)["p"]
    assert after.files["train.py"]["sha256"] != before.files["train.py"]["sha256"]
    assert after.read("train.py") == Path("train.py").read_bytes()
    change = "an earlier version of train.py: this file was changed after an iteration had used it"
    assert (change in before.missing, after.missing.count(change)) == (False, 1)
