"""`nip-run init`: its files run at once, pass `check`, and overwrite nothing."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import yaml

from runner.base.package_data import PROTOCOLS
from runner.cli.experiments import init
from runner.cli.experiments.init import COMMENT_COLUMN, add_arguments
from runner.cli.main import main
from runner.game.protocols.loader import load_protocol, protocol_editor_schema
from runner.results.default_folder import results_arguments
from runner.spec.schemas import editor_schema
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here

NAMES = ["adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier"]


def run_without_warnings(folder: Path, *arguments: str) -> str:
    process = nip_run_here(*arguments, cwd=folder)
    assert (process.returncode, "warning" in process.stderr) == (0, False), process.stderr
    return process.stdout


@pytest.mark.parametrize(
    "name", [name if name == "debate" else pytest.param(name, marks=pytest.mark.full) for name in NAMES]
)
def test_init_copies_the_built_in_protocol_with_a_spec_that_runs_at_once(tmp_path: Path, name: str) -> None:
    run_without_warnings(tmp_path, "init", "--protocol", name, "mine")
    mine = tmp_path / "mine"
    copied = (mine / f"{name}.yaml").read_text()
    first, _, rest = copied.partition("\n")
    assert first == "# yaml-language-server: $schema=protocol.schema.json"
    assert rest == (PROTOCOLS / f"{name}.yaml").read_text()
    for prompt in (ROOT / "prompts" / "code_validation" / name).iterdir():
        assert (mine / "prompts" / prompt.name).read_bytes() == prompt.read_bytes()
    assert "no errors" in run_without_warnings(mine, "check", "spec.yaml")
    run_without_warnings(mine, "spec.yaml", "-q")
    manifest = json.loads(next(mine.rglob("manifest.json")).read_text())
    assert (manifest["status"], manifest["protocol"], manifest["rollouts"]) == ("done", name, 20)


def test_check_gives_no_warning_about_a_new_project(tmp_path: Path) -> None:
    for folder, arguments in (("claims", ()), ("own", ("--protocol", "nip"))):
        run_without_warnings(tmp_path, "init", *arguments, folder)
        (checked,) = json.loads(run_without_warnings(tmp_path, "check", f"{folder}/spec.yaml", "--json"))
        assert checked["warnings"] == []


def test_every_protocol_about_programs_can_be_copied() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (protocol,) = [option for option in parser._actions if option.dest == "protocol"]
    assert sorted(name for name in protocol.choices or () if not load_protocol(name).lists_answers) == NAMES


def test_editor_schemas_are_written_next_to_the_spec_that_refers_to_them(tmp_path: Path) -> None:
    run_without_warnings(tmp_path, "init", "--protocol", "nip")
    for name, schema in (("experiment", editor_schema()), ("protocol", protocol_editor_schema())):
        assert json.loads((tmp_path / f"{name}.schema.json").read_text()) == json.loads(json.dumps(schema))
    for spec in ("spec.yaml", "nip.yaml"):
        line = (tmp_path / spec).read_text().partition("\n")[0]
        assert (tmp_path / line.partition("$schema=")[2]).is_file()


def test_commented_lines_for_a_real_model_pass_check(tmp_path: Path) -> None:
    run_without_warnings(tmp_path, "init")
    spec = tmp_path / "spec.yaml"
    text = spec.read_text()
    real = [line for line in text.splitlines() if line.startswith("  # model: ")]
    assert len(real) == 2
    dummy = next(line for line in text.splitlines() if line.startswith("  model: "))
    for line in real:
        spec.write_text(text.replace(dummy, line.replace("# ", "", 1)))
        assert "provider: dummy" not in yaml.safe_dump(yaml.safe_load(spec.read_text()))
        assert nip_run_here("check", "spec.yaml", cwd=tmp_path, OPENAI_API_KEY="sk-of-nobody").returncode == 0


@pytest.mark.parametrize("folder", ["mine", "a folder with quite a long name, deep/below another", "."])
def test_comments_are_aligned_and_quiet_prints_nothing(tmp_path: Path, folder: str) -> None:
    steps = run_without_warnings(tmp_path, "init", folder).partition("Next:\n")[2].splitlines()[:3]
    assert len({line.index("  # ") for line in steps}) == 1
    quiet_folder = tmp_path / folder / "other"
    assert run_without_warnings(tmp_path, "init", "--protocol", "merlin_arthur", "-q", str(quiet_folder)) == ""
    lines = [line for line in (quiet_folder / "spec.yaml").read_text().splitlines() if "  # CHANGE: " in line]
    assert len(lines) >= 4
    assert {line.index("# CHANGE") for line in lines} == {COMMENT_COLUMN}


def test_a_folder_whose_name_looks_like_an_option_is_printed_as_a_path(tmp_path: Path) -> None:
    output = json.loads(run_without_warnings(tmp_path, "init", "--json", "./-mine"))
    assert output["next"][0] == "cd ./-mine"
    assert results_arguments(Path("-mine")) == ["--results", "./-mine"]


def test_empty_folder_name_is_refused(tmp_path: Path) -> None:
    process = nip_run_here("init", "", cwd=tmp_path)
    assert process.returncode == 2
    assert "the folder name is empty; write `.` for the current folder" in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_init_overwrites_nothing_and_lists_all_existing_files(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("mine")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "prover.jinja").symlink_to("nowhere")
    process = nip_run_here("init", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert "these files exist: data.csv, prompts/prover.jinja" in process.stderr
    assert (tmp_path / "data.csv").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data.csv", "prompts", "prover.jinja"]
    assert json.loads(nip_run_here("init", "other", "--json", cwd=tmp_path).stdout)["files"][0] == "other/spec.yaml"


def test_full_disk_is_reported_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(init, "create_only", write)
    assert main(["init", str(tmp_path / "mine")]) == 1
    assert capsys.readouterr().err == f"cannot write to {tmp_path / 'mine'}: No space left on device\n"
