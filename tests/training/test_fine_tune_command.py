"""The backend `command`: arguments and outcomes of the user's trainer, which kills never start twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError
from runner.models.settings import ModelSettings
from runner.spec.checks.training import PLACEHOLDERS, command_problems
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.command import CommandBackend, startable_problems
from runner.training.backends.interface import Backend, FineTuneJob, JobState, JobStatus
from runner.training.backends.model_name import MAX_LENGTH
from runner.training.backends.registry import TrainedGroup, create_backend
from tests.support.fine_tuning_jobs import fail_on_record
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment, wait_until
from tests.support.worker_processes import is_worker_running

WRITE_MODEL_NAME = "pathlib.Path(model_file).write_text('  org/better\\n')"
WAIT_FOR_GO = f"""
open('starts', 'a').write('x')
while not os.path.exists('go'):
    time.sleep(0.01)
{WRITE_MODEL_NAME}
"""


def make_trainer_command(code: str, *more: str) -> tuple[str, ...]:
    """Build a trainer command whose code can use its first arguments by name."""
    names = "import os, pathlib, signal, sys, time\ndataset, model_file, output = sys.argv[1:4]\n"
    return (sys.executable, "-c", names + code, "{dataset}", "{model_file}", "{output}", *more)


def make_command_backend(command: tuple[str, ...]) -> Backend:
    return create_backend(
        TrainedGroup("m", TrainerSettings(backend="command", command=command), ModelSettings(model="tiny"))
    )


def make_job_in(folder: Path) -> FineTuneJob:
    dataset = folder / "m.sft.jsonl"
    dataset.write_text('{"messages": []}\n')
    return FineTuneJob("run/1/m", "m", "sft", "org/tiny", dataset, "ab" * 32, folder / "job", 7, "my run")


def poll_to_end(backend: Backend, job: FineTuneJob, handle: Mapping[str, Any]) -> JobStatus:
    deadline = time.monotonic() + HANG_SECONDS
    while (status := backend.poll(job, handle)).state is JobState.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return status


def run_trainer(folder: Path, command: tuple[str, ...]) -> JobStatus:
    backend, job = make_command_backend(command), make_job_in(folder)
    return poll_to_end(backend, job, backend.submit(job, [], lambda record: None))


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run in a separate working directory, and let waiting trainers finish at the end."""
    monkeypatch.chdir(tmp_path)
    yield
    (tmp_path / "go").touch()


# Arguments and outcomes


def test_trainer_names_the_new_model_in_a_file(tmp_path: Path) -> None:
    status = run_trainer(
        tmp_path, make_trainer_command(f"print('3 epochs')\nsys.stderr.write('loss 0.1')\n{WRITE_MODEL_NAME}")
    )
    assert (status.state, status.model) == (JobState.SUCCEEDED, "org/better")
    assert sorted((tmp_path / "job" / "trainer.log").read_text().split()) == ["0.1", "3", "epochs", "loss"]


def test_every_placeholder_is_replaced_once_and_other_text_is_unchanged(tmp_path: Path) -> None:
    code = "print(*sys.argv[4:], sep='\\n')\n" + WRITE_MODEL_NAME
    arguments = (*(f"--{name}={{{name}}}" for name in PLACEHOLDERS), "{dataset}:{seed}", '{"lr": 1e-4}', "$HOME *", "")
    job = make_job_in(tmp_path)
    job_with_braces = FineTuneJob(**{**vars(job), "base_model": "{seed}", "group": "a b"})
    backend = make_command_backend(make_trainer_command(code, *arguments))
    poll_to_end(backend, job_with_braces, backend.submit(job_with_braces, [], lambda record: None))
    folder = tmp_path / "job"
    assert (folder / "trainer.log").read_text().split("\n")[:-1] == [
        f"--dataset={job.dataset}", "--base_model={seed}", f"--output={folder / 'output'}",
        f"--model_file={folder / 'model.txt'}", "--method=sft", "--seed=7", "--group=a b", f"{job.dataset}:7",
        '{"lr": 1e-4}', "$HOME *", "",
    ]  # fmt: skip


def test_trainer_with_only_an_output_folder_saves_the_model_there(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; open(sys.argv[2] + '/weights', 'w')", "{dataset}", "{output}")
    status = run_trainer(tmp_path, command)
    assert status.model == str(tmp_path / "job" / "output")
    idle_command = (sys.executable, "-c", "", "{dataset}", "{output}")
    (tmp_path / "other").mkdir()
    assert "wrote nothing to" in run_trainer(tmp_path / "other", idle_command).message


def test_trainer_gets_absolute_paths_if_the_results_path_is_relative(tmp_path: Path) -> None:
    job = make_job_in(tmp_path)
    job = FineTuneJob(**{**vars(job), "dataset": Path("m.sft.jsonl"), "folder": Path("job")})
    backend = make_command_backend(
        make_trainer_command(f"os.chdir('/')\nopen(dataset)\nos.listdir(output)\n{WRITE_MODEL_NAME}")
    )
    assert poll_to_end(backend, job, backend.submit(job, [], lambda record: None)).model == "org/better"


def test_trainer_inherits_the_environment_and_gets_no_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    code = "assert sys.stdin.read() == ''\npathlib.Path(model_file).write_text(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert run_trainer(tmp_path, make_trainer_command(code)).model == "3"


def test_python_files_in_the_working_directory_do_not_shadow_modules(tmp_path: Path) -> None:
    for name in ("json.py", "subprocess.py", "runner.py"):
        (tmp_path / name).write_text("raise SystemExit('not me')")
    command = (sys.executable, "-I", *make_trainer_command(WRITE_MODEL_NAME)[1:])
    assert run_trainer(tmp_path, command).state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("code", "expected_message"),
    [
        ("print('no GPU \\x1b[31mhere')\nsys.exit(3)", "exit code 3"),
        (f"{WRITE_MODEL_NAME}\nsys.exit(1)", "exit code 1"),
        ("print('no GPU \\x1b[31mhere', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("print('no GPU \\x1b[31mhere')", "the new model's name cannot be read"),
        ("open(model_file, 'w')", "the name is empty"),
        ("open(model_file, 'w').write(' \\n ')", "the name is empty"),
        ("open(model_file, 'w').write('a\\nb')", "not a single line"),
        ("open(model_file, 'w').write('a\\x1b[2Jb')", "control or invisible characters"),
        (f"open(model_file, 'w').write('x' * {MAX_LENGTH + 1})", f"the maximum is {MAX_LENGTH}"),
        ("open(model_file, 'w').write('x' * 10_000_000)", f"the maximum is {MAX_LENGTH}"),
        ("open(model_file, 'wb').write(b'\\xff\\xfe')", "cannot be read"),
        ("os.mkdir(model_file)", "cannot be read"),
        ("open(model_file, 'w').write('org/tiny')", "org/tiny is the base model"),
    ],
)
def test_failed_trainer_is_reported_with_its_reason_and_the_end_of_its_log(
    tmp_path: Path, code: str, expected_message: str
) -> None:
    status = run_trainer(tmp_path, make_trainer_command(code))
    assert (status.state, status.model) == (JobState.FAILED, None)
    assert expected_message in status.message
    assert str(tmp_path / "job" / "trainer.log") in status.message
    assert "\x1b" not in status.message
    if "GPU" in code:
        assert status.message.endswith("\n  no GPU \\x1b[31mhere")


@pytest.mark.full
def test_error_shows_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    status = run_trainer(
        tmp_path, make_trainer_command("for i in range(99999): print('step', i, end='\\r')\nsys.exit(1)")
    )
    assert status.message.split("\n")[1:] == [f"  step {i}" for i in range(99989, 99999)]


def test_missing_program_is_an_error_before_anything_is_noted(tmp_path: Path) -> None:
    backend = make_command_backend(("no-such-trainer", "{dataset}", "{model_file}"))
    with pytest.raises(RunError, match="no-such-trainer"):
        backend.submit(make_job_in(tmp_path), [], fail_on_record)


def test_unexecutable_program_is_a_failed_job(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "train").chmod(0o755)
    status = run_trainer(tmp_path, ("./train", "{dataset}", "{model_file}"))
    assert status.state is JobState.FAILED
    assert "cannot start ./train" in status.message


# One start per job


def test_repeated_submits_start_a_trainer_once(tmp_path: Path) -> None:
    job, notes = make_job_in(tmp_path), list[Mapping[str, Any]]()
    handle = make_command_backend(make_trainer_command(WAIT_FOR_GO)).submit(job, notes, notes.append)
    for known_notes in (notes, []):
        for _ in range(3):
            assert (
                make_command_backend(make_trainer_command(WAIT_FOR_GO)).submit(job, known_notes, fail_on_record)
                == handle
            )
    assert make_command_backend(make_trainer_command(WAIT_FOR_GO)).poll(job, handle).state is JobState.RUNNING
    (tmp_path / "go").touch()
    assert poll_to_end(make_command_backend(make_trainer_command(WAIT_FOR_GO)), job, handle).model == "org/better"
    assert make_command_backend(make_trainer_command(WAIT_FOR_GO)).submit(job, notes, fail_on_record) == handle
    assert (tmp_path / "starts").read_text() == "x"


def test_running_trainer_is_reported_with_its_process_id(tmp_path: Path) -> None:
    job = make_job_in(tmp_path)
    backend = make_command_backend(make_trainer_command("print(os.getpid(), flush=True)\n" + WAIT_FOR_GO))
    handle = backend.submit(job, [], lambda record: None)
    wait_until((tmp_path / "starts").exists)
    pid = (tmp_path / "job" / "trainer.log").read_text().strip()
    assert f"(process {pid})" in backend.poll(job, handle).message


def test_failed_trainer_is_not_restarted_for_the_same_job(tmp_path: Path) -> None:
    job, notes, command = make_job_in(tmp_path), list[Mapping[str, Any]](), make_trainer_command("sys.exit(5)")
    handle = make_command_backend(command).submit(job, notes, notes.append)
    assert poll_to_end(make_command_backend(command), job, handle).state is JobState.FAILED
    assert make_command_backend(command).submit(job, notes, fail_on_record) == handle
    assert "exit code 5" in make_command_backend(command).poll(job, handle).message


def test_job_after_a_failure_is_a_new_attempt_with_its_own_log(tmp_path: Path) -> None:
    command = make_trainer_command(f"print('here')\nif not os.path.exists('go'): sys.exit(5)\n{WRITE_MODEL_NAME}")
    job, backend = make_job_in(tmp_path), make_command_backend(command)
    for attempt in (1, 2):
        handle = backend.submit(job, [], lambda record: None)
        assert handle["attempt"] == attempt
        assert poll_to_end(backend, job, handle).state is JobState.FAILED
    (tmp_path / "go").touch()
    handle = backend.submit(job, [], lambda record: None)
    assert handle == {"attempt": 3, "after": "attempt 2 failed: exit code 5"}
    assert poll_to_end(backend, job, handle).model == "org/better"
    for name in ("trainer.log", "trainer.1.log", "trainer.2.log"):
        assert (tmp_path / "job" / name).read_text() == "here\n"


def test_restarted_job_continues_the_attempt_count(tmp_path: Path) -> None:
    job, backend = make_job_in(tmp_path), make_command_backend(make_trainer_command("sys.exit(5)"))
    for attempt in (1, 2, 3):
        status = poll_to_end(backend, job, backend.submit(job, [], lambda record: None))
        log = tmp_path / "job" / "trainer.log"
        assert status.message == f"attempt {attempt} of the trainer of m failed: exit code 5 (log: {log})"


def test_model_name_of_a_failed_attempt_is_not_used_by_the_next(tmp_path: Path) -> None:
    command = make_trainer_command(f"if not os.path.exists('go'):\n    {WRITE_MODEL_NAME}\n    sys.exit(5)")
    job, backend = make_job_in(tmp_path), make_command_backend(command)
    poll_to_end(backend, job, backend.submit(job, [], lambda record: None))
    (tmp_path / "go").touch()
    handle = backend.submit(job, [], lambda record: None)
    assert handle["attempt"] == 2
    assert poll_to_end(backend, job, handle).state is JobState.FAILED


HOLDER = """
import sys, time
from pathlib import Path
from runner.training.backends.interface import FineTuneJob
from runner.training.backends.command import CommandBackend
from runner.spec.training_settings import TrainerSettings
folder, command = Path(sys.argv[1]), tuple(sys.argv[2:])
job = FineTuneJob("run/1/m", "m", "sft", "org/tiny", folder / "m.sft.jsonl", "ab" * 32, folder / "job", 7, "my run")
backend = CommandBackend("m", TrainerSettings(backend="command", command=command))
backend.submit(job, [], lambda record: print(record, flush=True))
print("begun", flush=True)
time.sleep(60)
"""


def start_holder(folder: Path, command: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start a process that submits the job and waits."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), *command], cwd=folder, env=environment(),
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def kill_holder(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_trainer_survives_a_killed_run_and_is_found_by_the_next(tmp_path: Path) -> None:
    job, command = make_job_in(tmp_path), make_trainer_command(WAIT_FOR_GO)
    process = start_holder(tmp_path, command)
    assert process.stdout is not None
    assert "attempt" in process.stdout.readline()
    assert process.stdout.readline() == "begun\n"
    kill_holder(process)
    backend = make_command_backend(command)
    handle = backend.submit(job, [{"attempt": 1, "after": ""}], fail_on_record)
    assert backend.poll(job, handle).state is JobState.RUNNING
    (tmp_path / "go").touch()
    assert poll_to_end(backend, job, handle).model == "org/better"
    assert (tmp_path / "starts").read_text() == "x"


def test_trainer_that_ended_without_a_run_is_not_restarted(tmp_path: Path) -> None:
    job, command = make_job_in(tmp_path), make_trainer_command(WAIT_FOR_GO)
    process = start_holder(tmp_path, command)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    kill_holder(process)
    (tmp_path / "go").touch()
    wait_until((tmp_path / "job" / "exit.json").exists)
    backend = make_command_backend(command)
    assert backend.poll(job, backend.submit(job, [{"attempt": 1}], fail_on_record)).model == "org/better"


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 8))])
def test_kills_during_the_start_never_run_two_trainers_at_once(tmp_path: Path, seed: int) -> None:
    code = f"os.close(os.open('alone', os.O_CREAT | os.O_EXCL))\n{WAIT_FOR_GO}os.remove('alone')"
    job, command = make_job_in(tmp_path), make_trainer_command(code)
    rng = random.Random(f"start/{seed}")
    for _ in range(3):
        process = start_holder(tmp_path, command)
        time.sleep(rng.uniform(0.05, 0.5))
        kill_holder(process)
    notes: list[Mapping[str, Any]] = [{"attempt": 1, "after": ""}]
    backend = make_command_backend(command)
    handle = backend.submit(job, notes, notes.append)
    wait_until((tmp_path / "starts").exists)
    (tmp_path / "go").touch()
    assert poll_to_end(backend, job, handle).model == "org/better"
    assert (tmp_path / "starts").read_text() == "x"


def test_trainer_killed_with_the_machine_is_restarted_with_a_message(tmp_path: Path) -> None:
    job, notes, backend = (
        make_job_in(tmp_path),
        list[Mapping[str, Any]](),
        make_command_backend(make_trainer_command(WAIT_FOR_GO)),
    )
    handle = backend.submit(job, notes, notes.append)
    wait_until(lambda: (tmp_path / "starts").exists() and (tmp_path / "starts").read_text() == "x")
    pid = json.loads((tmp_path / "job" / "trainer.lock").read_bytes())["pid"]
    supervisor_pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor_pid, signal.SIGKILL)
    wait_until(lambda: not is_worker_running(supervisor_pid))
    assert backend.poll(job, handle).state is JobState.RUNNING, "the trainer itself is still there"
    os.killpg(pid, signal.SIGKILL)
    status = poll_to_end(backend, job, handle)
    assert status.state is JobState.FAILED
    assert "killed or the machine stopped" in status.message
    handle = backend.submit(job, notes, notes.append)
    assert "attempt 1 left no result" in backend.poll(job, handle).message
    (tmp_path / "go").touch()
    assert poll_to_end(backend, job, handle).model == "org/better"
    assert (tmp_path / "starts").read_text() == "xx"


# The spec


def test_complete_command_has_no_problems() -> None:
    assert command_problems(("train", "{dataset}", "--lr={}", "{model_file}", '{"a": 1}')) == []
    assert command_problems(("train", "{dataset}", "{output}")) == []


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (("train", "{data_set}", "{output}"), ["unknown placeholder {data_set}; did you mean", "{dataset} is"]),
        (("train", "{dataset}"), ["{model_file} or {output} is missing"]),
        (("train", "{dataset}", "{output}", "{x}{y}{x}"), ["{x}", "{y}"]),
        (("", "{dataset}", "{output}"), ["the program"]),
        (("train", "\0{dataset}", "{output}"), ["NUL"]),
        ((), ["the program", "{dataset} is missing", "{model_file} or {output} is missing"]),
    ],
)
def test_all_problems_of_a_command_are_reported_at_once(command: tuple[str, ...], parts: list[str]) -> None:
    problems = command_problems(command)
    assert len(problems) == len(parts)
    assert all(part in problem for part, problem in zip(parts, problems, strict=True))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("no-such-trainer", "{dataset}"), "no program 'no-such-trainer' on the PATH"),
        (("./train", "{dataset}"), "no program './train' in {here}"),
        ((sys.executable, "gone.py", "{dataset}"), "no script 'gone.py' in {here}"),
        (("bash", "-e", "gone.sh", "{dataset}"), "no script 'gone.sh' in {here}"),
        ((sys.executable, "here.py", "made-by-it.py", "{output}/run.py"), None),
        ((sys.executable, "-c", "print()", "gone.py"), None),
        (("env", "python", "gone.py"), None),
    ],
)
def test_missing_programs_and_scripts_of_a_command_are_reported(
    tmp_path: Path, command: tuple[str, ...], problem: str | None
) -> None:
    (tmp_path / "here.py").touch()
    problems = startable_problems(TrainerSettings(backend="command", command=command))
    assert len(problems) == (problem is not None)
    assert all((problem or "").format(here=tmp_path) in found_problem for found_problem in problems)


def test_fetched_trainer_needs_its_script_among_its_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()  # a file of another project
    trainer = TrainerSettings(backend="command", command=(sys.executable, "train.py", "{dataset}"))
    assert startable_problems(trainer, ["train.py"]) == []
    (problem,) = startable_problems(trainer, ["helper.py"])
    assert problem.startswith("'train.py' did not come with this trainer")


def test_missing_file_of_a_trainer_is_reported(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "print()", "{dataset}")
    trainer = TrainerSettings(backend="command", command=command, files=("gone.json",))
    assert [f"no file 'gone.json' in {tmp_path}" in line for line in startable_problems(trainer)] == [True]


def test_invalid_command_is_rejected() -> None:
    with pytest.raises(RunError, match=r"training\.trainers\.m\.command: \{dataset\} is missing"):
        make_command_backend(("train", "{output}"))


def test_relative_base_model_of_a_fetched_trainer_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "fetched").mkdir()
    command = (sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])", "{model_file}",
               "{base_model}", "{dataset}")  # fmt: skip
    backend = CommandBackend("m", TrainerSettings(backend="command", command=command), tmp_path / "fetched")
    job = replace(make_job_in(tmp_path), base_model="./weights")
    assert poll_to_end(backend, job, backend.submit(job, [], lambda record: None)).model == str(tmp_path / "weights")
