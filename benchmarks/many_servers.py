"""One model group at three servers: games stick to theirs, the load is even, and one of them goes away and comes back.

    python benchmarks/many_servers.py [--times N] [--seed S]

N games, 96 at once, answers in 5 to 30 ms, each server with a prefix cache of its own that counts blocks of 64
characters. Answers are functions of the request, so a run has the same records however many servers it is played at.
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
"""Which of the servers goes away."""


@dataclass(frozen=True)
class Played:
    """How one run went."""

    run_id: str
    code: int
    status: str
    outcomes: Mapping[str, int]
    records: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    requests: list[int]
    stuck: float
    warm: int
    failed: int
    said: str


def played(
    here: Path,
    servers: ServerFleet,
    games: int,
    repeats: int = 1,
    meanwhile: Callable[[ServerFleet], None] = lambda _: None,
) -> Played:
    """A run in a folder of its own, as a user starts it; `meanwhile` happens while it plays."""
    here.mkdir()
    spec_file(
        here, None, size=games // repeats, retry=RETRY,
        models={"m": {"provider": "openai", "model": "tiny", "base_url": servers.base_urls, "session_id": True}},
        rollouts={"concurrency": CONCURRENCY, "per_datapoint": repeats},
    )  # fmt: skip
    process = start_nip_run("spec.yaml", cwd=here)
    meanwhile(servers)
    code, _, said = wait_for_exit(process, 600)
    run = only_run(here / "results")
    completions = table(run, "completions")
    return Played(
        run.name, code, read_status(run), json.loads((run / "metrics.json").read_text())["outcomes"],
        (table(run, "rollouts"), table(run, "messages")), servers.requests(), servers.affine_share(),
        servers.warm_blocks(),
        sum(row["error"] is not None for row in completions), said,
    )  # fmt: skip


def spread(requests: list[int]) -> float:
    """By how much the most loaded, or the least, is off the mean."""
    mean = sum(requests) / len(requests)
    return max(abs(one - mean) / mean for one in requests)


def away_and_back(calls: int, after: list[int]) -> Callable[[ServerFleet], None]:
    """One server ends after a fifth of the calls, and is back after two; `after`: what each had had when it had games.

    It has its share of the games again once that many have begun or come back.
    """

    def happens(servers: ServerFleet) -> None:
        wait_until(lambda: sum(servers.requests()) > calls / 5, 120)
        servers.stop(DOWN)
        wait_until(lambda: sum(servers.requests()) > calls * 2 / 5, 120)
        before = servers.requests()[DOWN]
        servers.start(DOWN)
        wait_until(lambda: servers.requests()[DOWN] > before + CONCURRENCY, 120)
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
        off = spread(three.requests)
        check(off <= 0.1, f"the load of {three.requests} calls is even within {off:.1%}")
        check(three.records == one.records and three.run_id == one.run_id, "the same run, record by record, as at one")
        with run_fleet(3, **options) as servers, run_fleet(1, **options) as alone:
            repeated = played(here / "repeats", servers, games, 4)
            best = played(here / "repeats-at-one", alone, games, 4)
        off = spread(repeated.requests)
        check(
            repeated.stuck >= 0.95 and off <= 0.1,
            f"four plays of each datapoint: {repeated.stuck:.3f} stuck, load even within {off:.1%}, "
            f"{repeated.warm / best.warm:.3f} of one server's warm blocks",
        )
        broken(check, here, one, games, options)
    return check.exit_code()


def broken(check: SoftAssertions, here: Path, calm: Played, games: int, options: dict[str, Any]) -> None:
    """One goes away and comes back; then all of them are away."""
    back: list[int] = []
    with run_fleet(3, **options) as servers:
        storm = played(here / "storm", servers, games, meanwhile=away_and_back(sum(calm.requests), back))
    lost = storm.outcomes["transport_failed"]
    check(storm.code == 0 and storm.status == "done", f"one goes away and comes back: exit {storm.code}")
    check(lost == 0, f"{storm.failed} calls failed and were asked again elsewhere, {lost} games were lost")
    check(storm.records == calm.records, "the same records as without")
    since = [now - then for now, then in zip(storm.requests, back, strict=True)]
    check(spread(since) <= 0.1, f"once it is back, the load of {since} calls is even within {spread(since):.1%}")
    check(f"cannot reach {servers.base_urls[DOWN]}" in storm.said.replace("\n", " "), "the screen names it")
    with run_fleet(3, **options) as servers:
        pass  # nobody is there any more
    begun = time.monotonic()
    nobody = played_nowhere(here / "nobody", servers.base_urls)
    named = all(url in nobody[1] for url in servers.base_urls)
    seconds = time.monotonic() - begun
    check(nobody[0] == 1 and named, f"all away: exit {nobody[0]} after {seconds:.0f} s, and each is named")


def played_nowhere(here: Path, base_urls: list[str]) -> tuple[int, str]:
    here.mkdir()
    group = {"provider": "openai", "model": "tiny", "base_url": base_urls}
    spec_file(here, None, size=50, retry=RETRY, models={"m": group})
    code, _, said = wait_for_exit(start_nip_run("spec.yaml", cwd=here), 120)
    return code, said


if __name__ == "__main__":
    sys.exit(main())
