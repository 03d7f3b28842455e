"""What SQL asks Python for: the paired test of two runs, by the differences of their groups."""

from __future__ import annotations

from typing import Any

from runner.statistics.paired_groups import Pairs


def paired_test(  # noqa: PLR0917 -- SQL has no keywords
    sums: list[float], sizes: list[float], spare: list[float], least: list[float], step: float, stopped: bool
) -> dict[str, Any]:
    """A row of `board_schema.TESTED`, of differences between accuracies; the arguments are those of `Pairs`.

    Where one of the runs may have `stopped` once it was decided, its interval and its p are of a confidence sequence.
    """
    pairs = Pairs(sums, sizes, spare, least, step)
    found, flipped = pairs.difference(1.0), pairs.test()
    p = flipped.p if found.groups > 1 else None
    if stopped:
        found, p = pairs.at_any_time()
    return {
        "difference": found.value,
        "stderr": found.stderr,
        "ci_low": found.low,
        "ci_high": found.high,
        "p": p,
        "detectable": found.detectable,
        "groups": found.groups,
        "differing": flipped.differing,
    }
