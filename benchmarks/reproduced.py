"""A published run played anew: a planted drift is told with an interval that holds it; without one, none is told.

    python benchmarks/reproduced.py [--times N] [--seed S]

Each time a planted judge's run on 120 claims is published into a folder, got, and played anew by `reproduce --fresh`
against servers whose judge of that name is as it was, a little worse, and much worse. The accuracy of a judge is
Phi(d'/2), so that the drift is known. Of the intervals at least 90 % hold it, of the runs without drift at most 10 %
are said to have drifted, and the large drift is found in at least 90 %.
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
ANEW = {"none": 2.5, "small": 2.0, "large": 0.5}
"""d' of the judge that is asked again, by how far it drifted."""


def accuracy(sensitivity: float) -> float:
    return NormalDist().cdf(sensitivity / 2)


def once(at: Path, seed: int) -> dict[str, tuple[str, bool]]:
    """Of each drift what was said, and whether the interval holds it."""
    with run_judge_server(judges={"seer": {"sensitivity": PUBLISHED}}, seed=seed) as server:
        labels = [number % 2 for number in range(SIZE)]
        spec = judged_spec(at, server.base_url, "solo_verifier", "seer", labels=labels, fine_tune=None)
        run = run_spec(spec, at / "theirs").path
    reference = publish_bundles(at / "registry", build_run_bundle(run))
    with connect(str(at / "registry")) as registry:
        fetch_release(registry, parse_reference(reference), at / "got")
    found = {}
    for number, (name, sensitivity) in enumerate(ANEW.items(), 1):
        with run_judge_server(judges={"seer": {"sensitivity": sensitivity}}, seed=seed + 1_000_000 * number) as server:
            address = f"models.seer.base_url={server.base_url}"
            done = nip_run_here("reproduce", at / "got", "--fresh", "--set", address, "--json", "-q", cwd=at)
        said = json.loads(done.stdout)
        drift = accuracy(sensitivity) - accuracy(PUBLISHED)
        pair = said["compared"]
        found[name] = said["outcome"], pair["ci_low"] <= drift <= pair["ci_high"]
    return found


def main() -> int:
    options = sample_arguments(__doc__, 40)
    check = SoftAssertions()
    with temporary_folder() as root:
        rounds = []
        for number in range(options.times):
            at = root / str(number)
            at.mkdir()
            rounds.append(once(at, options.seed + number))
    outcomes = {name: [found[name][0] for found in rounds] for name in ANEW}
    held = [found[name][1] for found in rounds for name in ANEW]
    check(sum(held) >= 0.9 * len(held), f"{sum(held)} of {len(held)} intervals hold the planted drift")
    wrong = outcomes["none"].count("drifted")
    check(wrong <= max(1, 0.1 * len(rounds)), f"{wrong} of {len(rounds)} models as they were are said to have drifted")
    right = outcomes["large"].count("drifted")
    check(right >= 0.9 * len(rounds), f"{right} of {len(rounds)} models that are much worse are said to have drifted")
    seen = outcomes["small"].count("drifted")
    print(f"      {seen} of {len(rounds)} that are a little worse, by {accuracy(2.5) - accuracy(2.0):.3f}")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
