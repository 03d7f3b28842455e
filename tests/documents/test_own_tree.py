"""Foreign files, outside the folder tree of a spec, are read up to a bound and never quoted."""

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
from runner.documents.merged_data import KeyRules
from runner.documents.source_tree import ProjectTree
from runner.spec.loader import load_spec
from runner.spec.schemas import experiment_schema
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file

SECRET = "hunter2"
FOREIGN_TEXTS = {
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
"""Contents of foreign files, chosen so that an error message could quote them."""


@pytest.fixture
def foreign_file(tmp_path: Path) -> Path:
    """A file next to the spec's folder."""
    (tmp_path / "project").mkdir()
    (tmp_path / "private").mkdir()
    return tmp_path / "private" / "secret.yaml"


def load_with_problems(spec: Path, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as raised:
        load_spec(spec, overrides)
    return raised.value.problems


def write_spec(project: Path, **changes: Any) -> Path:
    spec = spec_file(project, **changes)
    (project / "data").mkdir(exist_ok=True)
    return spec


@pytest.mark.sample(23)
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("name", FOREIGN_TEXTS)
def test_messages_contain_no_text_of_a_foreign_file(foreign_file: Path, name: str, linked: bool) -> None:
    project = foreign_file.parent.with_name("project")
    foreign_file.write_bytes(FOREIGN_TEXTS[name].encode("utf-8", "surrogateescape"))
    if linked:
        (project / "base.yaml").symlink_to(foreign_file)
    spec = write_spec(project, extends="base.yaml" if linked else "../private/secret.yaml", seed=None)
    problems_found = load_with_problems(spec)
    assert SECRET not in "\n".join(map(str, problems_found))
    assert any(problem.place.file.endswith(("base.yaml", "secret.yaml")) for problem in problems_found)
    assert all(
        "outside the folder tree of the spec" in problem.message for problem in problems_found if problem.key == ""
    )
    done = nip_run_here("check", spec, cwd=project)
    assert (done.returncode, SECRET in done.stdout + done.stderr) == (2, False)


def test_error_in_a_foreign_file_has_its_place_and_kind(foreign_file: Path) -> None:
    foreign_file.write_text(f"\n\n{SECRET}: 1\n")
    (problem,) = load_with_problems(
        write_spec(foreign_file.parent.with_name("project"), extends="../private/secret.yaml")
    )
    assert (problem.place.line, problem.key) == (3, "")
    assert problem.message.startswith("unknown key; its text is not shown, because the file is outside")


@pytest.mark.parametrize("kind", ["keys", "base and key"])
def test_foreign_file_that_is_not_a_spec_is_ignored(foreign_file: Path, kind: str) -> None:
    foreign_file.write_text({**FOREIGN_TEXTS, "base and key": f"{SECRET}: 1\nextends: more.yaml\n"}[kind])
    foreign_file.with_name("more.yaml").write_text("name: theirs\n")
    spec = write_spec(foreign_file.parent.with_name("project"), extends="../private/secret.yaml")
    layered = load_layers(spec, "spec.yaml", (), package_data.find_file, KeyRules(experiment_schema()["properties"]))
    assert SECRET not in str(layered.data)
    assert [Path(file).name for file in layered.files] == ["spec.yaml", "secret.yaml"]


def test_keys_of_a_foreign_file_are_not_suggested(foreign_file: Path) -> None:
    foreign_file.write_text(f"{SECRET}: 1\n")
    spec = write_spec(foreign_file.parent.with_name("project"), extends="../private/secret.yaml")
    for override in (f"~{SECRET[:-1]}", "name=${" + SECRET[:-1] + "}"):
        assert SECRET not in "\n".join(str(p) for p in load_with_problems(spec, override)).replace(override, "")


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
def test_messages_contain_no_values_interpolated_from_a_foreign_file(
    foreign_file: Path, changes: dict[str, Any]
) -> None:
    foreign_file.write_text(f"description: {SECRET}\nmodels: {{other: {{model: {SECRET}}}, {SECRET}: {{model: x}}}}\n")
    project = foreign_file.parent.with_name("project")
    problems_found = load_with_problems(write_spec(project, extends="../private/secret.yaml", **changes))
    assert SECRET not in "\n".join(map(str, problems_found))
    assert all("outside the folder tree of the spec" in problem.message for problem in problems_found)


@pytest.mark.parametrize("override", [f"~models.{SECRET[:-1]}", "description.x=1"])
def test_error_of_an_override_contains_no_text_of_a_foreign_file(foreign_file: Path, override: str) -> None:
    foreign_file.write_text(f"description: {SECRET}\nmodels: {{{SECRET}: {{model: x}}}}\n")
    spec = write_spec(foreign_file.parent.with_name("project"), extends="../private/secret.yaml")
    assert SECRET not in "\n".join(str(p) for p in load_with_problems(spec, override))


def test_messages_show_values_of_the_spec_itself(foreign_file: Path) -> None:
    foreign_file.write_text(f"description: {SECRET}\n")
    spec = write_spec(
        foreign_file.parent.with_name("project"), extends="../private/secret.yaml",
        seed="seven", rolouts={},
    )  # fmt: skip
    messages = "\n".join(map(str, load_with_problems(spec)))
    assert "seed: expected a whole number, not 'seven'" in messages
    assert "did you mean 'rollouts'?" in messages


def test_foreign_template_is_not_quoted(foreign_file: Path) -> None:
    project = foreign_file.parent.with_name("project")
    (project / "prompts").mkdir()
    for name, text in (("prover", f"{{{{ {SECRET} }}}}"), ("verifier", f"{{% {SECRET} %}}")):
        (foreign_file.parent / name).write_text(text)
        (project / "prompts" / f"{name}.jinja").symlink_to(foreign_file.parent / name)
    messages = "\n".join(map(str, load_with_problems(write_spec(project, prompts="prompts"))))
    assert SECRET not in messages
    assert "prover.jinja:1:" in messages
    assert "verifier.jinja:1:" in messages


def test_foreign_protocol_is_not_quoted(foreign_file: Path) -> None:
    foreign_file.write_text(f"extends: nip\n{SECRET}: 1\n")
    project = foreign_file.parent.with_name("project")
    problems_found = load_with_problems(
        write_spec(project, protocol={"use": "../private/secret.yaml", "max_message_rounds": None})
    )
    assert SECRET not in "\n".join(map(str, problems_found))
    assert any("unknown key; its text is not shown" in problem.message for problem in problems_found)


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [f'{{"{SECRET}": 1}}\n', f"{SECRET}\n", f'{{"id": "{SECRET}", "label": 7, "question": "", "solution": ""}}\n'],
)
def test_foreign_dataset_is_quoted_only_if_an_override_names_it(foreign_file: Path, text: str) -> None:
    data = foreign_file.with_suffix(".jsonl")
    data.write_text(text)
    spec = write_spec(foreign_file.parent.with_name("project"), dataset={"path": f"../private/{data.name}"})
    (problem,) = load_with_problems(spec)
    assert SECRET not in str(problem)
    assert problem.message.startswith("dataset.path: ")
    assert SECRET not in str(load_with_problems(spec, "dataset.path=../private/nothing.jsonl"))
    assert "is not shown" not in str(load_with_problems(spec, f"dataset.path={data}"))


def write_foreign_dataset(foreign_file: Path, column: str, value: Any) -> Path:
    data = foreign_file.with_suffix(".jsonl")
    row = {"label": 1, "question": "x", "solution": "x", column: value}
    data.write_text("".join(json.dumps({"id": f"{SECRET}{number}", **row}) + "\n" for number in range(2)))
    return data


def test_datapoint_ids_of_a_foreign_dataset_are_not_shown(foreign_file: Path) -> None:
    data = write_foreign_dataset(foreign_file, "question", None)
    spec = write_spec(foreign_file.parent.with_name("project"), dataset={"path": f"../private/{data.name}"})
    (problem,) = load_with_problems(spec)
    assert SECRET not in str(problem)
    assert "a template shows a column without text or numbers; its text is not shown" in problem.message
    assert f"{SECRET}0, {SECRET}1" in str(load_with_problems(spec, f"dataset.path={data}"))


def test_columns_of_a_foreign_dataset_are_not_suggested(foreign_file: Path) -> None:
    data = write_foreign_dataset(foreign_file, f"{SECRET}_pay", "x")
    project = foreign_file.parent.with_name("project")
    (project / "prompts").mkdir()
    for name, variable in (("prover", f"{SECRET}_pa"), ("verifier", "agent_nam")):
        (project / "prompts" / f"{name}.jinja").write_text(f"{{{{ {variable} }}}}")
    spec = write_spec(project, prompts="prompts", dataset={"path": f"../private/{data.name}"})
    messages = "\n".join(map(str, load_with_problems(spec)))
    assert f"{SECRET}_pay" not in messages
    assert "did you mean 'agent_name'?" in messages
    assert f"did you mean '{SECRET}_pay'?" in "\n".join(map(str, load_with_problems(spec, f"dataset.path={data}")))


def test_split_error_shows_no_datapoints_of_a_foreign_dataset(foreign_file: Path) -> None:
    data = write_foreign_dataset(foreign_file, "split", "train")
    data.write_text(data.read_text().replace('"train"', '"test"', 1))
    spec = write_spec(
        foreign_file.parent.with_name("project"),
        dataset={"path": f"../private/{data.name}", "split": "train"},
        kind="training",
        training={"method": "expert_iteration", "test": {"split": "test"}, "trainers": {"m": {"backend": "files"}}},
    )
    messages = "\n".join(map(str, load_with_problems(spec)))
    assert "training.test.split: some datapoints are also trained on" in messages
    assert SECRET not in messages
    assert f"{SECRET}0" in "\n".join(map(str, load_with_problems(spec, f"dataset.path={data}")))


# Files that are not read


@pytest.mark.parametrize("kind", ["/dev/zero", "FIFO", "large"])
def test_endless_or_large_base_is_not_read(foreign_file: Path, kind: str) -> None:
    if kind == "FIFO":
        os.mkfifo(foreign_file)
    elif kind == "large":
        foreign_file.write_bytes(b"#" * (300 << 10))
    base = "/dev/zero" if kind == "/dev/zero" else "../private/secret.yaml"
    (problem,) = load_with_problems(write_spec(foreign_file.parent.with_name("project"), extends=base))
    message = "larger than 256 KiB" if kind == "large" else "cannot read the file: not a regular file"
    assert message in problem.message


def test_protocol_that_is_a_fifo_is_not_read(foreign_file: Path) -> None:
    os.mkfifo(foreign_file)
    protocol = {"use": "../private/secret.yaml", "max_message_rounds": None}
    problems_found = load_with_problems(write_spec(foreign_file.parent.with_name("project"), protocol=protocol))
    assert any("not a regular file" in problem.message for problem in problems_found)


@pytest.mark.parametrize("kind", ["/dev/zero", "FIFO"])
def test_endless_template_is_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "prompts").mkdir()
    for name in ("prover", "verifier"):
        path = tmp_path / "prompts" / f"{name}.jinja"
        if kind == "FIFO":
            os.mkfifo(path)
        else:
            path.symlink_to(kind)
    problems_found = load_with_problems(spec_file(tmp_path, prompts="prompts"))
    assert sum("not a regular file" in problem.message for problem in problems_found) == 2


# The folder tree of a spec


def test_misspelled_key_of_a_base_in_the_project_gets_a_suggestion(foreign_file: Path) -> None:
    """A base is in the project if it is in the current folder or the git checkout."""
    foreign_file.write_text("rolouts: {concurrency: 3}\n")
    root = foreign_file.parent.parent
    spec = write_spec(root / "project", extends="../private/secret.yaml")
    (redacted_problem,) = load_with_problems(spec)
    assert "rolouts" not in str(redacted_problem)
    with chdir(root):
        (visible_problem,) = load_with_problems(spec)
    assert (visible_problem.key, "did you mean 'rollouts'?" in visible_problem.message) == ("rolouts", True)
    subprocess.run(["git", "init", "-q", root], check=True)
    assert [problem.message for problem in load_with_problems(spec)] == [visible_problem.message]


def test_text_of_packaged_files_is_always_shown(tmp_path: Path) -> None:
    (problem,) = load_with_problems(
        spec_file(tmp_path, protocol={"use": "nip", "max_message_rounds": 1, "min_message_rounds": 3})
    )
    assert "is more than max_message_rounds" in problem.message


def test_home_folder_is_not_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    spec = home / "downloads" / "spec.yaml"
    spec.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for git_folder in (home / ".git", tmp_path / ".git"):
        git_folder.mkdir()
        with chdir(home):
            assert ProjectTree.of(spec).root == spec.parent.resolve()
    with chdir(spec.parent):
        assert ProjectTree.of(Path("spec.yaml")).contains(spec)
        assert not ProjectTree.of(Path("spec.yaml")).contains(home / ".ssh" / "config")


def test_project_is_the_nearer_of_current_folder_and_git_checkout(tmp_path: Path) -> None:
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
def test_names_of_foreign_files_are_not_suggested(foreign_file: Path, changes: dict[str, Any]) -> None:
    for name in ("secret.yaml", "secret.jsonl"):
        foreign_file.with_name(name).write_text("")
    foreign_file.with_name("secrets").mkdir()
    messages = "\n".join(map(str, load_with_problems(write_spec(foreign_file.parent.with_name("project"), **changes))))
    assert "secret" not in messages
    assert " the folder of " in messages


def test_lines_of_a_foreign_file_are_not_shown(foreign_file: Path) -> None:
    foreign_file.write_text(f"seed: 1 # {SECRET}\nrolouts: 1 # {SECRET}\n")
    spec = write_spec(foreign_file.parent.with_name("project"), extends="../private/secret.yaml", seed=None)
    problems_found = load_with_problems(spec)
    assert all(problem.place.source is None for problem in problems_found)
    assert SECRET not in "\n".join(line for problem in problems_found for line in error_lines(SpecError([problem])))
    with chdir(foreign_file.parent.parent):
        assert any(problem.place.source == f"rolouts: 1 # {SECRET}" for problem in load_with_problems(spec))
