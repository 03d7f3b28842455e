"""The user's own trainer: a program that gets the dataset and gives the new model's name.

In the job's folder:

    trainer.log     what it wrote to stdout and stderr; those of earlier attempts are trainer.1.log, trainer.2.log ...
    trainer.lock    locked for as long as the trainer is going on
    exit.json       how it ended
    model.txt       {model_file}: the new model's name, by the trainer
    output/         {output}

The trainer goes on when nip-run is stopped or killed, and the next process finds it by the lock, or by its end.
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
MAX_SAID = 1 << 20
"""The largest file that says how a trainer stands."""

_INTERPRETER = re.compile(r"python[\d.]*|pypy[\d.]*|(ba|z|da)?sh|accelerate|torchrun|deepspeed")


def startable_problems(trainer: TrainerSettings, stored: Collection[str] = ()) -> list[str]:
    """Return what a trainer needs and does not find here: its program, its script and its files.

    `stored` are the paths of files that came with a fetched trainer, which runs in a folder of its own. A script is
    looked for where an interpreter on this machine reads it; what `ssh` or `docker` are given is elsewhere.
    """
    program, script = (trainer.command or ("",))[0], script_of(trainer.command or ())
    if _PLACEHOLDER.search(program):
        return []
    here = f"in {Path.cwd()}, the folder that nip-run is run in, and the trainer with it"
    if os.path.normpath(program) not in stored and shutil.which(program) is None:
        where = here if os.sep in program else "on the PATH"
        return [f"no program {program!r} {where}; install it, or give its whole path"]
    if stored:
        needed = [name for name in (script,) if name is not None and not Path(name).is_absolute()]
        absent = [name for name in needed if os.path.normpath(name) not in stored]
        return [f"{name!r} did not come with this trainer; set `command` to a trainer of your own" for name in absent]
    if script is not None and not Path(script).exists():
        return [f"no script {script!r} {here}; give its whole path, or run nip-run in its folder"]
    absent = [name for name in trainer.files or () if not Path(name).exists()]
    return [f"no file {name!r} {here}; correct it in `files`, or leave it out there" for name in absent]


def script_of(command: Sequence[str]) -> str | None:
    """Return the path of the script that an interpreter is given: the first argument that looks like one, unless code
    is given in its place.
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
    """One trainer at a time for each job, each attempt with a log of its own.

    A trainer that was cut off, so that nothing says how it ended, is started again by the next `submit`; one that has
    failed is not, for it may fail again at the same price: a job that takes its place is another, without notes.

    `here` is the folder that the trainer runs in; None: the current folder.
    """

    def __init__(self, group: str, trainer: TrainerSettings, here: Path | None = None) -> None:
        self._here = here
        self._key = f"training.trainers.{group}.command"
        self._command = trainer.command or ()
        problems = command_problems(self._command)
        if problems:
            raise RunError("\n".join(f"{self._key}: {problem}" for problem in problems))

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        """See `Backend.submit`; the handle has the number of the attempt, and why it is not the first."""
        try:
            make_folders(job.folder.parent)
            for folder in (job.folder, job.folder / "output"):
                make_folder(folder)
            with locked(job.folder / "begin.lock", f"{job.folder}", wait_seconds=10.0):
                return self._submit(job, notes, keep)
        except OSError as error:
            raise RunError(f"cannot start the trainer of {job.group} in {job.folder}: {error}") from error

    def _submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        attempts = [record for record in notes if "attempt" in record]
        last = attempts[-1] if attempts else {"attempt": max(_logs(job.folder), 1), "after": ""}
        after = ""
        if attempts or (job.folder / "trainer.lock").exists():
            before = self.poll(job, last)
            failed_here = bool(attempts) and _ended(job.folder) is not None
            if before.state in (JobState.RUNNING, JobState.SUCCEEDED) or failed_here:
                return last
            after = f"attempt {last['attempt']} {before.facts['why']}"
        command = self._filled(job)
        is_restored = self._here is not None and os.sep in command[0] and (self._here / command[0]).is_file()
        if not is_restored and shutil.which(command[0]) is None:
            raise RunError(f"{self._key}: no program {command[0]!r} here; install it, or give its whole path")
        for name in ("exit.json", "model.txt", "trainer.lock"):
            (job.folder / name).unlink(missing_ok=True)
        _keep_log(job.folder)
        # The attempts of jobs that this one replaces are counted by the logs they left.
        handle = {"attempt": max(len(attempts), _logs(job.folder)) + 1, "after": after}
        keep(handle)
        self._start(job, command)
        return handle

    def _start(self, job: FineTuneJob, command: Sequence[str]) -> None:
        """Start the supervising process; it inherits the lock, so that the lock is held at every moment."""
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

    def _filled(self, job: FineTuneJob) -> list[str]:
        base_model = job.base_model
        if self._here is not None and base_model.startswith("."):  # the trainer does not run in the current folder
            base_model = str(Path(base_model).resolve())
        values = {
            "dataset": job.dataset.absolute(), "base_model": base_model, "method": job.method, "seed": job.seed,
            "output": job.folder.absolute() / "output", "model_file": job.folder.absolute() / "model.txt",
            "group": job.group,
        }  # fmt: skip
        return [_PLACEHOLDER.sub(lambda found: str(values[found[1]]), argument) for argument in self._command]

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """See `Backend.poll`."""
        attempt = f"attempt {handle.get('attempt', 1)}"
        log = job.folder / "trainer.log"
        ended = _ended(job.folder)
        if ended is None and is_locked(job.folder / "trainer.lock"):
            after = f"; {handle['after']}" if handle.get("after") else ""
            return JobStatus(
                JobState.RUNNING,
                None,
                f"{attempt} of the trainer of {job.group} is going on{_process(job.folder)}; its log is {log}{after}",
            )
        ended = ended or _ended(job.folder)  # it may have ended since the lock was looked at
        if ended is None:
            wrong = "left no result: it was cut off, with the machine or by hand"
        elif ended.get("code") != 0:
            wrong = f"failed: {_how(ended)}"
        else:
            name, wrong_name = self._model_of(job)
            if wrong_name is None:
                return JobStatus(JobState.SUCCEEDED, name, f"{attempt} of the trainer of {job.group} has ended", ended)
            wrong = f"failed: it ended well, but {wrong_name}"
        message = f"{attempt} of the trainer of {job.group} {wrong} (log: {log})"
        return JobStatus(
            JobState.FAILED, None, f"{message}\n{_log_tail(job.folder)}".rstrip(), {**(ended or {}), "why": wrong}
        )

    def _model_of(self, job: FineTuneJob) -> tuple[str, None] | tuple[None, str]:
        """The new model's name, or why there is none.

        A command that is not told {model_file} makes a model in {output}, which is then its name: what servers of
        open models call a model on disk.
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
        wrong = name_problem(name, job.base_model)
        return (name, None) if wrong is None else (None, f"the new model's name in {path} cannot be used: {wrong}")


def _ended(folder: Path) -> dict[str, Any] | None:
    """How the trainer ended; None where nothing says that it has."""
    try:
        ended = json.loads(read_bounded(folder / "exit.json", MAX_SAID))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"error": f"exit.json is damaged: {error}"}
    return ended if isinstance(ended, dict) else {"error": "exit.json is damaged"}


def _how(ended: Mapping[str, Any]) -> str:
    code = ended.get("code")
    if not isinstance(code, int):
        return escape_controls(str(ended.get("error", "its end is unknown")))
    if code >= 0:
        return f"exit code {code}"
    name = str(-code)
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"killed by {name}"


def _process(folder: Path) -> str:
    try:
        return f" (process {int(json.loads(read_bounded(folder / 'trainer.lock', MAX_SAID))['pid'])})"
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _keep_log(folder: Path) -> None:
    """Number the log of the attempt before, so that the new one has its own."""
    log = folder / "trainer.log"
    if log.exists():
        number = 1
        while (folder / f"trainer.{number}.log").exists():
            number += 1
        log.rename(folder / f"trainer.{number}.log")


def _logs(folder: Path) -> int:
    """How many attempts have left a log."""
    return len([*folder.glob("trainer.log"), *folder.glob("trainer.[0-9]*.log")])


def _log_tail(folder: Path) -> str:
    """The last lines of the log, safe for a terminal: a trainer has our environment, and may print it."""
    try:
        with os.fdopen(open_own(folder / "trainer.log", os.O_RDONLY), "rb") as file:
            redactor = current_redactor()
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_BYTES - redactor.reach, 0))
            text = redactor.end(file.read(LOG_BYTES + redactor.reach), LOG_BYTES)
    except OSError as error:
        return f"no log: {error.strerror}"
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {escape_controls(line[:300])}" for line in lines[-LOG_LINES:])
