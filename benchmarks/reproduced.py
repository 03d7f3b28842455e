"""Check `reproduce --fresh` with known drifts of a model: it must report a large drift, and none where there is none.

    python benchmarks/reproduced.py [--times N] [--seed S]

Each time, a run of a simulated judge on 120 claims is published to a folder, fetched, and played again against servers
whose judge of the same name is unchanged, a little worse or much worse. The accuracy of a judge is Phi(d'/2), so the
drift is known. Claimed: at least 90 % of the intervals contain the drift, at most 10 % of the runs without drift are
reported as drifted, and at least 90 % of those with the large drift are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import NormalDist

from common import sample_arguments, temporary_folder

from runner.documents.releases.reference import parse_reference
from runner.registry.fetched_release import fetch_release
from runner.registry.transports.locations import connect
from tests.support.processes import nip_run_here
from tests.support.run_bundles import build_run_bundle, publish_bundles
from tests.support.runs import run_spec
from tests.support.servers.judges_client import judged_spec, run_judge_server
from tests.support.soft_assertions import SoftAssertions

SIZE = 120
PUBLISHED = 2.5
DRIFTED = {"none": 2.5, "small": 2.0, "large": 0.5}
"""The sensitivity (d') of the judge that is played again, by the size of its drift."""


def accuracy(sensitivity: float) -> float:
    return NormalDist().cdf(sensitivity / 2)


def once(folder: Path, seed: int) -> dict[str, tuple[str, bool]]:
    """Return for each drift the reported outcome, and whether the interval contains the drift."""
    with run_judge_server(judges={"seer": {"sensitivity": PUBLISHED}}, seed=seed) as server:
        labels = [number % 2 for number in range(SIZE)]
        spec = judged_spec(folder, server.base_url, "solo_verifier", "seer", labels=labels, fine_tune=None)
        run = run_spec(spec, folder / "theirs").path
    reference = publish_bundles(folder / "registry", build_run_bundle(run))
    with connect(str(folder / "registry")) as registry:
        fetch_release(registry, parse_reference(reference), folder / "got")
    outcomes = {}
    for number, (name, sensitivity) in enumerate(DRIFTED.items(), 1):
        with run_judge_server(judges={"seer": {"sensitivity": sensitivity}}, seed=seed + 1_000_000 * number) as server:
            address = f"models.seer.base_url={server.base_url}"
            result = nip_run_here("reproduce", folder / "got", "--fresh", "--set", address, "--json", "-q", cwd=folder)
        reply = json.loads(result.stdout)
        drift = accuracy(sensitivity) - accuracy(PUBLISHED)
        pair = reply["compared"]
        outcomes[name] = reply["outcome"], pair["ci_low"] <= drift <= pair["ci_high"]
    return outcomes


def main() -> int:
    options = sample_arguments(__doc__, 40)
    check = SoftAssertions()
    with temporary_folder() as root:
        rounds = []
        for number in range(options.times):
            at = root / str(number)
            at.mkdir()
            rounds.append(once(at, options.seed + number))
    outcomes = {name: [results[name][0] for results in rounds] for name in DRIFTED}
    holds = [results[name][1] for results in rounds for name in DRIFTED]
    check(
        sum(holds) >= 0.9 * len(holds),
        f"{sum(holds)} of {len(holds)} intervals contain the planted drift",
    )
    wrong = outcomes["none"].count("drifted")
    check(wrong <= max(1, 0.1 * len(rounds)), f"{wrong} of {len(rounds)} models as they were are said to have drifted")
    right = outcomes["large"].count("drifted")
    check(right >= 0.9 * len(rounds), f"{right} of {len(rounds)} models that are much worse are said to have drifted")
    detected = outcomes["small"].count("drifted")
    print(f"      {detected} of {len(rounds)} that are a little worse, by {accuracy(2.5) - accuracy(2.0):.3f}")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
