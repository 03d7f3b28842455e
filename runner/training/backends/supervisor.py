"""Starts a trainer, waits for its end, and writes its exit code to a file. Only this process outlives nip-run.

    python -I supervisor.py LOCK EXIT PROGRAM ARGUMENT...

LOCK is an inherited file descriptor. Its file stays locked until both this process and the trainer have ended, so the
lock shows that the trainer is running. EXIT is the file for the exit code. The process forks, and the parent returns
immediately while the child supervises the trainer.

nip-run starts this script by its path in an isolated interpreter (-I), and the script does not import the `runner`
package. Otherwise, a file in the user's working directory could be imported instead of a module.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(lock: int, exit_file: Path, command: list[str]) -> None:
    """Supervise `command` in a child process, and write the exit code or the error to `exit_file`."""
    if os.fork():
        os._exit(0)
    try:
        trainer = subprocess.Popen(command, pass_fds=(lock,), start_new_session=True)
    except (OSError, ValueError) as error:
        result: dict[str, Any] = {"error": f"cannot start {command[0]}: {error}"}
    else:
        os.pwrite(lock, json.dumps({"pid": trainer.pid}).encode(), 0)
        result = {"code": trainer.wait()}
    temporary = exit_file.with_name(exit_file.name + ".new")
    temporary.unlink(missing_ok=True)
    # Never write to an existing file or through a link, as in `storage.safe_files`.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(result, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(exit_file)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
