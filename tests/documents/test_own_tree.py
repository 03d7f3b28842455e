"""Files that are not a spec's own: read up to a bound, and never quoted."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from runner.base import package_data
from runner.base.errors import SpecError
from runner.base.problems import Problem
from runner.cli.terminal.errors import error_lines
from runner.documents.layer_loading import load_layers
from runner.documents.source_tree import ProjectTree
from runner.spec.loader import load_spec
from runner.spec.schemas import experiment_schema
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file

SECRET = "hunter2"
FOREIGN = {
    "passwords": f"root:{SECRET}:0:0\ndaemon:{SECRET}:1:1\n",
    "keys": f"{SECRET}: value\n{SECRET}more: 1\n",
    "key below": f"name: fine\nmodels: {{{SECRET}: {{{SECRET}: 1}}}}\n",
    "value": f"seed: {SECRET}\n",
    "YAML": f"a: [{SECRET}\nb: {SECRET}]: }}\n",
    "alias": f"a: &{SECRET} 1\nb: *{SECRET}\n",
    "tag": f"a: !{SECRET} 1\n",
    "interpolation": f"name: ${{oc.env:{SECRET}}}\n",
    "bytes": f"{SECRET}: \udcff\n",
    "base": f"extends: {SECRET}.yaml\n",
    "double": f"{SECRET}: 1\n{SECRET}: 2\n",
    "text": f"{SECRET}\n",
    "list": f"- {SECRET}\n",
}
"""What another file may hold, and where its text came out with a message."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A file beside the spec's folder."""
    (tmp_path / "project").mkdir()
    (tmp_path / "private").mkdir()
    return tmp_path / "private" / "secret.yaml"


def problems(spec: Path, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as raised:
        load_spec(spec, overrides)
    return raised.value.problems


def foreign_spec(project: Path, **changes: Any) -> Path:
    spec = spec_file(project, **changes)
    (project / "data").mkdir(exist_ok=True)
    return spec


@pytest.mark.sample(23)
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_no_text_of_another_file_is_in_a_message(elsewhere: Path, name: str, linked: bool) -> None:
    project = elsewhere.parent.with_name("project")
    elsewhere.write_bytes(FOREIGN[name].encode("utf-8", "surrogateescape"))
    if linked:
        (project / "base.yaml").symlink_to(elsewhere)
    spec = foreign_spec(project, extends="base.yaml" if linked else "../private/secret.yaml", seed=None)
    found = problems(spec)
    assert SECRET not in "\n".join(map(str, found))
    assert any(problem.place.file.endswith(("base.yaml", "secret.yaml")) for problem in found)
    assert all("outside the folder tree of the spec" in problem.message for problem in found if problem.key == "")
    done = nip_run_here("check", spec, cwd=project)
    assert (done.returncode, SECRET in done.stdout + done.stderr) == (2, False)


def test_the_place_and_the_kind_of_an_error_are_said(elsewhere: Path) -> None:
    elsewhere.write_text(f"\n\n{SECRET}: 1\n")
    (found,) = problems(foreign_spec(elsewhere.parent.with_name("project"), extends="../private/secret.yaml"))
    assert (found.place.line, found.key) == (3, "")
    assert found.message.startswith("unknown key; its text is not shown, because the file is outside")


@pytest.mark.parametrize("kind", ["keys", "base and key"])
def test_nothing_is_taken_of_another_file_that_is_no_spec(elsewhere: Path, kind: str) -> None:
    elsewhere.write_text({**FOREIGN, "base and key": f"{SECRET}: 1\nextends: more.yaml\n"}[kind])
    elsewhere.with_name("more.yaml").write_text("name: theirs\n")
    spec = foreign_spec(elsewhere.parent.with_name("project"), extends="../private/secret.yaml")
    layered = load_layers(spec, "spec.yaml", (), package_data.find_file, keys=experiment_schema()["properties"])
    assert SECRET not in str(layered.data)
    assert [Path(file).name for file in layered.files] == ["spec.yaml", "secret.yaml"]


def test_a_name_from_another_file_is_no_hint(elsewhere: Path) -> None:
    elsewhere.write_text(f"{SECRET}: 1\n")
    spec = foreign_spec(elsewhere.parent.with_name("project"), extends="../private/secret.yaml")
    for override in (f"~{SECRET[:-1]}", "name=${" + SECRET[:-1] + "}"):
        assert SECRET not in "\n".join(str(p) for p in problems(spec, override)).replace(override, "")


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"seed": "${description}"},
        {"seed": "${models.other.model}"},
        {"seed": "${models.hunter}"},
        {"prompts": "${description}"},
        {"protocol": {"use": "${description}", "max_message_rounds": None}},
        {"dataset": {"path": "${description}"}},
        {"dataset": {"path": "data.jsonl", "split": "${description}"}},
        {"agents": {"prover": {"model": "nope"}}},
        {"models": {"m": {"model": "${description}", "temperature": "${description}"}}},
        {"cache": "/dev/null/${description}"},
        {"max_sweep_points": 1, "sweep": {"seed": [1, 2], "description": ["${description}", "x"]}},
        {"sweep": {"seed": ["${description}", 2]}},
    ],
)
def test_no_text_that_came_by_way_of_another_file_is_told(elsewhere: Path, changes: dict[str, Any]) -> None:
    elsewhere.write_text(f"description: {SECRET}\nmodels: {{other: {{model: {SECRET}}}, {SECRET}: {{model: x}}}}\n")
    project = elsewhere.parent.with_name("project")
    found = problems(foreign_spec(project, extends="../private/secret.yaml", **changes))
    assert SECRET not in "\n".join(map(str, found))
    assert all("outside the folder tree of the spec" in problem.message for problem in found)


@pytest.mark.parametrize("override", [f"~models.{SECRET[:-1]}", "description.x=1"])
def test_an_override_tells_nothing_of_another_file(elsewhere: Path, override: str) -> None:
    elsewhere.write_text(f"description: {SECRET}\nmodels: {{{SECRET}: {{model: x}}}}\n")
    spec = foreign_spec(elsewhere.parent.with_name("project"), extends="../private/secret.yaml")
    assert SECRET not in "\n".join(str(p) for p in problems(spec, override))


def test_a_value_that_is_wholly_the_specs_own_is_told(elsewhere: Path) -> None:
    elsewhere.write_text(f"description: {SECRET}\n")
    spec = foreign_spec(
        elsewhere.parent.with_name("project"), extends="../private/secret.yaml",
        seed="seven", rolouts={},
    )  # fmt: skip
    found = "\n".join(map(str, problems(spec)))
    assert "seed: a whole number belongs here, not 'seven'" in found
    assert "did you mean 'rollouts'?" in found


def test_a_template_from_elsewhere_is_not_quoted(elsewhere: Path) -> None:
    project = elsewhere.parent.with_name("project")
    (project / "prompts").mkdir()
    for name, text in (("prover", f"{{{{ {SECRET} }}}}"), ("verifier", f"{{% {SECRET} %}}")):
        (elsewhere.parent / name).write_text(text)
        (project / "prompts" / f"{name}.jinja").symlink_to(elsewhere.parent / name)
    found = "\n".join(map(str, problems(foreign_spec(project, prompts="prompts"))))
    assert SECRET not in found
    assert "prover.jinja:1:" in found
    assert "verifier.jinja:1:" in found


def test_a_protocol_from_elsewhere_is_not_quoted(elsewhere: Path) -> None:
    elsewhere.write_text(f"extends: nip\n{SECRET}: 1\n")
    project = elsewhere.parent.with_name("project")
    found = problems(foreign_spec(project, protocol={"use": "../private/secret.yaml", "max_message_rounds": None}))
    assert SECRET not in "\n".join(map(str, found))
    assert any("unknown key; its text is not shown" in problem.message for problem in found)


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [f'{{"{SECRET}": 1}}\n', f"{SECRET}\n", f'{{"id": "{SECRET}", "label": 7, "question": "", "solution": ""}}\n'],
)
def test_a_dataset_from_elsewhere_is_quoted_if_the_user_names_it(elsewhere: Path, text: str) -> None:
    data = elsewhere.with_suffix(".jsonl")
    data.write_text(text)
    spec = foreign_spec(elsewhere.parent.with_name("project"), dataset={"path": f"../private/{data.name}"})
    (found,) = problems(spec)
    assert SECRET not in str(found)
    assert found.message.startswith("dataset.path: ")
    assert SECRET not in str(problems(spec, "dataset.path=../private/nothing.jsonl"))
    assert "is not shown" not in str(problems(spec, f"dataset.path={data}"))


def rows_elsewhere(elsewhere: Path, column: str, value: Any) -> Path:
    data = elsewhere.with_suffix(".jsonl")
    row = {"label": 1, "question": "x", "solution": "x", column: value}
    data.write_text("".join(json.dumps({"id": f"{SECRET}{number}", **row}) + "\n" for number in range(2)))
    return data


def test_no_id_of_a_dataset_from_elsewhere_is_told(elsewhere: Path) -> None:
    data = rows_elsewhere(elsewhere, "question", None)
    spec = foreign_spec(elsewhere.parent.with_name("project"), dataset={"path": f"../private/{data.name}"})
    (found,) = problems(spec)
    assert SECRET not in str(found)
    assert "a template shows a column without text or numbers; its text is not shown" in found.message
    assert f"{SECRET}0, {SECRET}1" in str(problems(spec, f"dataset.path={data}"))


def test_no_column_of_a_dataset_from_elsewhere_is_a_hint(elsewhere: Path) -> None:
    data = rows_elsewhere(elsewhere, f"{SECRET}_pay", "x")
    project = elsewhere.parent.with_name("project")
    (project / "prompts").mkdir()
    for name, variable in (("prover", f"{SECRET}_pa"), ("verifier", "agent_nam")):
        (project / "prompts" / f"{name}.jinja").write_text(f"{{{{ {variable} }}}}")
    spec = foreign_spec(project, prompts="prompts", dataset={"path": f"../private/{data.name}"})
    told = "\n".join(map(str, problems(spec)))
    assert f"{SECRET}_pay" not in told
    assert "did you mean 'agent_name'?" in told
    assert f"did you mean '{SECRET}_pay'?" in "\n".join(map(str, problems(spec, f"dataset.path={data}")))


def test_no_datapoint_of_a_dataset_from_elsewhere_is_told_by_the_splits(elsewhere: Path) -> None:
    data = rows_elsewhere(elsewhere, "split", "train")
    data.write_text(data.read_text().replace('"train"', '"test"', 1))
    spec = foreign_spec(
        elsewhere.parent.with_name("project"),
        dataset={"path": f"../private/{data.name}", "split": "train"},
        kind="training",
        training={"method": "expert_iteration", "test": {"split": "test"}, "trainers": {"m": {"backend": "files"}}},
    )
    told = "\n".join(map(str, problems(spec)))
    assert "training.test.split: some datapoints are also trained on" in told
    assert SECRET not in told
    assert f"{SECRET}0" in "\n".join(map(str, problems(spec, f"dataset.path={data}")))


# What is read at all


@pytest.mark.parametrize("kind", ["/dev/zero", "FIFO", "large"])
def test_what_has_no_end_is_not_read(elsewhere: Path, kind: str) -> None:
    if kind == "FIFO":
        os.mkfifo(elsewhere)
    elif kind == "large":
        elsewhere.write_bytes(b"#" * (300 << 10))
    named = "/dev/zero" if kind == "/dev/zero" else "../private/secret.yaml"
    (found,) = problems(foreign_spec(elsewhere.parent.with_name("project"), extends=named))
    said = "larger than 256 KiB" if kind == "large" else "cannot read the file: not a regular file"
    assert said in found.message


def test_a_protocol_that_has_no_end_is_not_read(elsewhere: Path) -> None:
    os.mkfifo(elsewhere)
    changes = {"use": "../private/secret.yaml", "max_message_rounds": None}
    found = problems(foreign_spec(elsewhere.parent.with_name("project"), protocol=changes))
    assert any("not a regular file" in problem.message for problem in found)


@pytest.mark.parametrize("kind", ["/dev/zero", "FIFO"])
def test_a_template_that_has_no_end_is_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "prompts").mkdir()
    for name in ("prover", "verifier"):
        path = tmp_path / "prompts" / f"{name}.jinja"
        if kind == "FIFO":
            os.mkfifo(path)
        else:
            path.symlink_to(kind)
    found = problems(spec_file(tmp_path, prompts="prompts"))
    assert sum("not a regular file" in problem.message for problem in found) == 2


# Which files are a spec's own


def test_a_misspelt_key_of_a_base_in_the_project_gets_its_hint(elsewhere: Path) -> None:
    """The current folder, and a git checkout, hold what a spec below them extends."""
    elsewhere.write_text("rolouts: {concurrency: 3}\n")
    root = elsewhere.parent.parent
    spec = foreign_spec(root / "project", extends="../private/secret.yaml")
    (hidden,) = problems(spec)
    assert "rolouts" not in str(hidden)
    with chdir(root):
        (told,) = problems(spec)
    assert (told.key, "did you mean 'rollouts'?" in told.message) == ("rolouts", True)
    subprocess.run(["git", "init", "-q", root], check=True)
    assert [problem.message for problem in problems(spec)] == [told.message]


def test_what_ships_with_the_package_is_always_shown(tmp_path: Path) -> None:
    (found,) = problems(spec_file(tmp_path, protocol={"use": "nip", "max_message_rounds": 1, "min_message_rounds": 3}))
    assert "is more than max_message_rounds" in found.message


def test_the_home_folder_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    spec = home / "downloads" / "spec.yaml"
    spec.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for made in (home / ".git", tmp_path / ".git"):
        made.mkdir()
        with chdir(home):
            assert ProjectTree.of(spec).root == spec.parent.resolve()
    with chdir(spec.parent):
        assert ProjectTree.of(Path("spec.yaml")).contains(spec)
        assert not ProjectTree.of(Path("spec.yaml")).contains(home / ".ssh" / "config")


def test_the_nearer_of_the_current_folder_and_the_checkout_counts(tmp_path: Path) -> None:
    spec = tmp_path / "a" / "b" / "c" / "spec.yaml"
    spec.parent.mkdir(parents=True)
    (tmp_path / "a" / ".git").mkdir()
    assert ProjectTree.of(spec).root == (tmp_path / "a").resolve()
    with chdir(tmp_path / "a" / "b"):
        assert ProjectTree.of(spec).root == (tmp_path / "a" / "b").resolve()
    with chdir(tmp_path):
        assert ProjectTree.of(spec).root == (tmp_path / "a").resolve()


@pytest.mark.parametrize(
    "changes",
    [
        {"extends": "../private/secrt.yaml"},
        {"dataset": {"path": "../private/secrt.jsonl"}},
        {"prompts": "../private/secrts"},
    ],
    ids=str,
)
def test_no_name_of_a_file_elsewhere_is_a_hint(elsewhere: Path, changes: dict[str, Any]) -> None:
    for name in ("secret.yaml", "secret.jsonl"):
        elsewhere.with_name(name).write_text("")
    elsewhere.with_name("secrets").mkdir()
    told = "\n".join(map(str, problems(foreign_spec(elsewhere.parent.with_name("project"), **changes))))
    assert "secret" not in told
    assert "relative to the folder of the file that" in told


def test_the_line_of_a_file_elsewhere_is_not_shown(elsewhere: Path) -> None:
    elsewhere.write_text(f"seed: 1 # {SECRET}\nrolouts: 1 # {SECRET}\n")
    spec = foreign_spec(elsewhere.parent.with_name("project"), extends="../private/secret.yaml", seed=None)
    found = problems(spec)
    assert all(problem.place.source is None for problem in found)
    assert SECRET not in "\n".join(line for problem in found for line in error_lines(SpecError([problem])))
    with chdir(elsewhere.parent.parent):
        assert any(problem.place.source == f"rolouts: 1 # {SECRET}" for problem in problems(spec))
