"""Compare the speed of one process with several, for games of `dummy`, which need only CPU; measure the writer's limit.

A short rollout is five completions: nip with a verifier that decides in the last of five rounds. A long chat is 37
completions of 200 words: a debate of 25 rounds. Each is on a datapoint of its own. Runs of one process and of
`--processes` workers alternate; the ratios are of medians. Time counts from the start of the command to its end, and
CPU is that of all processes.

The writer's limit is measured with feeders instead of workers: processes that send records of one size, and wait for
each to be on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, measure_process, median, print_footer, print_table, temporary_folder
from engine import write_spec

SIZES = (1 << 10, 60 << 10)
LONG_ROUNDS, LONG_WORDS = 25, 200
IN_FLIGHT = 256
"""The number of a feeder's records that wait for the disk at the same time."""


def measure_runs(folder: Path, processes: Sequence[int], repeat: int) -> dict[int, list[Any]]:
    """Run each number of processes in turn, after a first run that compiles the project, as an installation does."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    short_command = [sys.executable, "-m", "runner", "spec.yaml", "execution.processes=2", "dataset.limit=10", "-q"]
    measure_process([*short_command, "--results", str(folder / "results-before")], cwd=folder)
    measurements: dict[int, list[Any]] = {count: [] for count in processes}
    for turn in range(repeat):
        for count in processes:
            results = folder / f"results-{turn}-{count}"
            command = [sys.executable, "-m", "runner", "spec.yaml", f"execution.processes={count}", "-q"]
            measurements[count].append(measure_process([*command, "--results", str(results)], cwd=folder))
    return measurements


@dataclass(frozen=True)
class GameSet:
    """The games of a measurement."""

    title: str
    rollouts: int
    calls: int
    """The calls of each rollout."""
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.rollouts} {self.title} of {self.calls} completions"


def long_chats(rollouts: int) -> GameSet:
    """Return debates of `LONG_ROUNDS` rounds: the verifier and both provers speak in turns."""
    provers = LONG_ROUNDS // 2
    return GameSet(
        "long chats",
        rollouts,
        LONG_ROUNDS - provers + 2 * provers,
        {
            "protocol": {"use": "debate", "min_message_rounds": LONG_ROUNDS, "max_message_rounds": LONG_ROUNDS},
            "prompts": "prompts/code_validation/debate",
            "models": {"m": {"provider": "dummy", "answer_words": LONG_WORDS}},
            "agents": {name: {"model": "m"} for name in ("prover0", "prover1", "verifier")},
        },
    )


def compare_processes(games: GameSet, concurrency: int, processes: int, repeat: int, *, fine_tune: bool) -> None:
    rollouts = games.rollouts
    with temporary_folder() as folder:
        path = write_spec(folder, "", rollouts, concurrency)
        spec = json.loads(path.read_text())
        spec |= {"models": {"m": {"provider": "dummy"}}, "fine_tune": {} if fine_tune else None, **games.changes}
        path.write_text(json.dumps(spec))
        measurements = measure_runs(folder, (1, processes), repeat)
    wall_medians = {count: median([result.wall for result in results]) for count, results in measurements.items()}
    cpu_medians = {count: median([result.cpu for result in results]) for count, results in measurements.items()}
    rows = [
        (
            f"{count} process{'es' * (count > 1)}", wall_medians[count], rollouts * games.calls / wall_medians[count],
            cpu_medians[count], wall_medians[1] / wall_medians[count], cpu_medians[count] / cpu_medians[1],
            int(max(result.peak_mb for result in results)),
        )
        for count, results in measurements.items()
    ]  # fmt: skip
    columns = ("", "wall s", "calls/s", "CPU s", "times as fast", "times the CPU", "peak MB of one")
    file_note = "with fine-tune files, which the one writer makes" if fine_tune else "without fine-tune files"
    print_table(f"{games} of `dummy`, {concurrency} games at once, {file_note}", columns, rows)
    print("wall s:", {count: [round(result.wall, 1) for result in results] for count, results in measurements.items()})


# The writer's limit


def feed(descriptor: int, size: int, count: int) -> None:
    """Send records and wait for each to be on disk, as a worker does, but without games."""
    from runner.models.interface import Body, Choice, Completion, SampleKey, Usage
    from runner.models.journal_records import CallRecord, RequestRecord
    from runner.runs.workers.channel import SocketChannel
    from runner.runs.workers.writer_proxy import RemoteJournal

    body = {"model": "tiny", "choices": [{"message": {"content": "word " * (size // 5)}, "finish_reason": "stop"}]}
    response_body = Body(json.dumps(body).encode())
    answer = Completion((Choice("", "stop"),), "tiny", Usage(1, 1), 1.0, body=response_body)

    async def play() -> None:
        closed = asyncio.Event()
        journal: list[RemoteJournal] = []
        connection = socket.socket(fileno=descriptor)
        channel = await SocketChannel.open(
            connection, lambda batch: [journal[0].acknowledge(number) for number in batch], closed.set
        )
        journal.append(RemoteJournal(channel, is_bound_to_run=True, waits_for_disk=True))
        numbers = iter(range(count))

        async def send_records() -> None:
            for number in numbers:
                sample = SampleKey(f"p{os.getpid()}", number, 0, "prover", 0)
                await journal[0].append(CallRecord(sample, RequestRecord("0" * 8, "0" * 32), answer).to_json())

        await asyncio.gather(*(send_records() for _ in range(IN_FLIGHT)))
        channel.close()
        await closed.wait()

    asyncio.run(play())


def start_feeder(command: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
    """Start a feeder with the project on its path."""
    return subprocess.Popen(command, pass_fds=[descriptor], env={**os.environ, "PYTHONPATH": str(ROOT)})


def measure_writer(size: int, count: int, feeders: int) -> tuple[float, float, float]:
    """Measure the records a second, the writer's share of a core, and the megabytes a second."""
    from runner.base.storage.journal import Journal
    from runner.models.costs import CallCosts
    from runner.models.journal_records import log_header
    from runner.rollouts.plan import Plan, used_models
    from runner.runs.execution.accounting import Accounting
    from runner.runs.workers.channel import SocketChannel
    from runner.runs.workers.game_records import GameRecordStore
    from runner.runs.workers.messages import Acknowledged
    from runner.spec.loader import load_spec

    async def run_writer(folder: Path) -> tuple[float, float]:
        plan = Plan(load_spec(write_spec(folder, "", 10, 8), ["models.m={provider: dummy}"]))
        journal = Journal(folder / "journal.jsonl", first=log_header(plan.identity, "benchmark"), run=plan.identity)
        store = GameRecordStore(plan, journal, Accounting(plan, CallCosts(used_models(plan))))
        closed = [asyncio.Event() for _ in range(feeders)]
        tasks: set[asyncio.Task[None]] = set()
        starts: list[tuple[float, float]] = []
        channels: list[SocketChannel] = []
        processes = []

        def handle_batch(number: int, batch: Sequence[Any]) -> None:
            if not starts:
                starts.append((time.perf_counter(), time.process_time()))

            async def write() -> None:
                await store.append(batch, lambda _: None)
                channels[number].send(Acknowledged([append.number for append in batch]))

            task = asyncio.create_task(write())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        for number in range(feeders):
            writer_end, feeder_end = socket.socketpair()
            command = [sys.executable, __file__, "--feed", str(feeder_end.fileno()), str(size), str(count // feeders)]
            processes.append(start_feeder(command, feeder_end.fileno()))
            feeder_end.close()
            channels.append(
                await SocketChannel.open(
                    writer_end, lambda batch, number=number: handle_batch(number, batch), closed[number].set
                )
            )
        for event in closed:
            await event.wait()
        wall, cpu = time.perf_counter() - starts[0][0], time.process_time() - starts[0][1]
        await journal.close()
        for process in processes:
            process.wait()
        assert journal.records == count // feeders * feeders + 1, journal.records
        return wall, cpu

    with temporary_folder() as folder:
        wall, cpu = asyncio.run(run_writer(folder))
        megabytes = (folder / "journal.jsonl").stat().st_size / 1e6
    return count / wall, cpu / wall, megabytes / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=12_000, help="short ones; 0: none")
    parser.add_argument("--long-chats", type=int, default=3_000, help="0: none")
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--records", type=int, default=60_000, help="of 1 KB; a tenth as many of 60 KB")
    parser.add_argument("--writer", action="store_true", help="what the writer takes, alone")
    parser.add_argument("--feed", nargs=3, type=int, metavar=("DESCRIPTOR", "SIZE", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.feed:
        feed(*args.feed)
        return
    short_games, long_games = GameSet("short rollouts", args.rollouts, 5), long_chats(args.long_chats)
    for games, fine_tune in () if args.writer else ((long_games, False), (short_games, False), (short_games, True)):
        if games.rollouts:
            compare_processes(games, args.concurrency, args.processes, args.repeat, fine_tune=fine_tune)
    rows = []
    for size, count in zip(SIZES, (args.records, args.records // 10), strict=True):
        records_per_second, share, megabytes = measure_writer(size, count, 2)
        rows.append(
            (f"{size >> 10} KB an answer", int(records_per_second), megabytes, share, int(records_per_second / share))
        )
    columns = ("", "records/s", "MB/s", "cores of the writer", "records per CPU second")
    print_table(f"the one writer, fed by 2 processes with {IN_FLIGHT} records each on the way", columns, rows)
    print_footer(__file__)


if __name__ == "__main__":
    main()
