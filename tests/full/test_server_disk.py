"""A server on a full or read-only disk: every command fails with a clear message and loses nothing.

Backups, restores and publishes run with every amount of free space from none to enough. The test mounts a tmpfs, so it
must run as root.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from runner.base.errors import NipRunError
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.reference import Kind
from runner.server.settings import Settings
from runner.server.store.database import Database
from tests.support.paths import ROOT
from tests.support.processes import environment, nip_run, wait_until
from tests.support.registry_locations import bundle
from tests.support.server_contents import read_tables
from tests.support.server_process import ServerProcess, create_accounts
from tests.support.small_disks import fill_disk, mount_small_disk
from tests.support.soft_assertions import SoftAssertions

DISK_ERRORS = (
    "disk is full",
    "No space left",
    "no space",
    "Read-only file system",
    "folder writable",
    "disk I/O error",
)
ACCOUNTS = 3_000
SERVE_WITHOUT_RESERVE = """
import json, sys
from pathlib import Path
from runner.server.settings import Settings
from runner.server.web.serving import serve
def on_start(address, listening):
    print(json.dumps({"listening": listening}, indent=1), flush=True)
serve(Settings(folder=Path(sys.argv[1]), spare_bytes=0), "127.0.0.1", 0, on_start, address=None, without_tls=False)
"""


def test_server_reports_a_full_or_read_only_disk_and_loses_nothing(tmp_path: Path, check: SoftAssertions) -> None:
    with mount_small_disk(tmp_path / "disk"):
        settings = create_server(tmp_path / "disk" / "server")
        check_backups(check, tmp_path, settings)
        check_restores(check, tmp_path)
        check_publishes(check, tmp_path)
        check_read_only_disk(check, tmp_path, settings)


def create_server(folder: Path) -> Settings:
    """Create a folder with a database that has a few accounts."""
    settings = Settings(folder=folder)
    folder.mkdir()
    with closing(Database(settings.database_url)) as database:
        create_accounts(database)
    return settings


def list_amounts_of_free_space() -> Iterator[int]:
    yield from (0, 8 << 10, 24 << 10, 40 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20)


def reports_disk_error(done: subprocess.CompletedProcess[str]) -> bool:
    """Return whether a command failed with exit code 1 and a message about the disk; print other messages."""
    is_clear = (
        done.returncode == 1
        and any(text in done.stderr for text in DISK_ERRORS)
        and not any(text in done.stderr for text in ("Traceback", "a bug in nip-run", "is damaged"))
    )
    if not is_clear:
        print(f"      exit {done.returncode}: {done.stderr.strip()[:400]}")
    return is_clear


def check_backups(check: SoftAssertions, folder: Path, settings: Settings) -> None:
    disk = folder / "disk"
    before, file = read_tables(settings.database_url), disk / "a.backup"
    codes: Counter[int] = Counter()
    unclear = partial = 0
    for free_bytes in list_amounts_of_free_space():
        with fill_disk(disk, free_bytes):
            done = nip_run("server", "backup", settings.folder, file, cwd=folder)
            codes[done.returncode] += 1
            unclear += done.returncode != 0 and not reports_disk_error(done)
            partial += len(list(disk.glob("*a.backup*"))) != (done.returncode == 0)
        file.unlink(missing_ok=True)
    check(set(codes) == {0, 1}, f"some backups fail with exit code 1, others succeed: {dict(codes)}")
    check(not unclear, f"every failed backup reports the full disk (except {unclear})")
    check(not partial, f"no failed backup leaves a file (except {partial})")
    check(read_tables(settings.database_url) == before, "backups change no data")
    assert nip_run("server", "backup", settings.folder, folder / "good.backup", cwd=folder).returncode == 0


def check_restores(check: SoftAssertions, folder: Path) -> None:
    original = create_server(folder / "large")
    names = [f"account{number}" for number in range(ACCOUNTS)]
    added = nip_run("server", "add-account", original.folder, *names, "-q", cwd=folder, timeout=300)
    assert added.returncode == 0, added.stderr
    assert nip_run("server", "backup", original.folder, folder / "large.backup", cwd=folder).returncode == 0
    expected = read_tables(original.database_url)
    codes: Counter[int] = Counter()
    unclear = partial = 0
    for number, free_bytes in enumerate(list_amounts_of_free_space()):
        new = Settings(folder=folder / "disk" / f"new{number}")
        arguments = ("server", "restore", new.folder, folder / "large.backup", "--json")
        with fill_disk(folder / "disk", free_bytes):
            done = nip_run(*arguments, cwd=folder)
            codes[done.returncode] += 1
            unclear += done.returncode != 0 and not reports_disk_error(done)
        if done.returncode:  # the same command refuses to overwrite a database that has any data
            partial += nip_run(*arguments, cwd=folder).returncode != 0
        partial += read_tables(new.database_url) != expected
        for path in new.folder.iterdir():
            path.unlink()
    check(set(codes) == {0, 1}, f"some restores fail with exit code 1, others succeed: {dict(codes)}")
    check(not unclear, f"every failed restore reports the full disk (except {unclear})")
    check(not partial, f"no failed restore leaves data, and the same command then succeeds (except {partial})")


def check_publishes(check: SoftAssertions, folder: Path) -> None:
    server = ServerWithoutReserve(folder / "disk" / "publishing-server")
    server.folder.mkdir()
    with closing(server.open_database()) as database:
        server.tokens = create_accounts(database)
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    try:
        server.start()
        for number, free_bytes in enumerate(list_amounts_of_free_space()):
            release = bundle(f"n{number}", {"data.txt": b"0123456789" * 20_000}, kind=Kind.DATASET)
            with fill_disk(folder / "disk", free_bytes):
                error = publish(server, release)
            outcomes["published" if error is None else "refused"] += 1
            problems += find_publish_problems(server, release, error)
    finally:
        server.stop()
    check(
        not problems and len(outcomes) == 2,
        f"publishes to a full server are complete, or refused with a clear message: {dict(outcomes)} {problems[:3]}",
    )


class ServerWithoutReserve(ServerProcess):
    """A server that may fill its disk completely, as if other programs used the disk during an upload."""

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE_WITHOUT_RESERVE, str(self.folder)], cwd=ROOT, env=environment(),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.port = urlsplit(json.loads(self._read_startup_message())["listening"]).port or 0


def publish(server: ServerProcess, release: Bundle) -> str | None:
    """Publish a release; return the error message, or None on success."""
    try:
        server.publish("alice", release)
    except NipRunError as error:
        return str(error)
    return None


def find_publish_problems(server: ServerProcess, release: Bundle, error: str | None) -> Iterator[str]:
    """Check the result of a publish on a full disk, and repeat a refused publish now that there is free space."""
    reference = str(release.release.reference)
    if error is not None and not any(text in error for text in DISK_ERRORS):
        yield f"unclear message: {error[:300]}"
    if (reference in list_hashes(server)) == (error is not None):
        yield f"{reference} is {'missing' if error is None else 'listed'}: {error}"
    if error is not None:
        server.publish("alice", release)
    if list_hashes(server).get(reference) != release.sha256:
        yield f"{reference} is missing although there is free space"


def list_hashes(server: ServerProcess) -> dict[str, str]:
    """Return the hashes of all releases by reference; fail if a release is damaged."""
    with server.registry() as registry:
        entries = registry.entries()
        problems = [problem for entry in entries for problem in registry.find_problems(entry)]
    assert not problems, problems
    return {str(entry.reference): entry.sha256 for entry in entries}


def check_read_only_disk(check: SoftAssertions, folder: Path, settings: Settings) -> None:
    before, disk = read_tables(settings.database_url), folder / "disk"
    # The process that starts a server's workers ends shortly after the server, and has the log open until then.
    wait_until(lambda: remount(disk, "ro"))
    try:
        for arguments in (
            ("server", "accounts", settings.folder),
            ("server", "add-account", settings.folder, "zoe"),
            ("server", "backup", settings.folder, disk / "b.backup"),
            ("server", "restore", disk / "new", folder / "good.backup"),
            ("serve", settings.folder, "--port", "0"),
            ("serve", disk / "new", "--port", "0"),
            ("serve", settings.folder, "--rebuild", "--collect"),
            ("serve", disk / "new", "--rebuild"),
        ):
            done = nip_run(*arguments, cwd=folder)
            command = " ".join(map(str, arguments[:2])).replace(str(folder), "")
            message = done.stderr.strip().replace(str(folder), "")[:150]
            check(reports_disk_error(done), f"`{command}` reports the read-only disk: {message}")
    finally:
        assert remount(disk, "rw")
    check(read_tables(settings.database_url) == before, "commands on a read-only disk change no data")


def remount(disk: Path, mode: str) -> bool:
    """Remount a disk; return False if that fails because a file on it is open for writing."""
    return subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=False, capture_output=True).returncode == 0
