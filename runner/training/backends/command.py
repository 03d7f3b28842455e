"""The user's own trainer: a program that gets the dataset and returns the new model's name.

In the job's folder:

    trainer.log     its stdout and stderr; the logs of earlier attempts are trainer.1.log, trainer.2.log ...
    trainer.lock    locked while the trainer is running
    exit.json       how it ended
    model.txt       {model_file}: the new model's name, written by the trainer
    output/         {output}

The trainer continues when nip-run is stopped or killed; the next process finds it by the lock or by exit.json.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.base.errors import RunError
from runner.base.redaction import current_redactor
from runner.base.storage.locks import is_locked, locked
from runner.base.storage.safe_files import append_to, make_folder, make_folders, open_own, open_to_read, read_bounded
from runner.base.text import escape_controls
from runner.spec.checks.trainer_command import _PLACEHOLDER, command_problems
from runner.spec.training_settings import TrainerSettings
from runner.training.backends import supervisor
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, KeepNote
from runner.training.backends.model_name import MAX_LENGTH, name_problem

LOG_LINES = 10
LOG_BYTES = 8192
MAX_STATUS_BYTES = 1 << 20
"""The maximum size in bytes of a file with the trainer's status."""

_INTERPRETER = re.compile(r"python[\d.]*|pypy[\d.]*|(ba|z|da)?sh|accelerate|torchrun|deepspeed")


def startable_problems(trainer: TrainerSettings, stored: Collection[str] = ()) -> list[str]:
    """Return a message for each thing that a trainer needs and that is missing: its program, script or files.

    `stored` are the paths of files that came with a fetched trainer, which runs in a separate folder. A script is only
    checked if an interpreter on this machine reads it; arguments of `ssh` or `docker` are paths elsewhere.
    """
    program, script = (trainer.command or ("",))[0], script_of(trainer.command or ())
    if _PLACEHOLDER.search(program):
        return []
    location = f"in {Path.cwd()}, the current folder, which the trainer also runs in"
    if os.path.normpath(program) not in stored and shutil.which(program) is None:
        where = location if os.sep in program else "on the PATH"
        return [f"no program {program!r} {where}; install it, or give its full path"]
    if stored:
        needed = [name for name in (script,) if name is not None and not Path(name).is_absolute()]
        missing = [name for name in needed if os.path.normpath(name) not in stored]
        return [f"{name!r} did not come with this trainer; set `command` to your own trainer" for name in missing]
    if script is not None and not Path(script).exists():
        return [f"no script {script!r} {location}; give its full path, or run nip-run in its folder"]
    missing = [name for name in trainer.files or () if not Path(name).exists()]
    return [f"no file {name!r} {location}; correct or remove it in `files`" for name in missing]


def script_of(command: Sequence[str]) -> str | None:
    """Return the path of the script in an interpreter's command line: the first argument that looks like one.

    Return None if the program is not an interpreter, or the code is an argument itself.
    """
    program, *arguments = command
    if not _INTERPRETER.fullmatch(Path(program).name):
        return None
    for argument in arguments:
        if argument == "-c":
            return None
        if argument.endswith((".py", ".sh")) and not argument.startswith("-") and not _PLACEHOLDER.search(argument):
            return argument
    return None


class CommandBackend:
    """Runs one trainer at a time for each job; each attempt has its own log.

    If a trainer was cut off and left no result, the next `submit` starts it again. If it failed, it is not started
    again, because it may fail again at the same cost. The job that replaces it is a new one, without notes.

    `here` is the folder that the trainer runs in; None for the current folder.
    """

    def __init__(self, group: str, trainer: TrainerSettings, here: Path | None = None) -> None:
        self._here = here
        self._key = f"training.trainers.{group}.command"
        self._command = trainer.command or ()
        problems = command_problems(self._command)
        if problems:
            raise RunError("\n".join(f"{self._key}: {problem}" for problem in problems))

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        """See `Backend.submit`; the handle has the number of the attempt and the reason if it is not the first."""
        try:
            make_folders(job.folder.parent)
            for folder in (job.folder, job.folder / "output"):
                make_folder(folder)
            with locked(job.folder / "begin.lock", f"{job.folder}", wait_seconds=10.0):
                return self._submit(job, notes, keep)
        except OSError as error:
            raise RunError(f"cannot start the trainer of {job.group} in {job.folder}: {error}") from error

    def _submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        attempt_notes = [record for record in notes if "attempt" in record]
        last = attempt_notes[-1] if attempt_notes else {"attempt": max(_count_logs(job.folder), 1), "after": ""}
        restart_reason = ""
        if attempt_notes or (job.folder / "trainer.lock").exists():
            previous = self.poll(job, last)
            failed_here = bool(attempt_notes) and _read_result(job.folder) is not None
            if previous.state in (JobState.RUNNING, JobState.SUCCEEDED) or failed_here:
                return last
            restart_reason = f"attempt {last['attempt']} {previous.facts['why']}"
        command = self._filled_command(job)
        is_restored = self._here is not None and os.sep in command[0] and (self._here / command[0]).is_file()
        if not is_restored and shutil.which(command[0]) is None:
            raise RunError(f"{self._key}: no program {command[0]!r} here; install it, or give its full path")
        for name in ("exit.json", "model.txt", "trainer.lock"):
            (job.folder / name).unlink(missing_ok=True)
        _number_log(job.folder)
        # Attempts of the jobs that this one replaces are counted by their logs.
        handle = {"attempt": max(len(attempt_notes), _count_logs(job.folder)) + 1, "after": restart_reason}
        keep(handle)
        self._start(job, command)
        return handle

    def _start(self, job: FineTuneJob, command: Sequence[str]) -> None:
        """Start the supervising process, which inherits the lock, so that the lock is never released in between."""
        lock = open_own(job.folder / "trainer.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with append_to(job.folder / "trainer.log") as log:
                done = subprocess.run(
                    [sys.executable, "-I", supervisor.__file__, str(lock), str(job.folder.absolute() / "exit.json"),
                     *command],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock,), start_new_session=True,
                    check=False, cwd=self._here,
                )  # fmt: skip
        finally:
            os.close(lock)
        if done.returncode != 0:
            raise RunError(f"cannot start the trainer of {job.group}: {_log_tail(job.folder)}")

    def _filled_command(self, job: FineTuneJob) -> list[str]:
        base_model = job.base_model
        if self._here is not None and base_model.startswith("."):  # the trainer does not run in the current folder
            base_model = str(Path(base_model).resolve())
        values = {
            "dataset": job.dataset.absolute(), "base_model": base_model, "method": job.method, "seed": job.seed,
            "output": job.folder.absolute() / "output", "model_file": job.folder.absolute() / "model.txt",
            "group": job.group,
        }  # fmt: skip
        return [_PLACEHOLDER.sub(lambda match: str(values[match[1]]), argument) for argument in self._command]

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """See `Backend.poll`."""
        attempt = f"attempt {handle.get('attempt', 1)}"
        log = job.folder / "trainer.log"
        result = _read_result(job.folder)
        if result is None and is_locked(job.folder / "trainer.lock"):
            after = f"; {handle['after']}" if handle.get("after") else ""
            return JobStatus(
                JobState.RUNNING,
                None,
                f"{attempt} of the trainer of {job.group} is running{_process_note(job.folder)}; log: {log}{after}",
            )
        result = result or _read_result(job.folder)  # it may have ended since the lock was checked
        if result is None:
            failure = "left no result: it was cut off, by a kill or because the machine stopped"
        elif result.get("code") != 0:
            failure = f"failed: {_describe_exit(result)}"
        else:
            name, name_failure = self._model_of(job)
            if name_failure is None:
                return JobStatus(JobState.SUCCEEDED, name, f"{attempt} of the trainer of {job.group} has ended", result)
            failure = f"failed: its exit code is 0, but {name_failure}"
        message = f"{attempt} of the trainer of {job.group} {failure} (log: {log})"
        return JobStatus(
            JobState.FAILED, None, f"{message}\n{_log_tail(job.folder)}".rstrip(), {**(result or {}), "why": failure}
        )

    def _model_of(self, job: FineTuneJob) -> tuple[str, None] | tuple[None, str]:
        """Return the new model's name, or why there is none, as a pair.

        If the command has no {model_file}, the model is in {output}, and its name is that path, which is the default
        name on servers of open models.
        """
        path = job.folder / "model.txt"
        if not any("{model_file}" in argument for argument in self._command):
            output = (job.folder / "output").absolute()
            empty = not output.is_dir() or not any(output.iterdir())
            return (None, f"wrote nothing into {output}") if empty else (str(output), None)
        try:
            with open_to_read(path) as file:
                name = file.read(4 * MAX_LENGTH + 1024).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            return None, f"the new model's name cannot be read from {path}: {error}"
        problem = name_problem(name, job.base_model)
        return (name, None) if problem is None else (None, f"the new model's name in {path} cannot be used: {problem}")


def _read_result(folder: Path) -> dict[str, Any] | None:
    """Return the content of exit.json, or None if the trainer has not ended or was cut off."""
    try:
        result = json.loads(read_bounded(folder / "exit.json", MAX_STATUS_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"error": f"exit.json is damaged: {error}"}
    return result if isinstance(result, dict) else {"error": "exit.json is damaged"}


def _describe_exit(result: Mapping[str, Any]) -> str:
    code = result.get("code")
    if not isinstance(code, int):
        return escape_controls(str(result.get("error", "its end is unknown")))
    if code >= 0:
        return f"exit code {code}"
    name = str(-code)
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"killed by {name}"


def _process_note(folder: Path) -> str:
    try:
        return f" (process {int(json.loads(read_bounded(folder / 'trainer.lock', MAX_STATUS_BYTES))['pid'])})"
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _number_log(folder: Path) -> None:
    """Rename the log of the previous attempt to the next free number."""
    log = folder / "trainer.log"
    if log.exists():
        number = 1
        while (folder / f"trainer.{number}.log").exists():
            number += 1
        log.rename(folder / f"trainer.{number}.log")


def _count_logs(folder: Path) -> int:
    """Return how many attempts have left a log."""
    return len([*folder.glob("trainer.log"), *folder.glob("trainer.[0-9]*.log")])


def _log_tail(folder: Path) -> str:
    """Return the last lines of the log, escaped and without secrets, because the trainer may print its environment."""
    try:
        with os.fdopen(open_own(folder / "trainer.log", os.O_RDONLY), "rb") as file:
            redactor = current_redactor()
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_BYTES - redactor.reach, 0))
            text = redactor.redact_end(file.read(LOG_BYTES + redactor.reach), LOG_BYTES)
    except OSError as error:
        return f"no log: {error.strerror}"
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {escape_controls(line[:300])}" for line in lines[-LOG_LINES:])
