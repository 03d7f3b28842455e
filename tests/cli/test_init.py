"""`nip-run init`: what it writes plays at once, passes the check, and takes nothing's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from runner.base.package_data import PROTOCOLS
from runner.cli.experiments.init import COMMENT_COLUMN, add_arguments
from runner.game.protocols.loader import load_protocol, protocol_editor_schema
from runner.spec.schemas import editor_schema
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here

NAMES = ["adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier"]


def run_without_warnings(folder: Path, *words: str) -> str:
    done = nip_run_here(*words, cwd=folder)
    assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name", [name if name == "debate" else pytest.param(name, marks=pytest.mark.full) for name in NAMES]
)
def test_a_copied_protocol_is_the_built_in_one_and_plays_at_once(tmp_path: Path, name: str) -> None:
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


def test_check_warns_about_no_starter(tmp_path: Path) -> None:
    for folder, words in (("claims", ()), ("own", ("--protocol", "nip"))):
        run_without_warnings(tmp_path, "init", *words, folder)
        (checked,) = json.loads(run_without_warnings(tmp_path, "check", f"{folder}/spec.yaml", "--json"))
        assert checked["warnings"] == []


def test_every_protocol_about_programs_can_be_copied() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (protocol,) = [option for option in parser._actions if option.dest == "protocol"]
    assert sorted(name for name in protocol.choices or () if not load_protocol(name).lists_answers) == NAMES


def test_the_schemas_for_editors_stand_beside_the_spec_that_names_them(tmp_path: Path) -> None:
    run_without_warnings(tmp_path, "init", "--protocol", "nip")
    for name, schema in (("experiment", editor_schema()), ("protocol", protocol_editor_schema())):
        assert json.loads((tmp_path / f"{name}.schema.json").read_text()) == json.loads(json.dumps(schema))
    for spec in ("spec.yaml", "nip.yaml"):
        line = (tmp_path / spec).read_text().partition("\n")[0]
        assert (tmp_path / line.partition("$schema=")[2]).is_file()


def test_the_lines_for_a_real_model_are_ones_that_a_spec_may_have(tmp_path: Path) -> None:
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
def test_comments_stand_below_each_other_and_quiet_says_nothing(tmp_path: Path, folder: str) -> None:
    steps = run_without_warnings(tmp_path, "init", folder).partition("Next:\n")[2].splitlines()[:3]
    assert len({line.index("  # ") for line in steps}) == 1
    other = tmp_path / folder / "other"
    assert run_without_warnings(tmp_path, "init", "--protocol", "merlin_arthur", "-q", str(other)) == ""
    lines = [line for line in (other / "spec.yaml").read_text().splitlines() if "  # CHANGE: " in line]
    assert len(lines) >= 4
    assert {line.index("# CHANGE") for line in lines} == {COMMENT_COLUMN}


def test_an_empty_name_is_no_folder(tmp_path: Path) -> None:
    done = nip_run_here("init", "", cwd=tmp_path)
    assert done.returncode == 2
    assert "the folder name is empty; write `.` for the current folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_all_that_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("mine")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "prover.jinja").symlink_to("nowhere")
    done = nip_run_here("init", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "these files exist: data.csv, prompts/prover.jinja" in done.stderr
    assert (tmp_path / "data.csv").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data.csv", "prompts", "prover.jinja"]
    assert json.loads(nip_run_here("init", "other", "--json", cwd=tmp_path).stdout)["files"][0] == "other/spec.yaml"
