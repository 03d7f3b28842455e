"""Starts a trainer, waits for its end, and writes its exit code: the only process that outlives nip-run.

    python -I supervise.py LOCK EXIT PROGRAM ARGUMENT...

LOCK is an inherited file descriptor whose lock shows that the trainer is running: it is held until both this process
and the trainer have ended for any reason. EXIT is the file for the exit code. The first process returns as soon as a
second one supervises. The script is run by its path in an isolated interpreter, to prevent it from importing a file of
the user's working directory instead of a module. It does not import the `runner` package for the same reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(lock: int, exit_file: Path, command: list[str]) -> None:
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
    # As in `storage.safe_files`: never write through an existing file or link.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(result, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(exit_file)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
