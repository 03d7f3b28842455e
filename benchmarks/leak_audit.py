"""Check the leak audit: false alarms in clean datasets at most 5 %, and planted leaks found with power at least 0.9.

    python benchmarks/leak_audit.py [--times N] [--seed S]

Datasets of 200 items are simulated by `tests/support/leaky_datasets.py` and audited as `nip-run audit` does, with
Holm's correction for all tests of one audit: N clean datasets for each structure of groups, and N / 5 for each kind of
leak. In clean datasets, the labels say nothing about the contents. A false alarm is any finding.
"""

from __future__ import annotations

import sys

from common import sample_arguments

from tests.support.leaky_datasets import CLEAN, LEAKS, measure_false_alarms, measure_power
from tests.support.soft_assertions import SoftAssertions

MAX_FALSE_ALARMS = 0.05
MIN_POWER = 0.9


def main() -> int:
    args = sample_arguments(__doc__, 1000)
    check = SoftAssertions()
    for name, simulate in CLEAN.items():
        share = measure_false_alarms(simulate, args.times, args.seed)
        check(share <= MAX_FALSE_ALARMS, f"clean, {name}: false alarms in {share:.1%} of {args.times} datasets")
    times = max(args.times // 5, 20)
    for name, leak in LEAKS.items():
        share = measure_power(leak, times, args.seed)
        check(share >= MIN_POWER, f"{name}: found in {share:.1%} of {times} datasets")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
