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
from runner.exports.formats import FINE_TUNING_FORMATS
from runner.results.finetune.formats import FORMATS
from runner.results.manifest import Status
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import command, environment, nip_run
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import dataset_file, spec_file

ESC = "\x1b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a spec and its finished offline run."""
    root = tmp_path_factory.mktemp("cli")
    run_spec(spec_file(root), root / "results")
    return root


def run_id(folder: Path) -> str:
    return only_run(folder / "results").name


@dataclass(frozen=True)
class CliResult:
    returncode: int
    stdout: str
    stderr: str


def run_cli(*arguments: str, cwd: Path) -> CliResult:
    """Run the command line in this process, which is faster than a subprocess."""
    stdout, stderr = io.StringIO(), io.StringIO()
    previous_folder = Path.cwd()
    os.chdir(cwd)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            code = main(arguments)
    finally:
        os.chdir(previous_folder)
    return CliResult(code, stdout.getvalue(), stderr.getvalue())


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
def test_every_command_prints_one_json_document_with_the_json_option(folder: Path, name: str) -> None:
    result = run_cli(*COMMANDS[name], "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    json.loads(result.stdout)
    assert ESC not in result.stdout + result.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_output_for_people(folder: Path, name: str) -> None:
    result = nip_run(*COMMANDS[name], cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert ESC not in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("run", "--help"), ("sql", "--help"), ("--version",)])
def test_help_goes_to_stdout_and_exits_0(folder: Path, arguments: tuple[str, ...]) -> None:
    result = nip_run(*arguments, cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_help_lists_every_command_with_its_summary(folder: Path) -> None:
    output = run_cli("--help", cwd=folder).stdout
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(REGISTRY)
    for name in REGISTRY:
        assert re.search(rf"^  {name} +{re.escape(REGISTRY[name].summary)}$", output, re.MULTILINE)


def test_usage_errors_ask_only_for_what_a_command_takes(folder: Path) -> None:
    unknown = run_cli("show", "--zzz", cwd=folder).stderr.splitlines()[-1]
    assert unknown == "nip-run show: error: unrecognized arguments: --zzz", "show takes no overrides"
    missing = run_cli("audit", cwd=folder).stderr
    assert missing.rstrip().endswith("the following arguments are required: DATASET"), "overrides are optional"


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_bad_usage_exits_2_with_an_error_message(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run_cli(*arguments, cwd=folder)
    assert result.returncode == 2
    assert message in result.stderr + (result.stdout if not arguments else "")
    assert "Traceback" not in result.stderr
    assert not arguments or result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nothing"), "no run 'nothing'"),
        (("show", "tiny", "p99"), "no rollout 'p99'"),
        (("sql", "SELECT nonsense"), "nonsense"),
        (("sql", "SELECT 1; SELECT 2"), "enter exactly one SQL query"),
        (("export", "nothing", "--format", "openai"), "no run"),
    ],
)
def test_unknown_names_and_bad_queries_exit_2_with_the_reason(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run_cli(*arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "bug in nip-run" not in result.stderr


def test_errors_with_the_json_option_are_an_object_with_the_exit_code(folder: Path) -> None:
    result = run_cli("check", "spec.yaml", "sed=3", "rollouts.concurrency=none", "--json", cwd=folder)
    report = json.loads(result.stdout)
    assert (result.returncode, report["exit_code"], report["ok"]) == (2, 2, False)
    assert len(report["errors"]) == 2


def test_check_reports_all_problems_at_once_with_their_locations(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    path = spec_file(tmp_path, size=2, seed=-1, rollouts={"concurency": 3}, agents={"verifier": {"model": "n"}})
    result = run_cli("check", "spec.yaml", "models.m.temperature=hot", cwd=tmp_path)
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    for key in ("seed", "rollouts.concurency", "agents.verifier.model"):
        (line,) = [line for line in lines if f": {key}: " in line]
        assert line.startswith(f"{path.name}:1:"), line
    assert any("models.m.temperature" in line and "hot" in line for line in lines)


def test_check_warns_of_a_fixed_seed_that_makes_retries_pointless(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"seed": 3}})
    result = run_cli("check", str(path), cwd=tmp_path)
    assert (result.returncode, result.stderr.count("warning: models.m.seed is fixed (3)")) == (0, 1)
    warnings = json.loads(run_cli("check", str(path), "--json", cwd=tmp_path).stdout)[0]["warnings"]
    assert [f"warning: {line}" in result.stderr.splitlines() for line in warnings] == [True] * len(warnings)
    single_attempt = (str(path), "retry.invalid_response.attempts=1")
    assert "seed is fixed" not in run_cli("check", *single_attempt, cwd=tmp_path).stderr


def test_check_plans_the_run_and_writes_no_file(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"price": {"input": 1.0, "output": 2.0}}})
    before = sorted(tmp_path.rglob("*"))
    result = run_cli("check", "spec.yaml", "rollouts.per_datapoint=2", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (plan,) = json.loads(result.stdout)
    assert (plan["rollouts"], plan["datapoints"]) == (24, 12)
    (model,) = plan["models"]
    assert model["calls"] == [24, 24 * 6]
    assert 0 < model["cost_usd"][0] < model["cost_usd"][1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.full
def test_results_go_to_stdout_and_progress_to_stderr(tmp_path: Path) -> None:
    spec_file(tmp_path, size=3)
    process = run_cli("spec.yaml", "--json", cwd=tmp_path)
    (result,) = json.loads(process.stdout)
    assert (result["status"], result["rollouts"], result["was_finished"]) == ("done", 3, False)
    quiet = run_cli("spec.yaml", "-q", "--again", cwd=tmp_path)
    assert quiet.stderr == ""
    assert "accuracy" in quiet.stdout


@pytest.mark.full
def test_run_prints_its_folder_and_the_command_for_transcripts(tmp_path: Path) -> None:
    spec_file(tmp_path, size=3)
    result = run_cli("spec.yaml", "--results", "my results", cwd=tmp_path)
    run = only_run(tmp_path / "my results")
    assert f"my results/runs/{run.name}" in result.stdout
    (advice,) = [line for line in result.stderr.splitlines() if line.startswith("transcripts: ")]
    assert advice == f"transcripts: nip-run show {run.name} --results 'my results'"


@pytest.mark.full
def test_several_specs_are_played_one_after_the_other(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2)
    shutil.copy(tmp_path / "spec.yaml", tmp_path / "second.yaml")
    result = run_cli("spec.yaml", "second.yaml", "name=both", "--json", cwd=tmp_path)
    assert len(json.loads(result.stdout)) == 2
    assert {row["run_id"] for row in json.loads(result.stdout)} == {only_run(tmp_path / "results").name}


@pytest.mark.full
def test_render_prints_exactly_the_body_of_the_first_request(tmp_path: Path) -> None:
    with run_chat_server(record=9) as server:
        spec_file(tmp_path, server.base_url, size=1, models={"m": {"temperature": 0.5, "system_role": "developer"}})
        rendered = run_cli("render", "spec.yaml", "verifier", "--json", cwd=tmp_path)
        assert server.requests == 0
        assert run_cli("spec.yaml", cwd=tmp_path).returncode == 0
        first_request = server.recorded_requests()[0]
    assert json.loads(rendered.stdout) == json.loads(first_request["body"])


def test_show_prints_the_recorded_rollout_and_its_messages(folder: Path) -> None:
    run = only_run(folder / "results")
    row = table(run, "rollouts")[3]
    result = run_cli("show", "tiny", row["rollout_id"][:8], "--json", cwd=folder)
    rollout = json.loads(result.stdout)
    for name in ("rollout_id", "outcome", "correct"):
        assert rollout[name] == row[name]
    contents = [m["content"] for played_round in rollout["transcript"] for m in played_round["messages"]]
    assert contents == [m["content"] for m in table(run, "messages") if m["rollout_id"] == row["rollout_id"]]


@pytest.mark.parametrize("status", ["done", "failed"])
def test_runs_can_be_filtered_by_status(folder: Path, status: str) -> None:
    rows = json.loads(run_cli("runs", "--status", status, "--json", cwd=folder).stdout)
    assert len(rows) == (status == "done")


@pytest.mark.full
def test_renamed_commands_and_options_still_work_with_a_note(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2, cache="cache.sqlite")
    assert run_cli("spec.yaml", cwd=tmp_path).returncode == 0
    new = run_cli("explain-misses", "tiny", "--max", "1", "--json", cwd=tmp_path)
    old = run_cli("why-miss", "tiny", "--most", "1", "--json", cwd=tmp_path)
    assert (new.returncode, len(json.loads(new.stdout)["explained"]), new.stderr) == (0, 1, "")
    assert (old.returncode, old.stdout) == (0, new.stdout)
    assert old.stderr == "note: 'why-miss' is now called 'explain-misses'\nnote: '--most' is now called '--max'\n"
    assert run_cli("why-miss", "tiny", "--most", "1", "--json", "-q", cwd=tmp_path) == new


@pytest.mark.parametrize(
    "arguments", [("report", "tiny", "--output", "a.html"), ("plot", "rounds", "tiny", "--output", "a.csv")]
)
def test_output_is_an_old_name_of_out(folder: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    old = run_cli(*arguments[:-1], str(tmp_path / arguments[-1]), cwd=folder)
    assert (old.returncode, old.stderr) == (0, "note: '--output' is now called '--out'\n")
    assert (tmp_path / arguments[-1]).is_file()


@pytest.mark.parametrize("command", REGISTRY)
def test_every_command_that_takes_an_output_path_calls_it_o_and_out(command: str) -> None:
    parser = argparse.ArgumentParser()
    load_command(command).add_arguments(parser)
    names = [{*action.option_strings} for action in parser._actions if action.help is not argparse.SUPPRESS]
    assert all(pair == {"-o", "--out"} for pair in names if pair & {"-o", "--out", "--output"})


def test_help_omits_renamed_commands_and_options(folder: Path) -> None:
    help_text = run_cli("why-miss", "--help", cwd=folder).stdout + run_cli("--help", cwd=folder).stdout
    assert "explain-misses" in help_text
    assert "--max N" in help_text
    assert "why-miss" not in help_text
    assert "--most" not in help_text


def test_empty_results_folder_is_not_an_error(tmp_path: Path) -> None:
    for arguments in (("runs",), ("leaderboard",), ("sql", "SELECT count(*) FROM runs")):
        assert run_cli(*arguments, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


# Tracebacks


def test_traceback_is_shown_only_with_two_verbose_flags(folder: Path) -> None:
    for flags, expected in (((), False), (("-v",), False), (("-v", "-v"), True), (("-vv",), True)):
        result = run_cli("show", "nothing", *flags, cwd=folder)
        assert result.returncode == 2
        assert ("Traceback" in result.stderr) is expected


def test_a_file_that_cannot_be_opened_is_named_and_is_not_called_a_bug(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_command("runs"), "execute", lambda _: open("results"))  # noqa: PTH123, SIM115 - a folder
    for flags, expected in ((("--json",), False), (("-v", "-v"), True)):
        result = run_cli("runs", *flags, cwd=folder)
        lines = result.stderr.splitlines()
        assert (result.returncode, lines[-1]) == (1, "cannot read or write results: Is a directory")
        assert ("Traceback" in result.stderr) is expected
        if flags == ("--json",):
            assert json.loads(result.stdout)["errors"][0]["message"] == lines[-1]


def test_a_dataset_without_permission_is_an_error_of_the_spec(tmp_path: Path) -> None:
    spec_file(tmp_path)
    for name in ("data.jsonl", "chats.jsonl", "chats"):
        (tmp_path / name).touch() if "." in name else (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0)
        # Without these capabilities, not even root can read the file.
        as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        transcripts = [] if name == "data.jsonl" else ["+dataset.transcripts={label: benign}"]
        process = subprocess.run(
            [*as_user, *command("check", "spec.yaml", f"dataset.path={name}", *transcripts)], cwd=tmp_path, check=False,
            env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS,
        )  # fmt: skip
        message = f"dataset.path: cannot read the dataset: {name}: Permission denied"
        assert (process.returncode, message in process.stderr) == (2, True), process.stderr


def test_a_damaged_run_folder_is_an_error_without_a_traceback(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    run = only_run(copy / "results")
    for name, arguments in (
        ("metrics.json", ("show", "tiny")),
        ("spec.yaml", ("show", "tiny", "p0")),
        ("manifest.json", ("runs",)),
        ("messages.parquet", ("sql", "SELECT 1 FROM messages")),
    ):
        content = (run / name).read_bytes()
        (run / name).write_bytes(b"{ damaged")
        result = run_cli(*arguments, cwd=copy)
        (run / name).write_bytes(content)
        # `runs` skips a damaged run with a notice; commands on that run fail.
        assert result.returncode in ((0,) if name == "manifest.json" else (1, 2)), name
        assert "damaged" in result.stderr or name != "manifest.json"
        assert "Traceback" not in result.stderr
        assert "bug in nip-run" not in result.stderr, result.stderr
        assert name in result.stderr


@pytest.mark.full
def test_closed_stdout_pipe_is_not_an_error(folder: Path) -> None:
    process = subprocess.Popen(
        command("sql", "SELECT repeat('x', 140) FROM range(2000)"), cwd=folder, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(HANG_SECONDS) == 0
    assert stderr == ""


@pytest.mark.full
def test_the_shipped_quickstart_plays_from_any_folder(tmp_path: Path) -> None:
    process = run_cli(str(ROOT / "specs" / "quickstart.yaml"), "dataset.limit=6", "--json", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (result,) = json.loads(process.stdout)
    assert result["rollouts"] == 6


def test_option_choices_match_the_registries_that_define_them() -> None:
    """Compare the names repeated in the parsers, because help must not import the modules that define them."""
    choices: dict[str, set[str]] = {}
    for name in ("runs", "export"):
        parser = argparse.ArgumentParser()
        load_command(name).add_arguments(parser)
        choices.update({option.dest: set(option.choices) for option in parser._actions if option.choices})
    assert choices["status"] == set(Status)
    assert set(FINE_TUNING_FORMATS) == {consumer for consumer, _ in FORMATS}
    assert choices["method"] == {method for _, method in FORMATS}


def test_help_into_a_closed_pipe_exits_0_without_error_output() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed_pipe:
        result = subprocess.run(
            command("--help"), env=environment(), stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (result.returncode, result.stderr) == (0, "")
