"""Starts a trainer, waits for its end, and writes down how it ended: the one process that outlives nip-run.

    python -I supervise.py LOCK EXIT PROGRAM ARGUMENT...

LOCK is an inherited file descriptor whose lock says that the trainer is going on: it is held until both this process
and the trainer have ended, however they end. EXIT is the file for the exit code. The first process returns as soon
as a second one supervises. Run by its path and alone in the interpreter, so that no file of the user's working
directory is imported in the place of a module; it imports nothing of ours for the same reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(lock: int, ending: Path, command: list[str]) -> None:
    if os.fork():
        os._exit(0)
    try:
        trainer = subprocess.Popen(command, pass_fds=(lock,), start_new_session=True)
    except (OSError, ValueError) as error:
        ended: dict[str, Any] = {"error": f"cannot start {command[0]}: {error}"}
    else:
        os.pwrite(lock, json.dumps({"pid": trainer.pid}).encode(), 0)
        ended = {"code": trainer.wait()}
    beside = ending.with_name(ending.name + ".new")
    beside.unlink(missing_ok=True)
    # As `storage.files` has it: nothing that stands there is written through.
    new = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(new, "w", encoding="utf-8") as file:
        json.dump(ended, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(ending)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
