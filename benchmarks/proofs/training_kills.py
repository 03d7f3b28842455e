"""Training runs against a provider that fine-tunes, killed at random moments: no job twice, the same end.

    python benchmarks/proofs/training_kills.py [--times N] [--seed S]

Expert iteration for 3 iterations, then MALT for 2. Each is played once undisturbed, and then N times at a provider of
its own, each time killed once at a random moment and gone on with; and once more with N kills one after the other.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shared import Claims, folder, times

from runner.results.folder import RunFolder
from tests.support.processes import started_silent
from tests.support.servers.fine_tune_client import FineTuner, fine_tuning
from tests.support.training import at_provider, datasets_of, malt, training_spec

PROVIDER: dict[str, Any] = {"latency": 0.01, "script": {"looks": 2}}
AT_ONCE = 8
SHARED = {"share_prompts": True}
"""One request with `n` for all answers to a step."""
KINDS = {
    "expert iteration": {
        "training": {"iterations": 3, "guess_replacement": {"proportion": 0.5}, "test": {"scheme": "all"}},
        "models": {"p": SHARED, "v": SHARED},
    },
    "MALT": malt(
        training={"iterations": 2},
        rollouts={"num_responses_per_timestep": 3, "per_datapoint": 1},
        models={"p": SHARED, "v": SHARED},
    ),
}


def main() -> int:
    args = times(__doc__, 20)
    claims, rng = Claims(), random.Random(args.seed)
    with folder() as here:
        for kind, changes in KINDS.items():
            _prove(claims, rng, here / kind.replace(" ", "_"), args.times, kind=kind, changes=changes)
    return claims.end()


def _prove(claims: Claims, rng: random.Random, here: Path, kills: int, *, kind: str, changes: dict[str, Any]) -> None:
    with fine_tuning(**PROVIDER) as provider:
        begun = time.monotonic()
        _spec(here / "whole", provider, changes)
        assert started_silent("spec.yaml", "-q", cwd=here / "whole").wait(300) == 0
        lasted = time.monotonic() - begun
        wanted, jobs, calls = _end(here / "whole"), _jobs(provider), provider.stats()["chat"]
    print(f"\n{kind}: {calls} completions, {len(jobs)} jobs, {lasted:.1f} s undisturbed")
    same = doubled = in_time = extra = number = 0
    while in_time < kills and number < 3 * kills:
        with fine_tuning(**PROVIDER) as provider:
            place = here / str(number)
            number += 1
            _spec(place, provider, changes)
            if not _killed(place, rng.uniform(0.3, lasted)):
                continue
            in_time += 1
            assert started_silent("spec.yaml", "-q", cwd=place).wait(300) == 0
            same += _end(place) == wanted
            doubled += _jobs(provider) != jobs
            extra = max(extra, provider.stats()["chat"] - calls)
    claims(in_time == kills, f"killed before their end: {in_time} of {number} times, the others do not count")
    claims(same == kills, f"datasets, sidecars and final state byte-identical after the kill: {same} of {kills}")
    claims(doubled == 0, f"runs with a job too many, or another one: {doubled}")
    # Of as many calls again as there may be at the provider, the answers may be on their way to the disk.
    claims(extra <= 2 * AT_ONCE, f"completions asked again, at most: {extra}; at the provider at once: {AT_ONCE}")
    with fine_tuning(**PROVIDER) as provider:
        place = here / "again and again"
        _spec(place, provider, changes)
        in_time = sum(_killed(place, rng.uniform(0.6, 2.0)) for _ in range(kills))
        assert started_silent("spec.yaml", "-q", cwd=place).wait(300) == 0
        claims(_end(place) == wanted, f"the same after {in_time} kills one after the other")
        claims(_jobs(provider) == jobs, f"and the same {len(jobs)} jobs")


def _spec(place: Path, provider: FineTuner, changes: dict[str, Any]) -> None:
    training_spec(place, **at_provider(provider.base_url, **changes))


def _killed(place: Path, seconds: float) -> bool:
    process = started_silent("spec.yaml", "-q", cwd=place)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait() != 0


def _end(place: Path) -> tuple[dict[str, bytes], bytes]:
    """What a training run has come to."""
    (run,) = (path.parent for path in place.glob("results/runs/*/stages.jsonl"))
    return datasets_of(RunFolder(run)), (run / "state.json").read_bytes()


def _jobs(provider: FineTuner) -> list[tuple[Any, ...]]:
    """The jobs of a provider, by what they are: base model, method and the file's content."""
    return sorted((job["model"], job["method"]["type"], job["sha256"], job["status"]) for job in provider.jobs())


if __name__ == "__main__":
    sys.exit(main())
