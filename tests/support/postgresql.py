"""A temporary PostgreSQL server in a folder, which listens only on a Unix socket in that folder.

It needs Debian's package `postgresql`, which `.ci/full` installs. PostgreSQL refuses to run as root, so the server runs
as `nobody` if the tests run as root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until

_USER = "nip-run"


def find_programs() -> Path | None:
    """Return the folder with `initdb` and `postgres` of the newest version, or None if PostgreSQL is not installed."""
    paths = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return paths[-1].parent if paths else None


@contextmanager
def run_postgresql() -> Iterator[Callable[[], str]]:
    """Run a PostgreSQL server. Yield a function that creates an empty database and returns its URL."""
    programs = find_programs()
    assert programs is not None, "install Debian's postgresql"
    home = Path(tempfile.mkdtemp(prefix="nip-run-pg-"))
    user_options: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(home, "nobody", "nogroup")
        user_options = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]

    def as_user(*command: str) -> list[str]:
        # The kernel stops PostgreSQL if the process that started it ends for any reason.
        return ["setpriv", *user_options, "--pdeathsig=QUIT", "--", *command]

    def run(*command: str) -> None:
        result = subprocess.run(
            as_user(*command), cwd=home, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
        assert result.returncode == 0, result.stderr + result.stdout

    def create_database() -> str:
        name = f"d{secrets.token_hex(6)}"
        run("createdb", "-h", str(home), "-U", _USER, name)
        return f"postgresql+psycopg://{_USER}@/{name}?host={home}"

    try:
        run(str(programs / "initdb"), "-D", f"{home}/data", "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        # Without fsync, a kill of `nip-run serve` still loses nothing that PostgreSQL has committed.
        options = ["-k", str(home), "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200"]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                as_user(str(programs / "postgres"), "-D", f"{home}/data", *options), cwd=home, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            _wait_until_ready(process, home, programs)
            yield create_database
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(HANG_SECONDS)
    finally:
        shutil.rmtree(home)


def _wait_until_ready(process: subprocess.Popen[bytes], home: Path, programs: Path) -> None:
    command: list[str | Path] = [programs / "pg_isready", "-q", "-h", home, "-U", _USER]
    wait_until(lambda: process.poll() is not None or subprocess.run(command, check=False).returncode == 0)
    assert process.poll() is None, (home / "log").read_text("utf-8", "replace")
