"""Check a model group with three servers: games stay at their server, the load is even, and a server may stop.

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
DOWN = 1
"""The index of the server that stops for a while."""


@dataclass(frozen=True)
class FinishedGames:
    """The result of one run: its records, and what the servers counted."""

    run_id: str
    code: int
    status: str
    outcomes: Mapping[str, int]
    records: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    requests: list[int]
    stuck: float
    warm: int
    failed: int
    screen: str


def played(
    here: Path,
    servers: ServerFleet,
    games: int,
    repeats: int = 1,
    meanwhile: Callable[[ServerFleet], None] = lambda _: None,
) -> FinishedGames:
    """Play a run by the command in a new folder; `meanwhile` is called while it plays."""
    here.mkdir()
    spec_file(
        here, None, size=games // repeats, retry=RETRY,
        models={"m": {"provider": "openai", "model": "tiny", "base_url": servers.base_urls, "session_id": True}},
        rollouts={"concurrency": CONCURRENCY, "per_datapoint": repeats},
    )  # fmt: skip
    process = start_nip_run("spec.yaml", cwd=here)
    meanwhile(servers)
    code, _, said = wait_for_exit(process)
    run = only_run(here / "results")
    completions = table(run, "completions")
    return FinishedGames(
        run.name, code, read_status(run), json.loads((run / "metrics.json").read_text())["outcomes"],
        (table(run, "rollouts"), table(run, "messages")), servers.requests(), servers.affine_share(),
        servers.warm_blocks(),
        sum(row["error"] is not None for row in completions), said,
    )  # fmt: skip


def spread(requests: list[int]) -> float:
    """Return the largest deviation of a server's load from the mean, as a share of the mean."""
    mean = sum(requests) / len(requests)
    return max(abs(count - mean) / mean for count in requests)


def away_and_back(calls: int, after: list[int]) -> Callable[[ServerFleet], None]:
    """Return a function that stops a server after a fifth of the calls and starts it after two fifths.

    Once the server has its share of the games again, the requests to each server so far are added to `after`.
    """

    def happens(servers: ServerFleet) -> None:
        wait_until(lambda: sum(servers.requests()) > calls / 5)
        servers.stop(DOWN)
        wait_until(lambda: sum(servers.requests()) > calls * 2 / 5)
        before = servers.requests()[DOWN]
        servers.start(DOWN)
        wait_until(lambda: servers.requests()[DOWN] > before + CONCURRENCY)
        after.extend(servers.requests())

    return happens


def main() -> int:
    args = sample_arguments(__doc__, 1200)
    check = SoftAssertions()
    games, options = args.times, {"latency": LATENCY, "seed": args.seed}
    with temporary_folder() as here:
        with run_fleet(1, **options) as servers:
            one = played(here / "one", servers, games)
            check(one.code == 0, f"at one server: {sum(one.requests)} calls, {one.warm} blocks of prompts warm")
        with run_fleet(3, **options) as servers:
            three = played(here / "three", servers, games)
        check(three.stuck >= 0.95, f"three servers: {three.stuck:.3f} of calls were at the server of their game")
        check(three.warm >= 0.95 * one.warm, f"{three.warm / one.warm:.3f} of the blocks that one server has warm")
        imbalance = spread(three.requests)
        check(imbalance <= 0.1, f"the load of {three.requests} calls is even within {imbalance:.1%}")
        check(three.records == one.records and three.run_id == one.run_id, "the same run, record by record, as at one")
        with run_fleet(3, **options) as servers, run_fleet(1, **options) as alone:
            repeated = played(here / "repeats", servers, games, 4)
            best = played(here / "repeats-at-one", alone, games, 4)
        imbalance = spread(repeated.requests)
        check(
            repeated.stuck >= 0.95 and imbalance <= 0.1,
            f"four plays of each datapoint: {repeated.stuck:.3f} stuck, load even within {imbalance:.1%}, "
            f"{repeated.warm / best.warm:.3f} of one server's warm blocks",
        )
        broken(check, here, one, games, options)
    return check.exit_code()


def broken(check: SoftAssertions, here: Path, calm: FinishedGames, games: int, options: dict[str, Any]) -> None:
    """Check a run while one server stops for a while, and a run without any server."""
    back: list[int] = []
    with run_fleet(3, **options) as servers:
        storm = played(here / "storm", servers, games, meanwhile=away_and_back(sum(calm.requests), back))
    lost = storm.outcomes["transport_failed"]
    check(storm.code == 0 and storm.status == "done", f"one goes away and comes back: exit {storm.code}")
    check(lost == 0, f"{storm.failed} calls failed and were asked again elsewhere, {lost} games were lost")
    check(storm.records == calm.records, "the same records as without")
    after_return = [now - then for now, then in zip(storm.requests, back, strict=True)]
    check(
        spread(after_return) <= 0.1,
        f"once it is back, the load of {after_return} calls is even within {spread(after_return):.1%}",
    )
    check(f"cannot reach {servers.base_urls[DOWN]}" in storm.screen.replace("\n", " "), "the screen names it")
    with run_fleet(3, **options) as servers:
        pass  # all servers stop here, and their addresses stay unused
    start = time.monotonic()
    lonely = played_nowhere(here / "nobody", servers.base_urls)
    named = all(url in lonely[1] for url in servers.base_urls)
    seconds = time.monotonic() - start
    check(lonely[0] == 1 and named, f"all away: exit {lonely[0]} after {seconds:.0f} s, and each is named")


def played_nowhere(here: Path, base_urls: list[str]) -> tuple[int, str]:
    here.mkdir()
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls}
    spec_file(here, None, size=50, retry=RETRY, models={"m": group})
    code, _, said = wait_for_exit(start_nip_run("spec.yaml", cwd=here))
    return code, said


if __name__ == "__main__":
    sys.exit(main())
