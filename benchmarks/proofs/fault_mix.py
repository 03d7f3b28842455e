"""The same run against a server that never fails, and against one that fails nearly every second call.

    python benchmarks/proofs/fault_mix.py [--times N] [--seed S]

N rollouts, 64 at once, answers in 0.2 s, 5 % each of nine faults. Settings are the default but for two that are set to
the latency: a call that hangs is given up after 0.6 s, and the waits before another call are from 0.02 s to 0.2 s. With
the default waits, made for servers that recover in seconds, the time is what the waits add up to.
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

from tests.support.processes import nip_run
from tests.support.runs import only_run, table
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file

FAULTS = (
    "rate_limit", "rate_limit_seconds", "server_error", "drop", "half_body", "malformed", "empty_choices",
    "null_content", "hang",
)  # fmt: skip
SHARE = 0.05
CONCURRENCY, LATENCY, TIMEOUT, HANG = 64, 0.2, 0.6, 3.0
RETRY = {"transient": {"first_wait": 0.02, "max_wait": 0.2, "attempts": None}, "invalid_response": {"attempts": 5}}


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


def same(claims: Claims, storm: Played, calm: Played) -> None:
    """It ends, and has come to what the undisturbed run has come to."""
    failed = sum(storm.kinds.get(kind, 0) for kind in FAULTS)
    all_seen = set(FAULTS) <= set(storm.kinds)
    claims(all_seen, f"{failed} of {sum(storm.kinds.values())} calls failed, by {len(FAULTS)} kinds of fault")
    claims(storm.code == 0 and storm.manifest["status"] == "done", f"the run completes, exit {storm.code}")
    rollouts, messages = map(len, storm.records)
    claims(storm.records == calm.records, f"the same {rollouts} records and {messages} messages")
    transport = storm.outcomes["transport_failed"]
    claims(storm.outcomes == calm.outcomes and not transport, f"failures of transport as a verdict: {transport}")


def main() -> int:
    args = times(__doc__, 300)
    claims = Claims()
    with folder() as here:
        calm = played(here / "calm", (), args.times, args.seed)
        claims(calm.code == 0, f"undisturbed: {args.times} rollouts in {calm.seconds:.1f} s")
        storm = played(here / "storm", FAULTS, args.times, args.seed)
        same(claims, storm, calm)
        ratio = storm.seconds / calm.seconds
        claims(ratio <= 2, f"{storm.seconds:.1f} s, {ratio:.2f} times the undisturbed run's")
    return claims.end()


if __name__ == "__main__":
    sys.exit(main())
