"""The SQL function `paired_test`, which tests the difference of two runs."""

from __future__ import annotations

from runner.statistics.paired_groups import Pairs


def paired_test(  # noqa: PLR0917 -- SQL has no keywords
    sums: list[float], sizes: list[float], missing: list[float], least: list[float], step: float, stopped: bool
) -> dict[str, object]:
    """Return a row with the columns `schema.TEST_COLUMNS`. The first five arguments are those of `Pairs`.

    With `stopped`, a stopping rule ended a run, so the interval and p come from a confidence sequence.
    """
    pairs = Pairs(sums, sizes, missing, least, step)
    difference, sign_flip = pairs.compare(1.0)
    p = sign_flip.p if difference.groups > 1 else None
    if stopped:
        difference, p = pairs.at_any_time()
    return {
        "difference": difference.value,
        "stderr": difference.stderr,
        "ci_low": difference.low,
        "ci_high": difference.high,
        "p": p,
        "detectable": difference.detectable,
        "groups": difference.groups,
        "differing": sign_flip.differing,
    }
