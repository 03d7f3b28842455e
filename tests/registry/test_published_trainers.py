"""A custom trainer is published with its script and files, which are shown to users and used by them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.documents.fetched_files import MARKER
from runner.pages.report.run_facts import commands
from runner.results.folder import RunFolder
from runner.server.web.views import commands_of
from runner.spec.trainer_files import NO_FILES, read_index
from tests.support.components import Project
from tests.support.git_repositories import commit_and_push, commit_folder, git
from tests.support.processes import nip_run, nip_run_here
from tests.support.server_process import run_server
from tests.support.training import training_spec

TRAIN = """
import json, sys
from pathlib import Path
from features import words

dataset, base_model, output, model_file = map(Path, sys.argv[1:5])
factor = json.loads((Path.cwd() / "trainer/settings.json").read_text())["factor"]
counts = {}
for line in dataset.read_text().splitlines():
    for word in words(line):
        counts[word] = counts.get(word, 0) + factor
(output / "counts.json").write_text(json.dumps(counts))
model_file.write_text(f"{base_model}+{sum(counts.values())}")
"""
FEATURES = """
import re

def words(line):
    return re.findall(r"[a-z]+", line.lower())
"""
COMMAND = ["python", "trainer/train.py", "{dataset}", "{base_model}", "{output}", "{model_file}"]
FILES = ["trainer/features.py", "trainer/settings.json"]


@dataclass(frozen=True)
class User:
    """A user with their own home, name, machine and time zone."""

    home: Path
    zone: str

    @property
    def variables(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        name = self.home.name
        return {"HOME": str(self.home), "USER": name, "LOGNAME": name, "HOSTNAME": f"{name}-desk-7", "TZ": self.zone,
                "PATH": path, "NIP_RUN_STORE": str(self.home / "store")}  # fmt: skip

    def execute(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return nip_run(*arguments, cwd=self.home, timeout=120.0, **{**self.variables, **variables})

    def run_successfully(self, *arguments: str | Path, **variables: str) -> str:
        done = self.execute(*arguments, **variables)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def read_json(self, *arguments: str | Path, **variables: str) -> Any:
        return json.loads(self.run_successfully(*arguments, "--json", **variables))


def create_user(folder: Path, name: str, zone: str) -> User:
    home = folder / name
    home.mkdir(parents=True)
    (home / ".gitconfig").write_text(f"[user]\nname = {name.title()}\nemail = {name}@example.org\n")
    return User(home, zone)


def trainer_spec(home: Path, **trainer: Any) -> Path:
    """Write a spec that trains the prover by a script, and the script with its module and settings."""
    (home / "trainer").mkdir(parents=True, exist_ok=True)
    (home / "trainer" / "train.py").write_text(TRAIN)
    (home / "trainer" / "features.py").write_text(FEATURES)
    (home / "trainer" / "settings.json").write_text('{"factor": 2}')
    settings = {"backend": "command", "command": COMMAND, "files": FILES, "poll_seconds": 0.05, **trainer}
    return training_spec(home, training={
        "iterations": 1, "selection": {"reward_threshold": -9.0}, "test": {"scheme": "first_and_last"},
        "trainers": {"p": settings},
    })  # fmt: skip


@pytest.mark.full
def test_published_training_run_can_be_continued_from_its_release_alone(tmp_path: Path) -> None:
    ada, bob = create_user(tmp_path, "ada", "Pacific/Auckland"), create_user(tmp_path, "bob", "America/Bogota")
    registry = tmp_path / "registry"
    with run_server(tmp_path / "served") as served:
        trainer_spec(ada.home)
        ada.run_successfully("spec.yaml", "--run-id", "learn", "-q")
        publish_arguments = ("publish", "learn", "--as", "acme", "--licence", "MIT", "--force")
        token = {"NIP_RUN_REGISTRY": served.address, "NIP_RUN_TOKEN": served.tokens["alice"]}
        replies = [ada.read_json(*publish_arguments, "--to", registry), ada.read_json(*publish_arguments, **token)]
        learn = [next(row for row in reply["releases"] if row["reference"] == "run/acme/learn@1") for reply in replies]
        assert learn[0]["sha256"] == learn[1]["sha256"], "the release is the same wherever it is published"
        shutil.rmtree(ada.home)

        description = bob.run_successfully("get", "acme/learn", "got", "--from", served.address)
        assert "in the end: accuracy" in description
        assert f"nip-run {bob.home / 'got'} --allow-command PROGRAM training.from={bob.home / 'got'}" in description
        assert "trainer p: the program python" in description
        assert not list((bob.home / "got").rglob("*.py"))
        bob.run_successfully("get", "acme/learn", "same", "--from", registry)
        assert bob.execute("verify", "same").returncode == 0

        arguments = ("got", "training.from=got", "--run-id", "more")
        refused = bob.execute(*arguments)
        assert refused.returncode == 2
        assert "trainer/train.py: " in refused.stderr
        assert "| factor = json.loads(" in refused.stderr
        assert not (bob.home / "results" / "runs").exists(), "nothing was run"
        bob.run_successfully(*arguments, "--allow-command", "python", "-q")
        (output,) = (bob.home / "results" / "runs" / "more" / "iterations" / "0").glob("p.job/output/counts.json")
        assert json.loads(output.read_text())["question"] % 2 == 0, "settings.json of the release was read"

        for location, key in ((str(registry), {}), (served.address, {**token, "NIP_RUN_TOKEN": served.tokens["bob"]})):
            bob.run_successfully(
                "publish", "more", "--to", location, "--as", "acme", "--licence", "MIT", "--force", **key
            )
            carol = create_user(tmp_path / f"later{len(key)}", "carol", "Asia/Kathmandu")
            fetched = carol.read_json("get", "acme/more", "got", "--from", location)
            group = next(group for group in fetched["facts"]["trained"] if group["group"] == "p")
            assert [step["release"] for step in group["lineage"]] == ["run/acme/learn@1"]
            assert [step["release_sha256"] for step in group["lineage"]] == [learn[0]["sha256"]]
            before = group["lineage"][-1]["model"]
            assert group["made"][-1]["model"].startswith(f"{before}+")
            assert b"ada" not in b"".join(path.read_bytes() for path in (carol.home / "got").rglob("*.txt"))
            assert "more" in carol.run_successfully("history", "prover", "--from", location)
            assert carol.execute("reproduce", "got", "--from", location).returncode == 0


def test_trainer_component_has_its_script_and_trains_in_another_spec(tmp_path: Path) -> None:
    source = trainer_spec(tmp_path / "ada", command=[sys.executable, *COMMAND[1:]])
    published = nip_run_here("publish", "spec.yaml", "--kind", "trainer", "--part", "p", "--as", "acme/words@1", "--to",
                        tmp_path / "registry", "--licence", "MIT", "--force", cwd=source.parent)  # fmt: skip
    assert published.returncode == 0, published.stderr
    shutil.rmtree(source.parent)
    bob = Project.create(tmp_path / "bob", tmp_path / "registry")
    bob.install("trainer/acme/words@1")
    training_spec(bob.folder, training={
        "iterations": 1, "selection": {"reward_threshold": -9.0}, "test": {"scheme": "none"},
        "trainers": {"p": {"backend": None, "use": "acme/words@1"}},
    })  # fmt: skip
    refused = bob.nip_run("spec.yaml", "--run-id", "own")
    assert refused.returncode == 2
    assert "trainer/train.py: " in refused.stderr
    program = Path(sys.executable).name
    (bob.folder / "bin").mkdir()
    (bob.folder / "bin" / program).symlink_to(sys.executable)
    path = f"{bob.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = nip_run_here("spec.yaml", "--run-id", "own", "-q", "--allow-command", program, cwd=bob.folder,
                        **{**bob.variables, "PATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = bob.folder / "results" / "runs" / "own"
    assert (run / "trainers" / "p" / "trainer" / "features.py").is_file()


def test_trainer_script_with_a_secret_or_user_name_is_refused_with_file_and_line(tmp_path: Path) -> None:
    key = "sk-proj-" + "a1B2" * 12
    path = trainer_spec(tmp_path / "ada", command=[sys.executable, *COMMAND[1:]])
    script = path.parent / "trainer" / "train.py"
    script.write_text(TRAIN + f"\nKEY = '{key}'\nWHERE = '{tmp_path}/adalovelace/x'\n")
    arguments = ("publish", "spec.yaml", "--kind", "trainer", "--part", "p", "--as", "acme/words@1", "--to",
             tmp_path / "registry", "--licence", "MIT", "--force")  # fmt: skip
    done = nip_run_here(*arguments, cwd=path.parent, USER="adalovelace", HOME=str(tmp_path / "adalovelace"))
    assert done.returncode != 0
    lines = len(TRAIN.splitlines())
    assert f"trainers/p/trainer/train.py.txt:{lines + 2}" in done.stderr
    assert f"trainers/p/trainer/train.py.txt:{lines + 3}" in done.stderr
    assert key not in done.stdout + done.stderr
    assert not list((tmp_path / "registry").rglob("release.json"))


@pytest.mark.full
def test_get_of_a_training_run_without_stored_scripts_says_so(tmp_path: Path) -> None:
    path = trainer_spec(tmp_path / "ada", command=[sys.executable, *COMMAND[1:]])
    done = nip_run_here(path, "--run-id", "learn", "-q", cwd=path.parent)
    assert done.returncode == 0, done.stderr
    run = path.parent / "results" / "runs" / "learn"
    shutil.rmtree(run / "inputs" / "trainers")  # as an earlier version left it
    done = nip_run_here("publish", "learn", "--to", tmp_path / "registry", "--as", "acme", "--licence", "MIT",
                        "--force", cwd=path.parent)  # fmt: skip
    assert done.returncode == 0, done.stderr
    get_process = nip_run_here("get", "acme/learn", "got", "--from", tmp_path / "registry", cwd=tmp_path)
    tests = re.search(
        r"^result +(before iteration 0: accuracy [0-9.]+ \[.*); self-reported", get_process.stdout, re.MULTILINE
    )
    assert tests is not None
    assert "in the end: accuracy" in tests[1]
    readme = (tmp_path / "got" / "README.md").read_text("utf-8")
    assert "before iteration 1: **" in readme
    assert "nip-run learn --allow-command PROGRAM" in readme
    learn = RunFolder.from_release(tmp_path / "got" / "data")
    lines = [
        *(line for _, line in commands(learn, learn.manifest())),
        *get_process.stdout.splitlines(),
        *readme.splitlines(),
    ]
    lines += [line for _, line in commands_of("run/acme/learn@1", "run", "http://127.0.0.1:9", trains=True)]
    assert not [line for line in lines if "--fresh" in line], "a training run cannot be compared by it"
    assert [line for line in lines if "reproduce" in line and "--from" not in line] == []
    assert (
        "trainer p: its script: it was not published, and the command runs in the current folder" in get_process.stdout
    )


def test_run_of_a_fetched_spec_stores_no_local_trainer_files(tmp_path: Path) -> None:
    fetched = tmp_path / "got"
    path = trainer_spec(fetched, command=[sys.executable, *COMMAND[1:]], files=["private.txt"])
    (fetched / MARKER).touch()
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "train.py").write_text("print('my own')")
    (tmp_path / "private.txt").write_text("private")
    done = nip_run_here(path, "--run-id", "more", "--allow-command", sys.executable, cwd=tmp_path)
    assert done.returncode == 1, "my own trainer names no model"
    run = tmp_path / "results" / "runs" / "more"
    stored = read_index(run / "inputs" / "trainers")["p"]
    assert (dict(stored.files), stored.missing) == ({}, (NO_FILES,))
    override = "training.trainers.p.command=[python,train.py,'{dataset}','{model_file}']"
    done = nip_run_here(path, override, "--run-id", "own", "--allow-command", "python", cwd=tmp_path)
    assert "set the files of your command with training.trainers.p.files, or null for none" in done.stderr


@pytest.mark.full
def test_training_run_is_pinned_only_by_a_commit_with_its_trainer_files(tmp_path: Path) -> None:
    path = trainer_spec(tmp_path / "ada", command=[sys.executable, *COMMAND[1:]])
    home, script = path.parent, path.parent / "trainer" / "train.py"
    done = nip_run_here("spec.yaml", "--run-id", "learn", "-q", cwd=home)
    assert done.returncode == 0, done.stderr
    arguments = (
        "publish",
        "learn",
        "--to",
        tmp_path / "registry",
        "--as",
        "acme",
        "--licence",
        "MIT",
        "--pin",
        "spec.yaml",
    )
    files = [file.name for file in home.iterdir() if file.name not in {"results", "trainer"}]
    commit_and_push(home, *files)
    done = nip_run_here(*arguments, cwd=home)
    assert done.returncode == 1
    assert "trainer of p: " in done.stderr, "its files are in no commit"
    commit = commit_folder(home, "trainer")
    git(home, "update-ref", "refs/remotes/origin/main", commit)
    script.write_text(TRAIN + "# changed")
    done = nip_run_here(*arguments, cwd=home)
    assert "trainer of p: trainer/train.py is not the file that the run used" in done.stderr
    script.write_text(TRAIN)
    done = nip_run_here(*arguments, cwd=home)
    assert done.returncode == 0, done.stderr
