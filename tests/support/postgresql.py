"""A PostgreSQL of one's own, in a folder, on a socket of that folder: Debian's package, run as a user of its own.

`.ci/full` installs it. PostgreSQL does not run as root: there it is run as `nobody`, in a folder that is made for it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_USER = "nip-run"


def programs() -> Path | None:
    """Where `initdb` and `pg_ctl` are, the newest; None: they are not."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def cluster() -> Iterator[Callable[[], str]]:
    """What makes an empty database and gives its URL, as often as it is called, for as long as the block runs."""
    there = programs()
    assert there is not None, "install Debian's postgresql"
    home = Path(tempfile.mkdtemp(prefix="nip-run-pg-"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(home, "nobody", "nogroup")
        prefix = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]

    def run(*words: str) -> None:
        done = subprocess.run([*prefix, *words], cwd=home, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr + done.stdout

    run(str(there / "initdb"), "-D", f"{home}/data", "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync")
    options = f"-k {home} -c listen_addresses= -c fsync=off -c max_connections=200"
    run(str(there / "pg_ctl"), "-D", f"{home}/data", "-o", options, "-l", f"{home}/log", "-w", "start")

    def made() -> str:
        name = f"d{secrets.token_hex(6)}"
        run("createdb", "-h", str(home), "-U", _USER, name)
        return f"postgresql+psycopg://{_USER}@/{name}?host={home}"

    try:
        yield made
    finally:
        run(str(there / "pg_ctl"), "-D", f"{home}/data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(home)
