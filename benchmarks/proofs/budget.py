"""One dollar for a run worth ten never spends more, by the provider's own account, whatever fails.

    python benchmarks/proofs/budget.py [--times N] [--seed S]

N runs with seeds of their own, each killed once on its way in every third; the provider bills for each answer that
it gave, also where the connection was lost before it arrived.
"""

from __future__ import annotations

import random
import sys
import time

from shared import Claims, folder, start, times

from tests.batch_server.client import providing
from tests.server.play import nip_run, spec_file

IN, OUT = 60.0, 240.0
FAULTS = {
    "rate_limit": 0.05, "rate_limit_wait": 0.05, "server_error": 0.05, "drop": 0.05, "half_body": 0.05,
    "malformed": 0.05, "hang": 0.03,
}  # fmt: skip
CONCURRENCY = 16


def main() -> int:
    args = times(__doc__, 6)
    claims, rng = Claims(), random.Random(args.seed)
    model = {"m": {"price": {"input": IN, "output": OUT}, "max_completion_tokens": 60, "timeout": 0.4}}
    undisturbed: list[float] = []
    killed: list[tuple[float, float]] = []
    codes: set[int] = set()
    worth = 0.0
    with folder() as here:
        with providing() as provider:
            spec_file(here, provider.base_url, size=100, models=model)
            assert nip_run("spec.yaml", "-q", "--results", "all", cwd=here).returncode == 0
            worth = provider.billed_usd(IN, OUT)
        for index in range(args.times):
            with providing(faults=FAULTS, latency=0.02, chat={"seed": args.seed + index}) as provider:
                spec_file(
                    here, provider.base_url, size=100, models=model, seed=100 + index, budget={"usd": 1.0},
                    rollouts={"concurrency": CONCURRENCY},
                )  # fmt: skip
                words = ("spec.yaml", "-q", "--results", f"results-{index}")
                in_flight = 0
                if index % 3 == 2:
                    process = start(*words, cwd=here)
                    asked = rng.randrange(5, 30)
                    while provider.stats()["chat"] < asked and process.poll() is None:
                        time.sleep(0.005)
                    in_flight = provider.stats()["open"]
                    process.kill()
                    process.wait()
                codes.add(nip_run(*words, cwd=here).returncode)
                codes.add(nip_run(*words, cwd=here).returncode)
                spent = provider.billed_usd(IN, OUT)
                undisturbed.append(spent) if index % 3 != 2 else killed.append((spent, in_flight * worth / 300))
    claims(worth >= 10, f"the whole run is worth {worth:.2f} USD")
    claims(codes == {3}, f"exit codes: {codes}")
    claims(
        max(undisturbed) <= 1.0,
        f"{len(undisturbed)} runs under faults spent {min(undisturbed):.3f} to {max(undisturbed):.3f} USD",
    )
    claims(min(undisturbed) > 0.3, "and used what they were given")
    if killed:
        over = max(spent - 1.0 for spent, _ in killed)
        print(f"      {len(killed)} killed on their way spent at most {max(s for s, _ in killed):.3f} USD", end="")
        print(f" (answers in flight at a kill are in no journal: {over:+.3f})")
    return claims.end()


if __name__ == "__main__":
    sys.exit(main())
