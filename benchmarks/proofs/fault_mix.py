"""The same run against a server that never fails, and against one that fails nearly every second call.

    python benchmarks/proofs/fault_mix.py [--times N] [--seed S]

N rollouts, 64 at once, answers in 0.2 s, 5 % each of nine faults; a call that hangs is given up after 1 s. Settings
are the default but for the wait before a second call, which is set to the latency: 0.1 s, and never more than 1 s.

Two of the faults are 429s, which the run takes for a server that has too much to do, whatever draws them: it asks for
less at once. What that costs is printed; the claim about time is for the other seven.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import Claims, folder, times

from tests.server.client import serving
from tests.server.play import nip_run, only_run, spec_file, table

OVERLOAD = ("rate_limit", "rate_limit_seconds")
OTHER = ("server_error", "drop", "half_body", "malformed", "empty_choices", "null_content", "hang")
SHARE = 0.05
CONCURRENCY, LATENCY, TIMEOUT, HANG = 64, 0.2, 1.0, 3.0
RETRY = {"transient": {"first_wait": 0.1, "max_wait": 1.0, "attempts": None}, "invalid_response": {"attempts": 5}}


@dataclass(frozen=True)
class Played:
    """How one run went."""

    code: int
    seconds: float
    kinds: Mapping[str, int]
    manifest: Mapping[str, Any]
    outcomes: Mapping[str, int]
    records: tuple[list[dict[str, Any]], list[dict[str, Any]]]


def played(here: Path, faults: tuple[str, ...], rollouts: int, seed: int) -> Played:
    """A run in a folder of its own, against a server of its own."""
    here.mkdir()
    with serving(faults=dict.fromkeys(faults, SHARE), latency=LATENCY, hang=HANG, seed=seed) as server:
        spec_file(
            here, server.base_url, size=rollouts, models={"m": {"timeout": TIMEOUT}},
            rollouts={"concurrency": CONCURRENCY}, retry=RETRY,
        )  # fmt: skip
        begun = time.monotonic()
        done = nip_run("spec.yaml", "-q", cwd=here, timeout=600)
        seconds = time.monotonic() - begun
        kinds = server.stats()["kinds"]
    run = only_run(here / "results")
    metrics = json.loads((run / "metrics.json").read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    records = (table(run, "rollouts"), table(run, "messages"))
    return Played(done.returncode, seconds, kinds, manifest, metrics["outcomes"], records)


def same(claims: Claims, name: str, storm: Played, calm: Played, faults: tuple[str, ...]) -> None:
    """It ends, and has come to what the undisturbed run has come to."""
    failed = sum(storm.kinds.get(kind, 0) for kind in faults)
    all_seen = set(faults) <= set(storm.kinds)
    claims(all_seen, f"{name}: {failed} of {sum(storm.kinds.values())} calls failed, by {len(faults)} kinds of fault")
    claims(storm.code == 0 and storm.manifest["status"] == "done", f"{name}: the run completes, exit {storm.code}")
    rollouts, messages = map(len, storm.records)
    claims(storm.records == calm.records, f"{name}: the same {rollouts} records and {messages} messages")
    transport = storm.outcomes["transport_failed"]
    claims(storm.outcomes == calm.outcomes and not transport, f"{name}: failures of transport as a verdict {transport}")


def main() -> int:
    args = times(__doc__, 300)
    claims = Claims()
    with folder() as here:
        calm = played(here / "calm", (), args.times, args.seed)
        claims(calm.code == 0, f"undisturbed: {args.times} rollouts in {calm.seconds:.1f} s")
        other = played(here / "other", OTHER, args.times, args.seed)
        same(claims, "no 429", other, calm, OTHER)
        ratio = other.seconds / calm.seconds
        claims(ratio <= 2, f"no 429: {other.seconds:.1f} s, {ratio:.2f} times the undisturbed run's")
        storm = played(here / "all", (*OVERLOAD, *OTHER), args.times, args.seed)
        same(claims, "with 429", storm, calm, (*OVERLOAD, *OTHER))
        ratio = storm.seconds / calm.seconds
        print(f"      with 429: {storm.seconds:.1f} s, {ratio:.2f} times the undisturbed run's; no claim")
    return claims.end()


if __name__ == "__main__":
    sys.exit(main())
