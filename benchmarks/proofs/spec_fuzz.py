"""Specs and overrides that nobody would write, through `nip-run check`: none may end in anything but an answer.

Half are mutations of the shipped specs, half are drawn from the shipped schemas; protocols, datasets and overrides
besides. An example is at fault where the exit code is neither 0 nor 2, where nip-run calls it a fault of its own, or
where anything was written. The share of the examples that got past each check is printed, so that it is seen that they
go deep.

    python benchmarks/proofs/spec_fuzz.py [--examples 20000] [--jobs 2] [--seed 0]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.spec_fuzz import STEPS, Example, Fault, Reached, examples, try_example

SLOW_SECONDS = 20.0
EACH = 250
"""Examples of one seed."""


def fuzz(number: int) -> tuple[Reached, list[str], float]:
    """The examples of one seed: how deep they came, the faults, and the seconds of the slowest."""
    reached, faults = Reached(), []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:

        @seed(number)
        @settings(
            max_examples=EACH, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(examples())
        def one(example: Example) -> None:
            nonlocal slowest
            begun = time.monotonic()
            try:
                try_example(example, Path(folder), reached)
            except Fault as fault:
                faults.append(str(fault))
            took = time.monotonic() - begun
            slowest = max(slowest, took)
            if took > SLOW_SECONDS:
                faults.append(f"{took:.0f} s: {str(example)[:2000]}")

        one()
    return reached, faults, slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begun = time.monotonic()
    parts: list[tuple[Reached, list[str], float]] = []
    seeds = range(args.seed, args.seed - (-args.examples // EACH))
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for part in pool.imap_unordered(fuzz, seeds):
            parts.append(part)
            done = sum(reached.examples + len(faults) for reached, faults, _ in parts)
            print(f"{done} examples, {sum(len(faults) for _, faults, _ in parts)} faults", file=sys.stderr, flush=True)
    total = Reached()
    for reached, _, _ in parts:
        total.examples += reached.examples
        for step in STEPS:
            total.steps[step] += reached.steps[step]
    faults = [fault for _, found, _ in parts for fault in found]
    print(
        f"{total.examples + len(faults)} examples in {time.monotonic() - begun:.0f} s, {len(faults)} faults; ", end=""
    )
    print(f"the slowest took {max(slowest for _, _, slowest in parts):.1f} s. Past each check:")
    for line in total.lines():
        print(f"  {line}")
    for fault in faults[:10]:
        print(f"\nFAULT {fault}")
    enough = total.steps["planned"] >= total.examples // 20
    if not enough:
        print("fewer than one in twenty came to a plan: the examples do not go deep")
    return 1 if faults or not enough else 0


if __name__ == "__main__":
    sys.exit(main())
