"""Work on what strangers sent, in a process of its own with bounded time and memory; its answer is JSON."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import orjson

from runner.errors import NipRunError, ReleaseError
from runner.registry.left_out import in_words
from runner.server.settings import Settings
from runner.storage.atomic import atomic_write
from runner.storage.files import make_folders, read_bounded, remove_folder

Work = Callable[..., dict[str, Any]]
MOST = 256 << 20
_RESULT, _PREFIX = "result.json", "work-"


PRELOADED = ("runner.server.intake.checking", "runner.server.boards.worker", "runner.pages.run_page", "duckdb")
"""What processes of a server begin with: a check, a board, a page."""


def context() -> ForkServerContext:
    """Processes that begin with all that a check imports, and with nothing that a server has open."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([*PRELOADED])
    return made


def run_apart(settings: Settings, work: Work, *args: Any) -> dict[str, Any]:
    """What `work(settings, folder, *args)` answers; the folder is its own, and gone afterwards.

    Raises:
        ReleaseError: it cannot be done, or takes more time or memory than the server gives.
    """
    make_folders(settings.incoming)
    with TemporaryDirectory(prefix=_PREFIX, dir=settings.incoming) as place:
        process = context().Process(target=_run, args=(settings, Path(place), work, args), daemon=True)
        process.start()
        process.join(settings.check_seconds)
        if process.is_alive():
            process.kill()
            process.join()
            raise ReleaseError("it takes longer than this server gives it")
        said: dict[str, Any] = {
            "error": f"it ended with {process.exitcode}; it may take more memory than this server gives"
        }
        with suppress(OSError, ReleaseError, ValueError):
            said = orjson.loads(read_bounded(Path(place) / _RESULT, MOST))
    if "error" in said:
        raise ReleaseError(said["error"])
    found: dict[str, Any] = said["answer"]
    return found


def clear(settings: Settings) -> None:
    """Remove what a server that was killed left of such work."""
    for left in settings.incoming.glob(f"{_PREFIX}*"):
        remove_folder(left)


def _run(settings: Settings, place: Path, work: Work, args: tuple[Any, ...]) -> None:
    os.nice(10)
    seconds = int(settings.check_seconds)
    resource.setrlimit(resource.RLIMIT_AS, (settings.check_bytes, settings.check_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Thread(target=end_with_server, daemon=True).start()
    tempfile.tempdir = str(place)
    try:
        said: dict[str, Any] = {"answer": work(settings, place, *args)}
    except NipRunError as error:
        said = {"error": in_words(error)}
    atomic_write(place / _RESULT, orjson.dumps(said))


def end_with_server() -> None:
    """Wait for the server to end, however it does, and end then."""
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(1)
