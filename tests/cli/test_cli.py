"""The command line: every command, its JSON, its exit codes, and its errors without a traceback."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.cli.command_line import load_command
from runner.cli.commands import COMMANDS as REGISTRY
from runner.cli.commands import GROUPS
from runner.cli.main import main
from runner.exports.formats import EXPORTS
from runner.results.finetune.formats import FORMATS
from runner.results.manifest import Status
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import command, environment, nip_run
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import dataset_file, spec_file

ESC = "\x1b"
HOSTILE = f"{ESC}]0;owned{ESC}\\{ESC}[2J{ESC}[31mred\x07\x9b2J\r\x08 \u202egnp\u202c\u200b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec and its finished run, played offline."""
    made = tmp_path_factory.mktemp("cli")
    run_spec(spec_file(made), made / "results")
    return made


def run_id(folder: Path) -> str:
    return only_run(folder / "results").name


@dataclass(frozen=True)
class Called:
    returncode: int
    stdout: str
    stderr: str


def called(*words: str, cwd: Path) -> Called:
    """The command line in this process, which saves starting one."""
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
    finally:
        os.chdir(before)
    return Called(code, out.getvalue(), err.getvalue())


COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "spec.yaml"),
    "short run": ("spec.yaml",),
    "check": ("check", "spec.yaml"),
    "render": ("render", "spec.yaml", "verifier"),
    "schema": ("schema",),
    "schema protocol": ("schema", "protocol"),
    "runs": ("runs",),
    "show": ("show", "tiny"),
    "show rollout": ("show", "tiny", "p3"),
    "report": ("report", "tiny", "-o", "report.html"),
    "report folder": ("report", "tiny", "--dir", "site"),
    "notes": ("notes", "tiny"),
    "plot": ("plot", "outcomes", "tiny", "-o", "f.svg"),
    "leaderboard": ("leaderboard",),
    "leaderboard of one": ("leaderboard", "tiny/v1"),
    "sql": ("sql", "SELECT run_id, accuracy FROM leaderboard"),
    "export": ("export", "tiny", "--format", "openai", "--out", "out"),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_one_json_document_where_it_is_asked_to(folder: Path, name: str) -> None:
    done = called(*COMMANDS[name], "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    assert ESC not in done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_something_to_a_person(folder: Path, name: str) -> None:
    done = nip_run(*COMMANDS[name], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert ESC not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("run", "--help"), ("sql", "--help"), ("--version",)])
def test_help_goes_to_stdout_and_is_no_error(folder: Path, words: tuple[str, ...]) -> None:
    done = nip_run(*words, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_help_names_every_command_with_its_summary(folder: Path) -> None:
    said = called("--help", cwd=folder).stdout
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(REGISTRY)
    for name in REGISTRY:
        assert re.search(rf"^  {name} +{re.escape(REGISTRY[name].summary)}$", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage"),
        (("run",), "required"),
        (("run", "--nonsense", "spec.yaml"), "--nonsense"),
        (("spec.yml",), "did you mean 'spec.yaml'"),
        (("run", "seed=3"), "no spec given"),
        (("check", "spec.yaml", "sed=3"), "did you mean 'seed'"),
        (("render", "spec.yaml"), "one spec and one agent"),
        (("render", "spec.yaml", "verifyer"), "did you mean 'verifier'"),
        (("render", "spec.yaml", "verifier", "--datapoint", "p99"), "p9"),
        (("render", "spec.yaml", "verifier", "--round", "1"), "0, 2, 4"),
        (("render", "spec.yaml", "verifier", "--round", "x"), "--round"),
        (("export", "tiny"), "--format"),
        (("export", "tiny", "--format", "csv"), "csv"),
        (("export", "tiny", "--format", "inspct"), "did you mean 'inspect'?"),
        (("plot", "relibility", "tiny", "-o", "x.svg"), "did you mean 'reliability'?"),
        (("schema", "nonsense"), "nonsense"),
        (("lederboard",), "leaderboard"),
    ],
)
def test_bad_usage_exits_2_and_says_what_is_wrong(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = called(*words, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr + (done.stdout if not words else "")
    assert "Traceback" not in done.stderr
    assert not words or done.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nothing"), "no run 'nothing'"),
        (("show", "tiny", "p99"), "no rollout 'p99'"),
        (("sql", "SELECT nonsense"), "nonsense"),
        (("sql", "SELECT 1; SELECT 2"), "enter exactly one SQL query"),
        (("export", "nothing", "--format", "openai"), "no run"),
    ],
)
def test_what_is_not_there_to_be_shown_exits_2_and_says_why(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = called(*words, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "bug in nip-run" not in done.stderr


def test_an_error_in_json_is_json_with_its_exit_code(folder: Path) -> None:
    done = called("check", "spec.yaml", "sed=3", "rollouts.concurrency=none", "--json", cwd=folder)
    said = json.loads(done.stdout)
    assert (done.returncode, said["exit_code"], said["ok"]) == (2, 2, False)
    assert len(said["errors"]) == 2


def test_all_problems_come_at_once_with_their_places(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    path = spec_file(tmp_path, size=2, seed=-1, rollouts={"concurency": 3}, agents={"verifier": {"model": "n"}})
    done = called("check", "spec.yaml", "models.m.temperature=hot", cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    for key in ("seed", "rollouts.concurency", "agents.verifier.model"):
        (line,) = [line for line in lines if f": {key}: " in line]
        assert line.startswith(f"{path.name}:1:"), line
    assert any("models.m.temperature" in line and "hot" in line for line in lines)


def test_check_warns_of_a_seed_that_leaves_no_other_answer(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"seed": 3}})
    told = called("check", str(path), cwd=tmp_path)
    assert (told.returncode, told.stderr.count("warning: models.m.seed is fixed (3)")) == (0, 1)
    warnings = json.loads(called("check", str(path), "--json", cwd=tmp_path).stdout)[0]["warnings"]
    assert [f"warning: {line}" in told.stderr.splitlines() for line in warnings] == [True] * len(warnings)
    once = (str(path), "retry.invalid_response.attempts=1")
    assert "seed is fixed" not in called("check", *once, cwd=tmp_path).stderr


def test_check_writes_nothing_and_plans_everything(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"price": {"input": 1.0, "output": 2.0}}})
    before = sorted(tmp_path.rglob("*"))
    done = called("check", "spec.yaml", "rollouts.per_datapoint=2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (plan,) = json.loads(done.stdout)
    assert (plan["rollouts"], plan["datapoints"]) == (24, 12)
    (model,) = plan["models"]
    assert model["calls"] == [24, 24 * 6]
    assert 0 < model["cost_usd"][0] < model["cost_usd"][1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.full
def test_results_go_to_stdout_and_progress_to_stderr(tmp_path: Path) -> None:
    spec_file(tmp_path, size=3)
    done = called("spec.yaml", "--json", cwd=tmp_path)
    (result,) = json.loads(done.stdout)
    assert (result["status"], result["rollouts"], result["was_finished"]) == ("done", 3, False)
    quiet = called("spec.yaml", "-q", "--again", cwd=tmp_path)
    assert quiet.stderr == ""
    assert "accuracy" in quiet.stdout


@pytest.mark.full
def test_a_run_says_where_everything_is(tmp_path: Path) -> None:
    spec_file(tmp_path, size=3)
    done = called("spec.yaml", "--results", "my results", cwd=tmp_path)
    run = only_run(tmp_path / "my results")
    assert f"my results/runs/{run.name}" in done.stdout
    (advice,) = [line for line in done.stderr.splitlines() if line.startswith("transcripts: ")]
    assert advice == f"transcripts: nip-run show {run.name} --results 'my results'"


@pytest.mark.full
def test_several_specs_are_played_one_after_the_other(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2)
    shutil.copy(tmp_path / "spec.yaml", tmp_path / "second.yaml")
    done = called("spec.yaml", "second.yaml", "name=both", "--json", cwd=tmp_path)
    assert len(json.loads(done.stdout)) == 2
    assert {row["run_id"] for row in json.loads(done.stdout)} == {only_run(tmp_path / "results").name}


@pytest.mark.full
def test_render_shows_exactly_what_goes_on_the_wire(tmp_path: Path) -> None:
    with run_chat_server(record=9) as server:
        spec_file(tmp_path, server.base_url, size=1, models={"m": {"temperature": 0.5, "system_role": "developer"}})
        shown = called("render", "spec.yaml", "verifier", "--json", cwd=tmp_path)
        assert server.requests == 0
        assert called("spec.yaml", cwd=tmp_path).returncode == 0
        first = server.recorded_requests()[0]
    assert json.loads(shown.stdout) == json.loads(first["body"])


def test_show_tells_a_rollout_as_it_was_played(folder: Path) -> None:
    run = only_run(folder / "results")
    row = table(run, "rollouts")[3]
    done = called("show", "tiny", row["rollout_id"][:8], "--json", cwd=folder)
    shown = json.loads(done.stdout)
    for name in ("rollout_id", "outcome", "correct"):
        assert shown[name] == row[name]
    said = [m["content"] for played_round in shown["transcript"] for m in played_round["messages"]]
    assert said == [m["content"] for m in table(run, "messages") if m["rollout_id"] == row["rollout_id"]]


@pytest.mark.parametrize("status", ["done", "failed"])
def test_runs_can_be_chosen_by_their_status(folder: Path, status: str) -> None:
    found = json.loads(called("runs", "--status", status, "--json", cwd=folder).stdout)
    assert len(found) == (status == "done")


@pytest.mark.full
def test_old_names_still_work_with_a_note(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2, cache="cache.sqlite")
    assert called("spec.yaml", cwd=tmp_path).returncode == 0
    new = called("explain-misses", "tiny", "--max", "1", "--json", cwd=tmp_path)
    old = called("why-miss", "tiny", "--most", "1", "--json", cwd=tmp_path)
    assert (new.returncode, len(json.loads(new.stdout)["explained"]), new.stderr) == (0, 1, "")
    assert (old.returncode, old.stdout) == (0, new.stdout)
    assert old.stderr == "note: 'why-miss' is now called 'explain-misses'\nnote: '--most' is now called '--max'\n"
    assert called("why-miss", "tiny", "--most", "1", "--json", "-q", cwd=tmp_path) == new


def test_help_shows_no_old_name(folder: Path) -> None:
    said = called("why-miss", "--help", cwd=folder).stdout + called("--help", cwd=folder).stdout
    assert "explain-misses" in said
    assert "--max N" in said
    assert "why-miss" not in said
    assert "--most" not in said


def test_an_empty_results_folder_is_no_error(tmp_path: Path) -> None:
    for words in (("runs",), ("leaderboard",), ("sql", "SELECT count(*) FROM runs")):
        assert called(*words, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


# Tracebacks


def test_a_traceback_is_shown_only_to_who_asks_twice(folder: Path) -> None:
    for flags, shown in (((), False), (("-v",), False), (("-v", "-v"), True), (("-vv",), True)):
        done = called("show", "nothing", *flags, cwd=folder)
        assert done.returncode == 2
        assert ("Traceback" in done.stderr) is shown


def test_a_damaged_run_folder_is_an_error_without_a_traceback(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "copy")
    run = only_run(copied / "results")
    for name, words in (
        ("metrics.json", ("show", "tiny")),
        ("spec.yaml", ("show", "tiny", "p0")),
        ("manifest.json", ("runs",)),
        ("messages.parquet", ("sql", "SELECT 1 FROM messages")),
    ):
        kept = (run / name).read_bytes()
        (run / name).write_bytes(b"{ damaged")
        done = called(*words, cwd=copied)
        (run / name).write_bytes(kept)
        # A list leaves a damaged run out and says so; whoever asks for that run gets an error.
        assert done.returncode in ((0,) if name == "manifest.json" else (1, 2)), name
        assert "damaged" in done.stderr or name != "manifest.json"
        assert "Traceback" not in done.stderr
        assert "bug in nip-run" not in done.stderr, done.stderr
        assert name in done.stderr


@pytest.mark.full
def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    process = subprocess.Popen(
        command("sql", "SELECT repeat('x', 140) FROM range(2000)"), cwd=folder, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(HANG_SECONDS) == 0
    assert said == ""


@pytest.mark.full
def test_the_shipped_quickstart_plays_from_any_folder(tmp_path: Path) -> None:
    done = called(str(ROOT / "specs" / "quickstart.yaml"), "dataset.limit=6", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["rollouts"] == 6


def test_choices_of_options_are_those_of_the_tables_that_decide() -> None:
    """Help must not import the tables, so it says their names again."""
    choices: dict[str, set[str]] = {}
    for name in ("runs", "export"):
        parser = argparse.ArgumentParser()
        load_command(name).add_arguments(parser)
        choices.update({option.dest: set(option.choices) for option in parser._actions if option.choices})
    assert choices["status"] == set(Status)
    assert choices["format"] == {*(consumer for consumer, _ in FORMATS), *EXPORTS, "mlflow"}
    assert choices["method"] == {method for _, method in FORMATS}


def test_help_for_a_reader_that_has_gone_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = subprocess.run(
            command("--help"), env=environment(), stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
