"""Measure CPU time and memory by the number of runs in a results folder, points in a sweep, and games in a run.

A few small runs are played. A results folder with N runs has copies of them, each with its own id, times and row on the
board, as if it had been played on its own. Each command is then measured as a process. A server's board is measured in
the same way: its cache and database get N releases, then one more is published, and the process that builds boards is
timed when it builds the next one.

The script checks, with the cost of the smallest size as the base:

- No command's additional CPU time grows faster than n log n between the last two sizes.
- Playing a run, `show last`, `report` and `compare` take at most `MAX_FLAT_RATIO` times the base for any number of
  runs.
- The additional memory is at most `MB_PER_1000` per 1,000 runs, and `MB_PER_100K` per 100,000 games.

The exit code is 1 if a check fails. Larger sizes: `--runs 10 100 1000 10000 --points 10 100 --games 1000 10000 100000`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import ROOT, measure_child, measure_process, print_footer, print_table, temporary_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from runner.documents.releases.bundle import Bundle

NIP_RUN = [sys.executable, "-c", "import sys; from runner.cli.main import main; sys.exit(main())"]
SPEC = str(ROOT / "specs" / "quickstart.yaml")
TEMPLATES = 4
"""The number of runs that are played and then copied."""
LIMIT = "dataset.limit=8"
MAX_FLAT_RATIO = 1.6
MB_PER_1000 = 40.0
MB_PER_100K = 120.0
SLACK_SECONDS = 0.15
"""Additional CPU time that is too small to measure its growth."""
GROWTH_TOLERANCE = 1.6
"""A tolerance for noise: the additional time may grow by this factor more than n log n."""
PLAY, SHOW, REPORT, COMPARE = "play a run", "show last", "report", "compare"
FLAT_COMMANDS = (PLAY, SHOW, REPORT, COMPARE)
STARTED = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RunCopy:
    """A run to copy, and the id and position of the copy."""

    template: Path
    run_id: str
    position: int

    @property
    def changes(self) -> dict[str, str]:
        """The fields of the manifest that differ between runs."""
        start = STARTED + timedelta(minutes=self.position)
        times = {"started_at": f"{start:%Y-%m-%dT%H:%M:%SZ}", "finished_at": f"{start:%Y-%m-%dT%H:%M:%SZ}"}
        hashes = dict.fromkeys(("journal", "game_sha256", "identity", "spec_sha256"), f"{self.position:016x}")
        return {"run_id": self.run_id, **times, **hashes}


def copy_runs(copies: Iterable[RunCopy], runs: Path, connection: DuckDBPyConnection) -> None:
    """Write the folders of copies of runs; files without the run's id are linked."""
    from runner.results.folder import SUMS, RunFolder

    for copy in copies:
        folder = RunFolder(runs / copy.run_id)
        for path in copy.template.rglob("*"):
            target = folder.path / path.relative_to(copy.template)
            if path.is_dir() or path.name in (".lock", SUMS):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".parquet":
                connection.execute(
                    f"CREATE OR REPLACE VIEW rows AS FROM read_parquet('{path}', hive_partitioning=false)"
                )
                rows = f"SELECT * REPLACE ('{copy.run_id}' AS run_id) FROM rows"
                connection.execute(f"COPY ({rows}) TO '{target}' (COMPRESSION zstd)")
            elif target == folder.manifest_path:
                target.write_text(json.dumps({**json.loads(path.read_bytes()), **copy.changes}))
                modified = (STARTED + timedelta(minutes=copy.position)).timestamp()
                os.utime(target, (modified, modified))
            else:
                os.link(path, target)
        if (copy.template / SUMS).is_file():
            folder.seal(*(path.stem for path in folder.path.glob("*.parquet")))


def copy_rows(copies: Sequence[RunCopy], board: Path) -> None:
    """Copy the rows of runs on a board, and rank all runs."""
    from runner.base.storage.duckdb_connections import connect
    from runner.results.leaderboard.database import BOARD_GROUP_ROWS
    from runner.results.leaderboard.ranks import rank_rows

    with connect(memory="1GB", threads=2, spill=board.parent) as connection:
        connection.execute(f"ATTACH '{board}' AS board (ROW_GROUP_SIZE {BOARD_GROUP_ROWS}); USE board")
        columns = [[copy.template.name, *copy.changes.values()] for copy in copies]
        names = ("template", *copies[0].changes)
        lists = ", ".join(f"unnest(?) AS {name}" for name in names)
        connection.execute(f"CREATE TABLE new_runs AS SELECT {lists}", list(map(list, zip(*columns, strict=True))))
        run_columns = (
            "c.started_at::TIMESTAMP AS started_at, c.finished_at::TIMESTAMP AS finished_at, c.journal AS journal, "
        )
        run_columns += "c.game_sha256 AS game_sha256, c.spec_sha256 AS spec_sha256"
        for name in ("runs", "agents", "metrics", "rollouts", "datapoints"):
            replaced = f"c.run_id AS run_id{', ' + run_columns if name == 'runs' else ''}"
            connection.execute(
                f"INSERT INTO {name} SELECT t.* REPLACE ({replaced}) "
                f"FROM {name} t JOIN new_runs c ON c.template = t.run_id ORDER BY c.run_id"
            )
        connection.execute("DROP TABLE new_runs")
        rank_rows(connection)


def make_results(folder: Path, templates: Path, count: int) -> None:
    """Create a results folder with `count` runs, which are copies of the runs in another folder."""
    from runner.base.storage.duckdb_connections import connect

    shutil.copytree(templates, folder)
    runs = sorted((folder / "runs").iterdir())
    copies = [RunCopy(runs[i % len(runs)], f"run-{i:05}", i) for i in range(count - len(runs))]
    with connect(spill=folder) as connection:
        copy_runs(copies, folder / "runs", connection)
    copy_rows(copies, folder / "leaderboard.duckdb")


def run_commands(results: Path, position: int) -> dict[str, list[str]]:
    """Return the arguments of each command; `place` makes the run that is played a new one."""
    pair = ["run-00000", "run-00001"]
    return {
        PLAY: ["run", SPEC, LIMIT, f"seed={1000 + position}"],
        "play it again": ["run", SPEC, LIMIT, f"seed={1000 + position}", "--again"],
        SHOW: ["show", "last"],
        REPORT: ["report", "last", "-o", str(results / "report.html")],
        COMPARE: ["compare", *pair],
        "leaderboard": ["leaderboard", "--json"],
        "sql": ["sql", "select count(*) from runs"],
        "runs": ["runs", "--json"],
    }


def measure_folders(folder: Path, counts: Sequence[int], repeat: int) -> dict[str, Measurements]:
    """Measure each command in results folders of each size."""
    templates = folder / "templates"
    for seed in range(TEMPLATES):
        measure_process([*NIP_RUN, SPEC, LIMIT, f"seed={seed}", "-q", "--results", str(templates)])
    rows: dict[str, Measurements] = {}
    for count in counts:
        results = folder / f"results-{count}"
        measure_child(__file__, "results", results, templates, count)
        for position in range(repeat):
            for name, options in run_commands(results, position).items():
                process = measure_process([*NIP_RUN, *options, "--results", str(results)])
                rows.setdefault(name, Measurements("runs")).add(count, process.cpu, process.peak_mb)
        shutil.rmtree(results)
    return rows


def measure_points(folder: Path, counts: Sequence[int]) -> dict[str, Measurements]:
    """Measure a sweep of each size: playing it, and its table."""
    rows = {name: Measurements("points") for name in ("play a sweep", "sweep")}
    for count in counts:
        options = [SPEC, LIMIT, f"sweep={{seed: {list(range(count))}}}", "--results", str(folder / f"sweep-{count}")]
        for name, command in zip(rows, ("run", "sweep"), strict=True):
            process = measure_process([*NIP_RUN, command, *options])
            rows[name].add(count, process.cpu, process.peak_mb)
    return rows


def measure_games(folder: Path, counts: Sequence[int]) -> dict[str, Measurements]:
    """Measure commands about runs with each number of games."""
    rows: dict[str, Measurements] = {}
    for count in counts:
        results = folder / f"games-{count}"
        overrides = ["dataset.limit=null", f"rollouts.per_datapoint={math.ceil(count / 96)}", "fine_tune={}"]
        commands = {
            "play the games": ["run", SPEC, *overrides, "--run-id", "first"],
            "play other games": ["run", SPEC, *overrides, "seed=1", "--run-id", "second"],
            "compare": ["compare", "first", "second"],
            "show": ["show", "first"],
            "leaderboard": ["leaderboard", "--json"],
            "report --dir": ["report", "first", "--dir", str(results / "site")],
        }
        for name, options in commands.items():
            process = measure_process([*NIP_RUN, *options, "--results", str(results)])
            rows.setdefault(name, Measurements("games")).add(count, process.cpu, process.peak_mb)
        shutil.rmtree(results)
    return rows


def measure_servers(folder: Path, counts: Sequence[int]) -> dict[str, Measurements]:
    """Measure the CPU time of a server's board by the number of published runs."""
    rows: dict[str, Measurements] = {}
    for count in counts:
        process = measure_child(__file__, "server", folder / f"server-{count}", folder / "bundles", count)
        for name, cpu in process["cpu"].items():
            rows.setdefault(name, Measurements("runs")).add(count, cpu, process["peak_mb"])
        shutil.rmtree(folder / f"server-{count}")
    return rows


def run_server(folder: Path, runs: Path, count: int) -> None:
    """Publish that many runs to a server, and print the CPU time of its boards as JSON."""
    from runner.base.storage.duckdb_connections import connect
    from runner.base.storage.safe_files import make_folders
    from runner.server.boards.paths import BoardPaths
    from runner.server.boards.worker import BoardWorker
    from runner.server.service import Service
    from runner.server.settings import Settings
    from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

    settings = Settings(folder=folder)
    make_folders(settings.incoming)
    server, paths = Service.open(settings), BoardPaths(settings)
    cpu: dict[str, float] = {}
    bundles = [run_bundle(runs / f"{count}-{seed}", seed=seed) for seed in range(TEMPLATES + 1)]

    def create_release(position: int) -> Bundle:
        """Return a real run, or a copy with another identity, which the worker does not check."""
        if position < TEMPLATES or position == count:
            return copy_bundle(bundles[min(position, TEMPLATES)], owner=f"group{position % 20}", name=f"run-{position}")
        names = {"owner": f"group{position % 20}", "name": f"run-{position}", "identity": {"run": f"{position:064x}"}}
        return copy_bundle(bundles[position % TEMPLATES], **names)

    def publish(positions: Iterable[int]) -> list[RunCopy]:
        releases = [create_release(position) for position in positions]
        insert_releases(server, releases)
        cache_folder = paths.cache / "kept"
        return [
            RunCopy(cache_folder / release.sha256, release.sha256, index)
            for index, release in zip(positions, releases, strict=True)
        ]

    def build(name: str) -> None:
        start = time.process_time()
        worker.build()
        cpu[name] = time.process_time() - start

    templates = publish(range(TEMPLATES))
    BoardWorker(settings).build()
    copies = [
        replace(copy, template=templates[copy.position % TEMPLATES].template)
        for copy in publish(range(TEMPLATES, count))
    ]
    with connect(spill=folder) as connection:
        copy_runs(copies, paths.cache / "kept", connection)
    copy_rows(copies, paths.cache / "leaderboard.duckdb")
    worker = BoardWorker(settings)
    build("server: first board")
    publish([count])
    build("server: one more run")
    if len(folders := list((paths.cache / "kept").iterdir())) != count + 1:
        raise RuntimeError(f"the board has {len(folders)} of {count + 1} runs")
    print(json.dumps({"cpu": cpu}))


@dataclass
class Measurements:
    """The measurements of a command: the lowest CPU seconds and peak MB by size."""

    unit: str
    cpu: dict[int, float] = field(default_factory=dict)
    peak_mb: dict[int, float] = field(default_factory=dict)

    def add(self, size: int, cpu: float, peak_mb: float) -> None:
        self.cpu[size] = min(cpu, self.cpu.get(size, cpu))
        self.peak_mb[size] = min(peak_mb, self.peak_mb.get(size, peak_mb))

    def problems(self, *, is_flat: bool) -> list[str]:
        """Return a message for each failed check."""
        sizes = sorted(self.cpu)
        base, last = sizes[0], sizes[-1]
        problems = []
        additional = {size: self.cpu[size] - self.cpu[base] for size in sizes}
        if len(sizes) > 2 and additional[last] > SLACK_SECONDS:
            previous = sizes[-2]
            allowed = (
                GROWTH_TOLERANCE
                * (last * math.log(last))
                / (previous * math.log(previous))
                * max(additional[previous], SLACK_SECONDS / 2)
            )
            if additional[last] > allowed:
                problems.append(f"{additional[last]:.2f} s more with {last:,} than with {base:,}: over {allowed:.2f} s")
        if is_flat and self.cpu[last] > MAX_FLAT_RATIO * self.cpu[base]:
            problems.append(f"{self.cpu[last] / self.cpu[base]:.2f} times the CPU time with {base:,}")
        growth = self.peak_mb[last] - self.peak_mb[base]
        unit_size, limit = (100_000, MB_PER_100K) if self.unit == "games" else (1_000, MB_PER_1000)
        if growth > limit * max(last / unit_size, 1):
            problems.append(f"{growth:.0f} MB more with {last:,} than with {base:,}")
        return problems


def show(title: str, rows: Mapping[str, Measurements], flat: Sequence[str] = ()) -> list[str]:
    """Print a table, and return a message for each failed check."""
    if not any(row.cpu for row in rows.values()):
        return []
    sizes = sorted(next(iter(rows.values())).cpu)
    columns = ["", *(f"CPU s, {size:,}" for size in sizes), *(f"MB, {size:,}" for size in sizes)]
    print_table(title, columns, [[name, *row.cpu.values(), *row.peak_mb.values()] for name, row in rows.items()])
    return [f"{name}: {problem}" for name, row in rows.items() for problem in row.problems(is_flat=name in flat)]


CHILDREN: Mapping[str, Callable[..., Any]] = {"results": make_results, "server": run_server}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--runs", type=int, nargs="*", default=[10, 100, 1_000], help="default: 10 100 1000")
    add("--points", type=int, nargs="*", default=[5, 20], help="default: 5 20")
    add("--games", type=int, nargs="*", default=[1_000, 5_000], help="default: 1000 5000")
    add("--servers", type=int, nargs="*", help="numbers of runs on a server; default: those of --runs")
    add("--repeat", type=int, default=1)
    add("--child", nargs="+", metavar="WORD", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        kind, first_folder, second_folder, count = args.child
        CHILDREN[kind](Path(first_folder), Path(second_folder), int(count))
        if kind == "results":
            print("{}")
        return 0
    servers = args.runs if args.servers is None else args.servers
    with temporary_folder() as folder:
        failed = show("by the runs of a results folder", measure_folders(folder, args.runs, args.repeat), FLAT_COMMANDS)
        failed += show("by the runs on a server", measure_servers(folder, servers))
        failed += show("by the points of a sweep", measure_points(folder, args.points))
        failed += show("by the games of each of two runs", measure_games(folder, args.games))
    print_footer(__file__)
    print("\n".join(failed) or "all claims hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
