"""A PostgreSQL of one's own, in a folder, on a socket of that folder: Debian's package, run as a user of its own.

`.ci/full` installs it. PostgreSQL does not run as root: there it is run as `nobody`, in a folder that is made for it.
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
from tests.support.processes import until

_USER = "nip-run"


def programs() -> Path | None:
    """Where `initdb` and `postgres` are, the newest; None: they are not."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def cluster() -> Iterator[Callable[[], str]]:
    """What makes an empty database and gives its URL, as often as it is called, for as long as the block runs."""
    there = programs()
    assert there is not None, "install Debian's postgresql"
    home = Path(tempfile.mkdtemp(prefix="nip-run-pg-"))
    user: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(home, "nobody", "nogroup")
        user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]

    def words(*command: str) -> list[str]:
        # However the process ends that began it, PostgreSQL ends with it, at once.
        return ["setpriv", *user, "--pdeathsig=QUIT", "--", *command]

    def run(*command: str) -> None:
        done = subprocess.run(
            words(*command), cwd=home, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout

    def made() -> str:
        name = f"d{secrets.token_hex(6)}"
        run("createdb", "-h", str(home), "-U", _USER, name)
        return f"postgresql+psycopg://{_USER}@/{name}?host={home}"

    try:
        run(str(there / "initdb"), "-D", f"{home}/data", "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        # Nothing but a socket in its folder; a kill of a server loses nothing that PostgreSQL has, without fsync too.
        options = ["-k", str(home), "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200"]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                words(str(there / "postgres"), "-D", f"{home}/data", *options), cwd=home, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            _wait_for(process, home, there)
            yield made
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(HANG_SECONDS)
    finally:
        shutil.rmtree(home)


def _wait_for(process: subprocess.Popen[bytes], home: Path, there: Path) -> None:
    asks: list[str | Path] = [there / "pg_isready", "-q", "-h", home, "-U", _USER]
    until(lambda: process.poll() is not None or subprocess.run(asks, check=False).returncode == 0)
    assert process.poll() is None, (home / "log").read_text("utf-8", "replace")
