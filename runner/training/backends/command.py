"""The backend `command`: runs the user's own trainer, a program that gets the dataset and returns the model's name.

Files in the job's folder:

    trainer.log     stdout and stderr of the trainer; logs of earlier attempts are trainer.1.log, trainer.2.log ...
    trainer.lock    locked while the trainer is running
    exit.json       the trainer's exit code
    model.txt       {model_file} in the command: the trainer writes the new model's name to this file
    output/         {output} in the command: the folder for the trainer's results

The trainer continues when nip-run is stopped or killed. The next process notices a running trainer by the lock, and a
finished one by exit.json.
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

from runner.base.errors import RunError
from runner.base.redaction import current_redactor
from runner.base.storage.locks import is_locked, locked
from runner.base.storage.safe_files import append_to, make_folder, make_folders, open_own, open_to_read, read_bounded
from runner.base.text import escape_controls
from runner.spec.checks.training import PLACEHOLDER, command_problems
from runner.spec.training_settings import TrainerSettings
from runner.training.backends import supervisor
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, SaveNote
from runner.training.backends.model_name import MAX_LENGTH, name_problem

LOG_LINES = 10
"""The number of lines of the trainer's log in an error message."""
LOG_BYTES = 8192
"""The maximum number of bytes at the end of the log that are searched for these lines."""
MAX_STATUS_BYTES = 1 << 20
"""The maximum size in bytes of exit.json and trainer.lock."""

_INTERPRETER = re.compile(r"python[\d.]*|pypy[\d.]*|(ba|z|da)?sh|accelerate|torchrun|deepspeed")


def startable_problems(trainer: TrainerSettings, stored: Collection[str] = ()) -> list[str]:
    """Return a message for each missing part of a trainer: its program, script or files.

    `stored` are the paths of files that came with a fetched (downloaded) trainer, which runs in a separate folder. A
    script is only checked if the program is an interpreter, because arguments of `ssh` or `docker` are paths on other
    machines.
    """
    command = trainer.command or ("",)
    program, script = command[0], script_of(command)
    if PLACEHOLDER.search(program):
        return []
    location = f"in {Path.cwd()}, the current folder, where the trainer runs"
    if os.path.normpath(program) not in stored and shutil.which(program) is None:
        where = location if os.sep in program else "on the PATH"
        return [f"no program {program!r} {where}; install the program, or give its full path"]
    if stored:
        if script is None or Path(script).is_absolute() or os.path.normpath(script) in stored:
            return []
        return [f"{script!r} did not come with this trainer; set `command` to your own trainer"]
    if script is not None and not Path(script).exists():
        return [f"no script {script!r} {location}; give its full path, or run nip-run in the script's folder"]
    missing = [name for name in trainer.files or () if not Path(name).exists()]
    return [f"no file {name!r} {location}; correct or remove this entry of `files`" for name in missing]


def script_of(command: Sequence[str]) -> str | None:
    """Return the script in an interpreter's command line: the first argument that looks like a script's path.

    Return None if the program is not an interpreter, or if the code itself is an argument (-c).
    """
    program, *arguments = command
    if not _INTERPRETER.fullmatch(Path(program).name):
        return None
    for argument in arguments:
        if argument == "-c":
            return None
        if argument.endswith((".py", ".sh")) and not argument.startswith("-") and not PLACEHOLDER.search(argument):
            return argument
    return None


class CommandBackend:
    """Runs one trainer at a time for each job. Each attempt to run it has its own log.

    If a trainer was killed and left no result, the next `submit` starts it again. If it failed, `submit` does not start
    it again, because it may fail again at the same cost; the caller submits a new job instead.

    `cwd` is the working folder of the trainer; None for the current folder.
    """

    def __init__(self, group: str, trainer: TrainerSettings, cwd: Path | None = None) -> None:
        self._cwd = cwd
        self._key = f"training.trainers.{group}.command"
        self._command = trainer.command or ()
        problems = command_problems(self._command)
        if problems:
            raise RunError("\n".join(f"{self._key}: {problem}" for problem in problems))

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], save_note: SaveNote) -> JobHandle:
        """Start the trainer if necessary; see `Backend.submit`.

        The handle has the number of the attempt (`attempt`) and the reason for starting the trainer again (`after`).
        """
        try:
            make_folders(job.folder.parent)
            for folder in (job.folder, job.folder / "output"):
                make_folder(folder)
            with locked(job.folder / "begin.lock", f"{job.folder}", wait_seconds=10.0):
                return self._submit(job, notes, save_note)
        except OSError as error:
            raise RunError(
                f"cannot start the trainer of {job.group} in {job.folder}: {error}. Check the permissions and the free "
                "space of this folder, and run the same command again"
            ) from error

    def _submit(self, job: FineTuneJob, notes: Sequence[JobNote], save_note: SaveNote) -> JobHandle:
        """Start the trainer, unless it is running or has ended in this job, and return the handle of the attempt.

        Raises:
            RunError: the program is not on this machine, or cannot be started.
        """
        attempt_notes = [record for record in notes if "attempt" in record]
        last = attempt_notes[-1] if attempt_notes else {"attempt": max(_count_logs(job.folder), 1), "after": ""}
        restart_reason = ""
        if attempt_notes or (job.folder / "trainer.lock").exists():
            previous = self.poll(job, last)
            failed_here = bool(attempt_notes) and _read_result(job.folder) is not None
            if previous.state in (JobState.RUNNING, JobState.SUCCEEDED) or failed_here:
                return last
            restart_reason = f"attempt {last['attempt']} {previous.facts['why']}"
        command = self._command_for(job)
        is_restored = self._cwd is not None and os.sep in command[0] and (self._cwd / command[0]).is_file()
        if not is_restored and shutil.which(command[0]) is None:
            raise RunError(
                f"{self._key}: no program {command[0]!r} on this machine; install the program, or give its full path"
            )
        for name in ("exit.json", "model.txt", "trainer.lock"):
            (job.folder / name).unlink(missing_ok=True)
        _rename_previous_log(job.folder)
        # The logs also count the attempts of earlier jobs that this job replaces.
        handle = {"attempt": max(len(attempt_notes), _count_logs(job.folder)) + 1, "after": restart_reason}
        save_note(handle)
        self._start(job, command)
        return handle

    def _start(self, job: FineTuneJob, command: Sequence[str]) -> None:
        """Start the supervisor of the trainer. It inherits the lock, so the lock is held without a gap."""
        lock = open_own(job.folder / "trainer.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with append_to(job.folder / "trainer.log") as log:
                done = subprocess.run(
                    [sys.executable, "-I", supervisor.__file__, str(lock), str(job.folder.absolute() / "exit.json"),
                     *command],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock,), start_new_session=True,
                    check=False, cwd=self._cwd,
                )  # fmt: skip
        finally:
            os.close(lock)
        if done.returncode != 0:
            raise RunError(
                f"cannot start the trainer of {job.group}; the end of {job.folder / 'trainer.log'}:\n"
                f"{_log_tail(job.folder)}"
            )

    def _command_for(self, job: FineTuneJob) -> list[str]:
        base_model = job.base_model
        if self._cwd is not None and base_model.startswith("."):  # the trainer runs in another folder
            base_model = str(Path(base_model).resolve())
        values = {
            "dataset": job.dataset.absolute(), "base_model": base_model, "method": job.method, "seed": job.seed,
            "output": job.folder.absolute() / "output", "model_file": job.folder.absolute() / "model.txt",
            "group": job.group,
        }  # fmt: skip
        return [PLACEHOLDER.sub(lambda match: str(values[match[1]]), argument) for argument in self._command]

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """Return the trainer's status; see `Backend.poll`."""
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
        result = result or _read_result(job.folder)  # the trainer may have ended since the lock was checked
        if result is None:
            failure = "left no result, because it was killed or the machine stopped"
        elif result.get("code") != 0:
            failure = f"failed: {_describe_exit(result)}"
        else:
            name, name_failure = self._model_of(job)
            if name_failure is None:
                return JobStatus(JobState.SUCCEEDED, name, f"{attempt} of the trainer of {job.group} has ended", result)
            failure = f"failed: the exit code is 0, but {name_failure}"
        message = f"{attempt} of the trainer of {job.group} {failure} (log: {log})"
        return JobStatus(
            JobState.FAILED, None, f"{message}\n{_log_tail(job.folder)}".rstrip(), {**(result or {}), "why": failure}
        )

    def _model_of(self, job: FineTuneJob) -> tuple[str, None] | tuple[None, str]:
        """Return the new model's name and None or, without a name, None and the reason.

        If the command has no {model_file}, the model's name is the path of {output}, because servers of open models
        use the path as the default name.
        """
        path = job.folder / "model.txt"
        if not any("{model_file}" in argument for argument in self._command):
            output = (job.folder / "output").absolute()
            empty = not output.is_dir() or not any(output.iterdir())
            return (None, f"the trainer wrote nothing to {output}") if empty else (str(output), None)
        try:
            with open_to_read(path) as file:
                name = file.read(4 * MAX_LENGTH + 1024).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            return None, f"the new model's name cannot be read from {path}: {error}"
        problem = name_problem(name, job)
        return (name, None) if problem is None else (None, f"the new model's name in {path} is not valid: {problem}")


def _read_result(folder: Path) -> dict[str, object] | None:
    """Return the content of exit.json; None if the trainer is running or was killed."""
    try:
        result = json.loads(read_bounded(folder / "exit.json", MAX_STATUS_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"error": f"exit.json is damaged: {error}"}
    return result if isinstance(result, dict) else {"error": "exit.json is damaged"}


def _describe_exit(result: Mapping[str, object]) -> str:
    """Return words for the content of exit.json."""
    code = result.get("code")
    if not isinstance(code, int):
        return escape_controls(str(result.get("error", "the exit code is unknown")))
    if code >= 0:
        return f"exit code {code}"
    name = str(-code)
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"killed by {name}"


def _process_note(folder: Path) -> str:
    """Return the id of the running trainer's process in parentheses; an empty text if it is unknown."""
    try:
        return f" (process {int(json.loads(read_bounded(folder / 'trainer.lock', MAX_STATUS_BYTES))['pid'])})"
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _rename_previous_log(folder: Path) -> None:
    """Rename the log of the previous attempt to the next free number."""
    log = folder / "trainer.log"
    if log.exists():
        number = 1
        while (folder / f"trainer.{number}.log").exists():
            number += 1
        log.rename(folder / f"trainer.{number}.log")


def _count_logs(folder: Path) -> int:
    """Return the number of attempts that have left a log."""
    return len([*folder.glob("trainer.log"), *folder.glob("trainer.[0-9]*.log")])


def _log_tail(folder: Path) -> str:
    """Return the last lines of the log, escaped and redacted, because the trainer may print its environment."""
    try:
        with os.fdopen(open_own(folder / "trainer.log", os.O_RDONLY), "rb") as file:
            redactor = current_redactor()
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_BYTES - redactor.reach, 0))
            text = redactor.redact_end(file.read(LOG_BYTES + redactor.reach), LOG_BYTES)
    except OSError as error:
        return f"  the log cannot be read: {error.strerror}"
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {escape_controls(line[:300])}" for line in lines[-LOG_LINES:])
