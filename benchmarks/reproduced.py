"""Check `reproduce --fresh` with known drifts of a model: it must report a large drift, and no drift if there is none.

    python benchmarks/reproduced.py [--times N] [--seed S]

Each time, a run of a simulated judge on 120 claims is published to a folder, fetched, and played again against servers
whose judge of the same name is unchanged, a little worse or much worse. The accuracy of a judge is Phi(d'/2), so the
drift is known. At least 90 % of the intervals must contain the drift. At most 10 % of the runs without drift and at
least 90 % of those with the large drift must be reported as drifted.
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

CLAIM_COUNT = 120
PUBLISHED_SENSITIVITY = 2.5
DRIFTED_SENSITIVITIES = {"none": 2.5, "small": 2.0, "large": 0.5}
"""The sensitivity (d') of the judge that is played again, by the size of its drift."""


def accuracy(sensitivity: float) -> float:
    return NormalDist().cdf(sensitivity / 2)


def measure_drifts(folder: Path, seed: int) -> dict[str, tuple[str, bool]]:
    """Return for each drift the reported outcome, and whether the interval contains the drift."""
    with run_judge_server(judges={"seer": {"sensitivity": PUBLISHED_SENSITIVITY}}, seed=seed) as server:
        labels = [index % 2 for index in range(CLAIM_COUNT)]
        spec = judged_spec(folder, server.base_url, "solo_verifier", "seer", labels=labels, fine_tune=None)
        run = run_spec(spec, folder / "theirs").path
    reference = publish_bundles(folder / "registry", build_run_bundle(run))
    with connect(str(folder / "registry")) as registry:
        fetch_release(registry, parse_reference(reference), folder / "got")
    outcomes = {}
    for index, (name, sensitivity) in enumerate(DRIFTED_SENSITIVITIES.items(), 1):
        with run_judge_server(judges={"seer": {"sensitivity": sensitivity}}, seed=seed + 1_000_000 * index) as server:
            address = f"models.seer.base_url={server.base_url}"
            result = nip_run_here("reproduce", folder / "got", "--fresh", "--set", address, "--json", "-q", cwd=folder)
        reply = json.loads(result.stdout)
        drift = accuracy(sensitivity) - accuracy(PUBLISHED_SENSITIVITY)
        comparison = reply["compared"]
        outcomes[name] = reply["outcome"], comparison["ci_low"] <= drift <= comparison["ci_high"]
    return outcomes


def main() -> int:
    options = sample_arguments(__doc__, 40)
    check = SoftAssertions()
    with temporary_folder() as root:
        repetitions = []
        for number in range(options.times):
            folder = root / str(number)
            folder.mkdir()
            repetitions.append(measure_drifts(folder, options.seed + number))
    outcomes = {name: [results[name][0] for results in repetitions] for name in DRIFTED_SENSITIVITIES}
    is_covered = [results[name][1] for results in repetitions for name in DRIFTED_SENSITIVITIES]
    check(
        sum(is_covered) >= 0.9 * len(is_covered),
        f"{sum(is_covered)} of {len(is_covered)} intervals contain the planted drift",
    )
    false_count = outcomes["none"].count("drifted")
    check(
        false_count <= max(1, 0.1 * len(repetitions)),
        f"{false_count} of {len(repetitions)} models as they were are said to have drifted",
    )
    detected_count = outcomes["large"].count("drifted")
    check(
        detected_count >= 0.9 * len(repetitions),
        f"{detected_count} of {len(repetitions)} models that are much worse are said to have drifted",
    )
    small_count = outcomes["small"].count("drifted")
    print(f"      {small_count} of {len(repetitions)} that are a little worse, by {accuracy(2.5) - accuracy(2.0):.3f}")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
