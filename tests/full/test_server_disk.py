"""A server whose disk is full or read-only: said in words, nothing half, and as before once there is room.

Needs the right to mount a tmpfs. Commands of a server, its backup, restore and rebuild, and publishes to it, on a disk
with every amount of room from none to enough, and on one that may not be written to. Each does what it should, or says
that there is no room, and where; what was there before is there after, and so is all of what was done.
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
from runner.documents.releases.reference import Kind
from runner.server.settings import Settings
from runner.server.store.database import Database
from tests.support.claims import Claims
from tests.support.kept import rows
from tests.support.paths import ROOT
from tests.support.processes import environment, nip_run, until
from tests.support.registries import bundle
from tests.support.serving import Served, populate
from tests.support.small_disks import mounted, only_left

WORDS = ("disk is full", "No space left", "no space", "Read-only file system", "folder writable", "disk I/O error")
ACCOUNTS = 3_000


def test_a_server_on_a_full_or_read_only_disk_says_so_and_loses_nothing(tmp_path: Path, claims: Claims) -> None:
    with mounted(tmp_path / "disk"):
        kept = Settings(folder=tmp_path / "disk" / "kept")
        kept.folder.mkdir()
        with closing(Database(kept.database_url)) as database:
            populate(database)
        backups(claims, tmp_path, kept)
        restores(claims, tmp_path)
        publishes(claims, tmp_path)
        read_only(claims, tmp_path, kept)


def is_told(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether what went wrong is said in words."""
    said = done.stderr
    good = done.returncode == 1 and any(words in said for words in WORDS)
    good = good and not any(words in said for words in ("Traceback", "a bug in nip-run", "is damaged"))
    if not good:
        print(f"      exit {done.returncode}: {said.strip()[:400]}")
    return good


def amounts() -> Iterator[int]:
    yield from (0, 8 << 10, 24 << 10, 40 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20)


def backups(claims: Claims, here: Path, kept: Settings) -> None:
    before, file = rows(kept.database_url), here / "disk" / "a.backup"
    codes: Counter[int] = Counter()
    unclear = left = 0
    for room in amounts():
        with only_left(here / "disk", room):
            done = nip_run("server", "backup", kept.folder, file, cwd=here)
            codes[done.returncode] += 1
            unclear += done.returncode != 0 and not is_told(done)
            left += len(list((here / "disk").glob("*a.backup*"))) != (done.returncode == 0)
        file.unlink(missing_ok=True)
    claims(set(codes) == {0, 1} and not unclear, f"backups onto a disk without room, exit codes {dict(codes)}")
    claims(not left and rows(kept.database_url) == before, "they are whole, or nothing of them is there")
    assert nip_run("server", "backup", kept.folder, here / "good.backup", cwd=here).returncode == 0


def restores(claims: Claims, here: Path) -> None:
    large = Settings(folder=here / "large")
    large.folder.mkdir()
    with closing(Database(large.database_url)) as database:
        populate(database)
    words = [f"account{number}" for number in range(ACCOUNTS)]
    done = nip_run("server", "add-account", large.folder, *words, "-q", cwd=here, timeout=300)
    assert done.returncode == 0, done.stderr
    assert nip_run("server", "backup", large.folder, here / "large.backup", cwd=here).returncode == 0
    wanted = rows(large.database_url)
    codes: Counter[int] = Counter()
    unclear = half = 0
    for number, room in enumerate(amounts()):
        new = Settings(folder=here / "disk" / f"new{number}")
        with only_left(here / "disk", room):
            done = nip_run("server", "restore", new.folder, here / "large.backup", "--json", cwd=here)
            codes[done.returncode] += 1
            unclear += done.returncode != 0 and not is_told(done)
        if done.returncode:
            again = nip_run("server", "restore", new.folder, here / "large.backup", "--json", cwd=here)
            half += again.returncode != 0
        half += rows(new.database_url) != wanted
        for path in new.folder.iterdir():
            path.unlink()
    claims(set(codes) == {0, 1} and not unclear, f"restores onto a disk without room, exit codes {dict(codes)}")
    claims(not half, "nothing of one that failed was there: the same restore goes through once there is room")


_SERVE = """
import json, sys
from pathlib import Path
from runner.server.settings import Settings
from runner.server.web.serving import serve
def tell(address, listening):
    print(json.dumps({"listening": listening}, indent=1), flush=True)
serve(Settings(folder=Path(sys.argv[1]), spare_bytes=0), "127.0.0.1", 0, tell, address=None, without_tls=False)
"""


class Roomless(Served):
    """One that leaves nothing of its disk free, as where others fill it while something is sent."""

    def start(self) -> None:
        """As inherited."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(self.folder)], cwd=ROOT, env=environment(),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.port = urlsplit(json.loads(self._told())["listening"]).port or 0


def publishes(claims: Claims, here: Path) -> None:
    """To a server that would take all the room that there is, as when many publish at once."""
    server = Roomless(here / "disk" / "server")
    server.folder.mkdir()
    with closing(server.records()) as database:
        server.tokens = populate(database)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    try:
        server.start()
        for number, room in enumerate(amounts()):
            made = bundle(f"n{number}", {"data.txt": b"0123456789" * 20_000}, kind=Kind.DATASET)
            said = ""
            with only_left(here / "disk", room):
                try:
                    server.publish("alice", made)
                except NipRunError as error:
                    said = str(error)
            outcomes["refused" if said else "published"] += 1
            if said and not any(words in said for words in WORDS):
                wrong.append(said[:300])
            there = _seen(server)
            if (str(made.release.reference) in there) == bool(said):
                wrong.append(f"{made.release.reference} is {'there' if said else 'not there'}: {said[:200]}")
            if said:
                server.publish("alice", made)
            if _seen(server).get(str(made.release.reference)) != made.sha256:
                wrong.append(f"{made.release.reference} is not there once there is room")
    finally:
        server.stop()
    claims(not wrong and len(outcomes) == 2, f"publishes to a server without room: {dict(outcomes)} {wrong[:3]}")


def _seen(server: Served) -> dict[str, str]:
    with server.registry() as registry:
        entries = registry.entries()
        damaged = [line for entry in entries for line in registry.find_problems(entry)]
    assert not damaged, damaged
    return {str(entry.reference): entry.sha256 for entry in entries}


def read_only(claims: Claims, here: Path, kept: Settings) -> None:
    before, disk = rows(kept.database_url), here / "disk"
    # What began a server's workers ends by itself, a moment after the server, and has the log open until then.
    until(lambda: _remounted(disk, "ro"))
    try:
        for words in (
            ("server", "accounts", kept.folder),
            ("server", "add-account", kept.folder, "zoe"),
            ("server", "backup", kept.folder, disk / "b.backup"),
            ("server", "restore", disk / "new", here / "good.backup"),
            ("serve", kept.folder, "--port", "0"),
            ("serve", disk / "new", "--port", "0"),
            ("serve", kept.folder, "--rebuild", "--collect"),
            ("serve", disk / "new", "--rebuild"),
        ):
            done = nip_run(*words, cwd=here)
            shown = " ".join(map(str, words[:2])).replace(str(here), "")
            claims(is_told(done), f"on a read-only disk: {shown}: {done.stderr.strip().replace(str(here), '')[:150]}")
    finally:
        assert _remounted(disk, "rw")
    claims(rows(kept.database_url) == before, "and nothing is changed")


def _remounted(disk: Path, how: str) -> bool:
    """Whether that could be done: a disk on which a file is open for writing is not made read-only."""
    return subprocess.run(["mount", "-o", f"remount,{how}", disk], check=False, capture_output=True).returncode == 0
