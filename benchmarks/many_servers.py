"""Check a model group with three servers: games stay at one server, the load is even, and a server may stop.

    python benchmarks/many_servers.py [--times N] [--seed S]

N games are played, 96 at once, with answers in 5 to 30 ms. Each server has a prefix cache, which counts blocks of 64
characters. Answers are functions of the request, so the records of a run do not depend on the number of servers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import sample_arguments, temporary_folder

from tests.support.processes import start_nip_run, wait_for_exit, wait_until
from tests.support.runs import only_run, read_status, table
from tests.support.servers.fleet import ServerFleet, run_fleet
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

CONCURRENCY, LATENCY = 96, (0.005, 0.03)
RETRY = {"transient": {"first_wait": 0.05, "max_wait": 0.5, "attempts": None}, "breaker": {"failures": 8}}
STOPPED_SERVER = 1
"""The index of the server that stops for a while."""


@dataclass(frozen=True)
class FinishedGames:
    """The records of one run, and the counts of its servers."""

    run_id: str
    code: int
    status: str
    outcomes: Mapping[str, int]
    records: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    requests: list[int]
    server_affinity: float
    warm_block_count: int
    failed_calls: int
    stderr: str


def play_run(
    folder: Path,
    servers: ServerFleet,
    games: int,
    repeats: int = 1,
    disturb: Callable[[ServerFleet], None] = lambda _: None,
) -> FinishedGames:
    """Play a run with the command in a new folder; `disturb` is called while it plays."""
    folder.mkdir()
    spec_file(
        folder, None, size=games // repeats, retry=RETRY,
        models={"m": {"provider": "openai", "model": "tiny", "base_url": servers.base_urls, "session_id": True}},
        rollouts={"concurrency": CONCURRENCY, "per_datapoint": repeats},
    )  # fmt: skip
    process = start_nip_run("spec.yaml", cwd=folder)
    disturb(servers)
    code, _, stderr = wait_for_exit(process)
    run = only_run(folder / "results")
    completions = table(run, "completions")
    return FinishedGames(
        run.name, code, read_status(run), json.loads((run / "metrics.json").read_text())["outcomes"],
        (table(run, "rollouts"), table(run, "messages")), servers.requests(), servers.affine_share(),
        servers.warm_blocks(),
        sum(row["error"] is not None for row in completions), stderr,
    )  # fmt: skip


def measure_imbalance(requests: list[int]) -> float:
    """Return the largest deviation of a server's load from the mean, as a share of the mean."""
    mean = sum(requests) / len(requests)
    return max(abs(count - mean) / mean for count in requests)


def create_outage(calls: int, requests_at_return: list[int]) -> Callable[[ServerFleet], None]:
    """Return a function that stops a server after a fifth of the calls and starts it after two fifths.

    Once the server has its share of the games again, the requests to each server so far are added to `after`.
    """

    def stop_and_start(servers: ServerFleet) -> None:
        wait_until(lambda: sum(servers.requests()) > calls / 5)
        servers.stop(STOPPED_SERVER)
        wait_until(lambda: sum(servers.requests()) > calls * 2 / 5)
        count_before = servers.requests()[STOPPED_SERVER]
        servers.start(STOPPED_SERVER)
        wait_until(lambda: servers.requests()[STOPPED_SERVER] > count_before + CONCURRENCY)
        requests_at_return.extend(servers.requests())

    return stop_and_start


def main() -> int:
    args = sample_arguments(__doc__, 1200)
    check = SoftAssertions()
    games, options = args.times, {"latency": LATENCY, "seed": args.seed}
    with temporary_folder() as here:
        with run_fleet(1, **options) as servers:
            single = play_run(here / "one", servers, games)
            check(
                single.code == 0,
                f"at one server: {sum(single.requests)} calls, {single.warm_block_count} blocks of prompts warm",
            )
        with run_fleet(3, **options) as servers:
            triple = play_run(here / "three", servers, games)
        check(
            triple.server_affinity >= 0.95,
            f"three servers: {triple.server_affinity:.3f} of calls were at the server of their game",
        )
        check(
            triple.warm_block_count >= 0.95 * single.warm_block_count,
            f"{triple.warm_block_count / single.warm_block_count:.3f} of the blocks that one server has warm",
        )
        imbalance = measure_imbalance(triple.requests)
        check(imbalance <= 0.1, f"the load of {triple.requests} calls is even within {imbalance:.1%}")
        check(
            triple.records == single.records and triple.run_id == single.run_id,
            "the same run, record by record, as at one",
        )
        with run_fleet(3, **options) as servers, run_fleet(1, **options) as single_server:
            repeated = play_run(here / "repeats", servers, games, 4)
            best_repeated = play_run(here / "repeats-at-one", single_server, games, 4)
        imbalance = measure_imbalance(repeated.requests)
        check(
            repeated.server_affinity >= 0.95 and imbalance <= 0.1,
            f"four plays of each datapoint: {repeated.server_affinity:.3f} stuck, load even within {imbalance:.1%}, "
            f"{repeated.warm_block_count / best_repeated.warm_block_count:.3f} of one server's warm blocks",
        )
        check_outages(check, here, single, games, options)
    return check.exit_code()


def check_outages(
    check: SoftAssertions, here: Path, undisturbed: FinishedGames, games: int, options: dict[str, Any]
) -> None:
    """Check a run while one server stops for a while, and a run without any server."""
    requests_at_return: list[int] = []
    with run_fleet(3, **options) as servers:
        disturbed = play_run(
            here / "storm", servers, games, disturb=create_outage(sum(undisturbed.requests), requests_at_return)
        )
    lost_games = disturbed.outcomes["transport_failed"]
    check(disturbed.code == 0 and disturbed.status == "done", f"one goes away and comes back: exit {disturbed.code}")
    check(
        lost_games == 0,
        f"{disturbed.failed_calls} calls failed and were asked again elsewhere, {lost_games} games were lost",
    )
    check(disturbed.records == undisturbed.records, "the same records as without")
    after_return = [
        end_count - return_count for end_count, return_count in zip(disturbed.requests, requests_at_return, strict=True)
    ]
    check(
        measure_imbalance(after_return) <= 0.1,
        f"once it is back, the load of {after_return} calls is even within {measure_imbalance(after_return):.1%}",
    )
    check(
        f"cannot reach {servers.base_urls[STOPPED_SERVER]}" in disturbed.stderr.replace("\n", " "),
        "the screen names it",
    )
    with run_fleet(3, **options) as servers:
        pass  # all servers stop here, and their addresses stay unused
    start = time.monotonic()
    unserved = play_without_servers(here / "nobody", servers.base_urls)
    are_all_named = all(url in unserved[1] for url in servers.base_urls)
    seconds = time.monotonic() - start
    check(unserved[0] == 1 and are_all_named, f"all away: exit {unserved[0]} after {seconds:.0f} s, and each is named")


def play_without_servers(folder: Path, base_urls: list[str]) -> tuple[int, str]:
    folder.mkdir()
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls}
    spec_file(folder, None, size=50, retry=RETRY, models={"m": group})
    code, _, stderr = wait_for_exit(start_nip_run("spec.yaml", cwd=folder))
    return code, stderr


if __name__ == "__main__":
    sys.exit(main())
