"""Packages for the verifiers library, tested without it. `.ci/tools/verifiers_env.py` plays them with it."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from runner.base.errors import SpecError
from runner.cli.main import main
from runner.exports.verifiers_env.package import collect_sources, write_package
from runner.models.answers import choices_of
from runner.models.interface import Completion, Request
from runner.rollouts.engine import Engine
from runner.rollouts.plan import Plan
from runner.spec.loader import load_spec
from tests.support.paths import ROOT
from tests.support.specs import spec_file

ALTERNATING = "models.offline.chat_format=alternating"

PLAYER = """
import asyncio, hashlib, json, sys
from pathlib import Path

class NoRunner:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "runner":
            raise ModuleNotFoundError("the package must not need nip-run")

sys.meta_path.insert(0, NoRunner())
sys.path.insert(0, sys.argv[1])
import orjson
from core.exports.verifiers_env.packaged_game import PackagedGame, list_jobs, read_job

parts = Path(sys.argv[2])
game = PackagedGame.read((parts / "game.json").read_bytes())
jobs = list_jobs(orjson.loads(line) for line in (parts / "rows.jsonl").read_bytes().splitlines())
sent = []

async def open_seats(names):
    pass

async def send(name, body):
    messages = json.loads(body)["messages"]
    sent.append(messages)
    return make_answer(messages)

results = {}
for job in map(read_job, jobs):
    rollout = asyncio.run(game.play(job, open_seats, send))
    results[job.rollout_id] = {name: [result.reward, result.metrics] for name, result in game.results(rollout).items()}
print(json.dumps([sorted(map(json.dumps, sent)), results]))
"""


def make_answer(messages: Any) -> bytes:
    """Return an answer that depends only on the messages."""
    number = hashlib.sha256(json.dumps(messages).encode()).digest()[0]
    text = ("", "Decision: accept", "Decision: reject", "Why?", "Because.\\u2028")[number % 5]
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"model": "m", "choices": [choice]}).encode()


def load_plan(name: str, *overrides: str) -> Plan:
    return Plan(load_spec(ROOT / "specs" / f"{name}.yaml", [ALTERNATING, "dataset.limit=4", *overrides]))


def play_with_engine(plan: Plan) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Play a plan with the engine. Return the requests, and the rewards by game."""
    requests: list[str] = []

    async def complete(request: Request) -> Completion:
        settings = plan.spec.experiment.models[request.group]
        messages = json.loads(orjson.dumps(list(settings.sent_messages(request.messages))))
        requests.append(json.dumps(messages))
        return Completion(choices_of(json.loads(make_answer(messages))), "m")

    async def play() -> dict[str, dict[str, float]]:
        engine = Engine.from_plan(plan, complete)
        return {job.rollout_id: dict((await engine.play(job))[0].rewards) for job in plan.jobs()}

    rewards = asyncio.run(play())
    return sorted(requests), rewards


@pytest.mark.gate
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("debate", ("stances=both", "seats=swap", "agents.prover1.max_response_words=70")),
        ("mnip", ("votes=3", "rollouts.per_datapoint=2")),
    ],
)
def test_package_plays_the_games_of_a_run_without_nip_run(
    tmp_path: Path, name: str, overrides: tuple[str, ...]
) -> None:
    plan = load_plan(name, "retry.invalid_response.attempts=2", "retry.invalid_response.then=empty_message", *overrides)
    package = write_package(plan, tmp_path / "games")
    for path, text in collect_sources("core").items():
        target = tmp_path / "alone" / "core" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    code = f"import hashlib, json\nfrom typing import Any\n{inspect.getsource(make_answer)}\n{PLAYER}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path / "alone"), str(package.folder / "games_core")],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sent, results = json.loads(done.stdout)
    expected_requests, expected_rewards = play_with_engine(plan)
    assert sent == expected_requests
    assert {
        rollout: {seat: reward for seat, (reward, _) in seats.items()} for rollout, seats in results.items()
    } == expected_rewards
    assert all("accuracy" in metrics for seats in results.values() for _, metrics in seats.values())
    assert package.games == plan.size == len(results)


def find_problems(plan: Plan, folder: Path) -> Mapping[str, str]:
    with pytest.raises(SpecError) as error:
        write_package(plan, folder)
    assert not folder.exists()
    return {problem.key: problem.message for problem in error.value.problems}


def test_all_unsupported_settings_are_reported_together(tmp_path: Path) -> None:
    plan = Plan(
        load_spec(
            ROOT / "specs" / "best_of_n_debate.yaml",
            ["models.offline.n=2", "models.offline.system_role=developer", "rollouts.per_datapoint=1"],
        )
    )
    assert set(find_problems(plan, tmp_path / "games")) == {
        "protocol.use", "models.offline.chat_format", "models.offline.system_role", "models.offline.n",
    }  # fmt: skip
    trees = load_plan("debate", "rollouts.num_responses_per_timestep=2")
    assert "rollouts.num_responses_per_timestep" in find_problems(trees, tmp_path / "games")
    people = load_plan("nip", "models.offline.provider=human")
    assert "models.offline.provider" in find_problems(people, tmp_path / "games")


def make_plan_with_agent(folder: Path, name: str) -> Plan:
    """Return the plan of a game whose prover has this name."""
    (folder / "prompts").mkdir(parents=True)
    for agent in (name, "verifier"):
        (folder / "prompts" / f"{agent}.jinja").write_text("{{ question }} {{ solution }} {{ accept }} {{ reject }}\n")
    protocol = {
        "name": "renamed",
        "agents": {
            name: {"role": "prover", "human_name": "Expert"}, "verifier": {"role": "verifier", "human_name": "Verifier"}
        },
        "channels": {"main": {"members": [name, "verifier"]}},
        "cycle": [{"speak": {"verifier": ["main"]}}, {"speak": {name: ["main"]}}],
    }  # fmt: skip
    (folder / "renamed.yaml").write_text(json.dumps(protocol))
    spec = {
        "name": "renamed", "dataset": {"path": str(ROOT / "specs" / "data" / "code_validation.jsonl"), "limit": 1},
        "protocol": {"use": "renamed.yaml"}, "prompts": "prompts", "agents": {"_default": {"model": "offline"}},
        "models": {"offline": {"provider": "dummy", "chat_format": "alternating"}},
    }  # fmt: skip
    (folder / "spec.yaml").write_text(json.dumps(spec))
    return Plan(load_spec(folder / "spec.yaml"))


@pytest.mark.parametrize("name", ["timeout", "env_id", "model_config", "copy", "class"])
def test_agent_name_that_is_reserved_in_verifiers_is_refused(tmp_path: Path, name: str) -> None:
    plan = make_plan_with_agent(tmp_path / "spec", name)
    assert name in find_problems(plan, tmp_path / "games")["protocol.use"]


@pytest.mark.parametrize("name", ["seat", "vf", "int"])
def test_agent_name_does_not_shadow_a_name_of_the_module(tmp_path: Path, name: str) -> None:
    package = write_package(make_plan_with_agent(tmp_path / "spec", name), tmp_path / "games")
    module = (package.folder / "games" / "__init__.py").read_text("utf-8")
    seats = module[module.index("_Seat =") : module.index("class NipRunEnv")]
    verifiers = SimpleNamespace(AgentConfig=SimpleNamespace, SubprocessConfig=SimpleNamespace, EnvConfig=object)
    variables: dict[str, Any] = {"vf": verifiers}
    exec(seats, variables)
    config = variables["SeatsConfig"]
    assert [getattr(config, agent).harness for agent in (name, "verifier")] == [{"id": "games_core"}] * 2


def test_model_group_of_a_plugin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan("nip")
    settings = plan.spec.experiment.models["offline"]
    monkeypatch.setitem(vars(settings), "provider", "house_model")
    assert "plugin" in find_problems(plan, tmp_path / "games")["models.offline.provider"]


def test_solo_verifier_can_have_any_chat_format(tmp_path: Path) -> None:
    plan = Plan(load_spec(ROOT / "specs" / "solo_verifier.yaml", ["dataset.limit=2"]))
    assert write_package(plan, tmp_path / "games").games == 2


def test_package_contains_no_server_key_or_folder_of_the_spec(tmp_path: Path) -> None:
    model = {
        "provider": "openai", "model": "tiny", "base_url": "http://zq7-host:1/v1", "api_key_env": "ZQ7_KEY",
        "headers": {"X-Team": "$ZQ7_TEAM"}, "temperature": 0.25,
    }  # fmt: skip
    write_package(Plan(load_spec(spec_file(tmp_path / "zq7-folder", models={"m": model}))), tmp_path / "games")
    files = [path for path in (tmp_path / "games").rglob("*") if path.is_file()]
    assert [path for path in files if "zq7" in path.read_text("utf-8").lower()] == []
    assert '"temperature": 0.25' in (tmp_path / "games" / "games_core" / "game.json").read_text("utf-8")


def test_rows_option_writes_the_rows_to_a_separate_file(tmp_path: Path) -> None:
    command = ["export-env", str(ROOT / "specs" / "nip.yaml"), ALTERNATING, "dataset.limit=3", "-q"]
    assert main([*command, "-o", str(tmp_path / "with-rows")]) == 0
    assert main([*command, "-o", str(tmp_path / "no_rows"), "--rows", str(tmp_path / "rows.jsonl")]) == 0
    rows = (tmp_path / "rows.jsonl").read_bytes()
    assert rows == (tmp_path / "with-rows" / "with_rows_core" / "rows.jsonl").read_bytes()
    assert not list((tmp_path / "no_rows").rglob("rows.jsonl"))
    assert main([*command, "-o", str(tmp_path / "again"), "--rows", str(tmp_path / "rows.jsonl")]) == 2
    assert hashlib.sha256(rows).hexdigest() in (tmp_path / "no_rows" / "no_rows" / "__init__.py").read_text()


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("9lives", "small letters"), ("class", "small letters"), ("games_", "small letters"),
        ("json", "another Python module"), ("numpy", "another Python module"), ("harbor", "another Python module"),
        ("full", "not an empty"), ("link", "not an empty"),
    ],
)  # fmt: skip
def test_invalid_or_nonempty_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    command = ["export-env", str(ROOT / "specs" / "nip.yaml"), ALTERNATING, "dataset.limit=1"]
    assert main([*command, "-o", str(tmp_path / folder)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "link"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_the_printed_pip_command_installs_the_folder_and_no_package_of_the_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["export-env", str(ROOT / "specs" / "nip.yaml"), ALTERNATING, "dataset.limit=3"]
    for folder, argument in (("games", "./games"), (str(tmp_path / "more"), str(tmp_path / "more"))):
        assert main([*command, "-o", folder]) == 0
        assert f"next: pip install {argument}, in an environment" in capsys.readouterr().err


def test_a_package_that_cannot_be_written_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    command = ["export-env", str(ROOT / "specs" / "nip.yaml"), ALTERNATING, "dataset.limit=3", "-q"]
    assert main([*command, "-o", str(tmp_path / "games"), "--rows", str(tmp_path / "file" / "rows.jsonl")]) == 1
    assert f"cannot write to {tmp_path / 'games'}: {tmp_path / 'file'}" in capsys.readouterr().err
    assert not (tmp_path / "games").exists()


def test_rows_inside_the_package_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export-env", str(ROOT / "specs" / "nip.yaml"), ALTERNATING, "dataset.limit=1"]
    assert main([*command, "-o", str(tmp_path / "games"), "--rows", str(tmp_path / "games" / "rows.jsonl")]) == 2
    assert "outside" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_hostile_description_is_escaped(tmp_path: Path) -> None:
    description = 'A """ \\" quote, $core, \x7f, \u2028, \u202e and {{ x }}\n[project]\nname = "other"\\'
    alternating = {"m": {"chat_format": "alternating"}}
    plan = Plan(load_spec(spec_file(tmp_path / "spec", description=description, models=alternating)))
    write_package(plan, tmp_path / "games")
    project = tomllib.loads((tmp_path / "games" / "pyproject.toml").read_text("utf-8"))["project"]
    module = ast.parse((tmp_path / "games" / "games" / "__init__.py").read_text("utf-8"))
    assert project["name"] == "games"
    assert "$core" in project["description"]
    assert (ast.get_docstring(module) or "").startswith(project["description"])


@pytest.mark.full
def test_export_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    folders = []
    for seed in ("1", "2"):
        folder = tmp_path / seed / "games"
        command = ["-m", "runner", "export-env", str(ROOT / "specs" / "debate.yaml"), ALTERNATING, "-q", "-o"]
        subprocess.run(
            [sys.executable, *command, str(folder)], check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        folders.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    assert folders[0] == folders[1]
