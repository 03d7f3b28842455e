"""Load a server with 100 readers of boards and runs and 10 publishers for two minutes, over HTTP on this machine.

python benchmarks/server_load.py [--seconds 120] [--readers 100] [--publishers 10] [--runs 200] [--think 1.0]

Readers are threads of this process, which pause between two pages like a person. Publishers are processes with
`nip-run`'s client; each publishes one release after another. The script checks:

- no answer is an error
- the 95th percentile of the time of a board's page is under half a second
- all acknowledged releases are on the board afterwards
- the server's memory in the last quarter exceeds that in the second by at most a tenth and 32 MB

The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runner.documents.releases.bundle import Bundle
from runner.server.service import Service
from runner.server.settings import Settings
from tests.support.cookie_client import CookieClient
from tests.support.processes import environment
from tests.support.server_process import ServerProcess, run_server
from tests.support.server_releases import insert_copies, run_bundle

MAX_BOARD_SECONDS = 0.5
MAX_GROWTH, MEMORY_SLACK = 1.1, 32 << 20
_PUBLISHER_SCRIPT = """
import json, pickle, sys, time
from runner.registry.transports.locations import connect
from tests.support.server_releases import copy_bundle
number, seconds, address, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
bundle, end, done = pickle.load(open(path, "rb")), time.monotonic() + seconds, []
with connect(address) as registry:
    while time.monotonic() < end:
        name = f"p{number}-{len(done)}"
        registry.publish([copy_bundle(bundle, owner="alice", name=name)], "load")
        done.append(name)
print(json.dumps(done))
"""


class Reader(threading.Thread):
    """A person who opens boards, runs and the first page until the end."""

    def __init__(self, port: int, paths: list[str], end: float, think: float) -> None:
        super().__init__(daemon=True)
        self._port, self._paths, self._end, self._think = port, paths, end, think
        self.timings: list[tuple[str, float]] = []
        self.failures: list[str] = []

    def run(self) -> None:
        rng = random.Random(id(self))
        time.sleep(rng.random() * self._think)
        while time.monotonic() < self._end:
            path = rng.choice(self._paths)
            start = time.monotonic()
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
                connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
                response = connection.getresponse()
                response.read()
                connection.close()
                if response.status >= 400:
                    self.failures.append(f"{response.status} {path}")
            except OSError as error:
                self.failures.append(f"{error} {path}")
            self.timings.append((path, time.monotonic() - start))
            time.sleep(self._think * (0.5 + rng.random()))


def read_resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def load_server(server: ServerProcess, bundle: Bundle, board: str, args: argparse.Namespace, folder: Path) -> list[str]:
    """Load the server, and return the claims that do not hold."""
    import json
    import pickle

    contents = {
        path: content if isinstance(content, bytes) else Path(content).read_bytes()
        for path, content in bundle.contents.items()
    }
    (folder / "bundle.pickle").write_bytes(pickle.dumps(Bundle(bundle.release, contents)))
    variables = {"NIP_RUN_REGISTRY": server.address, "NIP_RUN_TOKEN": server.tokens["alice"]}
    end = time.monotonic() + args.seconds
    publishers = [
        subprocess.Popen(
            [sys.executable, "-c", _PUBLISHER_SCRIPT, str(n), str(args.seconds), server.address,
             folder / "bundle.pickle"],
            env=environment(**variables), cwd=Path(__file__).resolve().parents[1], stdout=subprocess.PIPE,
        )
        for n in range(args.publishers)
    ]  # fmt: skip
    second_page = f"{board}?part=2" if args.runs > 100 else board
    paths = [board, board, board, second_page, "/", "/search?q=run-1", "/owner/group1", "/run/group1/run-1/1"]
    readers = [Reader(server.port, paths, end, args.think) for _ in range(args.readers)]
    for reader in readers:
        reader.start()
    memory = []
    while time.monotonic() < end:
        memory.append(read_resident_bytes(server.process.pid))
        time.sleep(1)
    for reader in readers:
        reader.join(60)
    published = [name for process in publishers for name in json.loads(process.communicate(timeout=300)[0] or b"[]")]
    exit_codes = [process.returncode for process in publishers if process.returncode]
    board_seconds = [seconds for reader in readers for path, seconds in reader.timings if path.startswith("/board/")]
    errors = [line for reader in readers for line in reader.failures]
    quarter = len(memory) // 4
    before, after = max(memory[quarter : 2 * quarter]), max(memory[-quarter:])
    p95, total = quantile(board_seconds, 0.95), sum(len(reader.timings) for reader in readers)
    median, slowest, load = quantile(board_seconds, 0.5), max(board_seconds), os.getloadavg()[0]
    print(f"{total} pages in {args.seconds:.0f} s, of which {len(board_seconds)} boards: median {median * 1e3:.0f} ms,")
    print(f"95 % {p95 * 1e3:.0f} ms, most {slowest * 1e3:.0f} ms; load {load:.1f} on {os.cpu_count()} cores")
    print(f"{len(published)} releases published; memory {before >> 20} MB, then {after >> 20} MB")
    browser = CookieClient(server)
    deadline, missing = time.monotonic() + 600, set(published)
    while missing and time.monotonic() < deadline:
        rows = browser.request(f"{board}.csv").body.decode()
        missing = {name for name in published if f"alice/{name}@1" not in rows}
        time.sleep(1)
    problems = [f"{len(errors)} answers were errors: {errors[:3]}"] if errors else []
    problems += [f"publishers ended with {exit_codes}"] if exit_codes else []
    problems += [f"a board took {p95:.2f} s at the 95th percentile"] if p95 > MAX_BOARD_SECONDS else []
    problems += [f"{len(missing)} acknowledged releases are not on the board: {sorted(missing)[:3]}"] if missing else []
    return problems + (["its memory grew"] if after > before * MAX_GROWTH + MEMORY_SLACK else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--publishers", type=int, default=10)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--think", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nip-run-load-") as name:
        folder = Path(name)
        bundles = [run_bundle(folder / f"run{seed}", seed=seed) for seed in range(4)]
        with run_server(folder / "server") as server_process:
            server = Service.open(Settings(folder=folder / "server"))
            insert_copies(server, bundles, args.runs)
            server.database.close()
            browser = CookieClient(server_process)
            deadline = time.monotonic() + 1800
            while f"{args.runs} runs" not in browser.request("/").body.decode() and time.monotonic() < deadline:
                time.sleep(1)
            home = browser.load_page("/")
            board = next(part.split('"')[0] for part in home.split('href="') if part.startswith("/board/"))
            browser.load_page("/run/group1/run-1/1")
            problems = load_server(server_process, bundles[0], board, args, folder)
    print("\n".join(problems) or "all claims hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
