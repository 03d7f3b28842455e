"""One dollar for a run worth ten never spends more, by the provider's own account, whatever fails.

    python benchmarks/proofs/budget.py [--times N] [--seed S]

N runs with seeds of their own, every third killed on its way, again and again; the provider bills for each answer that
it gave, also where the connection was lost before it arrived, and where nobody lived to read it.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from shared import Claims, folder, times

from tests.support.processes import nip_run, started_silent
from tests.support.runs import journal_records, only_run
from tests.support.servers.batch_client import Provider, providing
from tests.support.specs import spec_file

IN, OUT, SIZE = 20.0, 80.0, 300
FAULTS = {
    "rate_limit": 0.05, "rate_limit_wait": 0.05, "server_error": 0.05, "drop": 0.05, "half_body": 0.05,
    "malformed": 0.05, "hang": 0.03,
}  # fmt: skip
CONCURRENCY = 16
KILLS = 3


def main() -> int:
    args = times(__doc__, 6)
    claims, rng = Claims(), random.Random(args.seed)
    model = {"m": {"price": {"input": IN, "output": OUT}, "max_completion_tokens": 60, "timeout": 0.4}}
    undisturbed: list[float] = []
    killed: list[float] = []
    codes: set[int] = set()
    worth, kills, lost, missed = 0.0, 0, 0, 0
    with folder() as here:
        with providing() as provider:
            spec_file(here, provider.base_url, size=SIZE, models=model)
            assert nip_run("spec.yaml", "-q", "--results", "all", cwd=here).returncode == 0
            worth = provider.billed_usd(IN, OUT)
        for index in range(args.times):
            with providing(faults=FAULTS, latency=0.02, chat={"seed": args.seed + index}) as provider:
                spec_file(
                    here, provider.base_url, size=SIZE, models=model, seed=100 + index, budget={"usd": 1.0},
                    rollouts={"concurrency": CONCURRENCY},
                )  # fmt: skip
                words = ("spec.yaml", "-q", "--results", f"results-{index}")
                for _ in range(KILLS if index % 3 == 2 else 0):
                    kills += kill_on_its_way(words, here, provider, rng)
                codes.add(nip_run(*words, cwd=here).returncode)
                codes.add(nip_run(*words, cwd=here).returncode)
                (killed if index % 3 == 2 else undisturbed).append(provider.billed_usd(IN, OUT))
                records = journal_records(only_run(here / f"results-{index}"))
                in_flight = sum(record["charged"][2] for record in records if record["kind"] == "lost")
                counted = in_flight + sum(record["kind"] in ("call", "failure") for record in records)
                lost += in_flight
                missed += provider.stats()["chat"] > counted
    claims(worth >= 10, f"the whole run is worth {worth:.2f} USD")
    claims(codes == {3}, f"exit codes: {codes}")
    claims(
        max(undisturbed) <= 1.0,
        f"{len(undisturbed)} runs under faults spent {min(undisturbed):.3f} to {max(undisturbed):.3f} USD",
    )
    claims(min(undisturbed) > 0.3, "and used what they were given")
    if killed:
        claims(
            max(killed) <= 1.0,
            f"{len(killed)} runs that were killed {kills} times spent {min(killed):.3f} to {max(killed):.3f} USD",
        )
        claims(kills == 0 or lost > 0, f"calls in flight at the kills, counted at their worst case: {lost}")
    claims(missed == 0, f"runs whose journal counts fewer calls than the provider got: {missed}")
    return claims.end()


def kill_on_its_way(words: tuple[str, ...], here: Path, provider: Provider, rng: random.Random) -> bool:
    """Play until the provider has got some more calls, and kill; whether there was still something to kill."""
    process = started_silent(*words, cwd=here)
    asked = provider.stats()["chat"] + rng.randrange(5, 40)
    while provider.stats()["chat"] < asked and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    return process.wait() < 0


if __name__ == "__main__":
    sys.exit(main())
