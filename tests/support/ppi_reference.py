"""Write `tests/fixtures/ppi_python.json`: samples with the results of ppi-python.

    pip install ppi-python==0.2.3 && python -m tests.support.ppi_reference

The tests read the file, because ppi-python needs numba, pandas and gdown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tests.support.paths import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "ppi_python.json"
LEVEL = 0.95


@dataclass(frozen=True)
class Sample:
    """Labels and model values of labeled units, model values of the others, and the results of ppi-python."""

    labels: list[float]
    model_values: list[float]
    other_values: list[float]
    value: float
    low: float
    high: float


def samples() -> list[Sample]:
    return [Sample(**row) for row in json.loads(FIXTURE.read_text("utf-8"))]


def compute(labels: Any, model_values: Any, other_values: Any) -> Sample:
    from ppi_py import ppi_mean_ci, ppi_mean_pointestimate

    value = float(np.squeeze(ppi_mean_pointestimate(labels, model_values, other_values)))
    low, high = (float(np.squeeze(end)) for end in ppi_mean_ci(labels, model_values, other_values, alpha=1 - LEVEL))
    return Sample(labels.tolist(), model_values.tolist(), other_values.tolist(), value, low, high)


def main() -> None:
    rows = []
    for seed, (labeled, units) in enumerate([(25, 80), (60, 100), (20, 90), (30, 70), (40, 60)]):
        rng = np.random.default_rng(seed)
        truth = (rng.random(units) < 0.4).astype(float)
        judgments = np.where(
            rng.random(units) < (0.5, 0.9, 0.2, 0.8, 1.0)[seed], truth, 1.0 - (rng.random(units) < 0.3)
        )
        if seed == 3:  # scores
            truth, judgments = (np.round(np.clip(x + rng.normal(0, 0.3, units), 0, 1), 3) for x in (truth, judgments))
        rows.append(compute(truth[:labeled], judgments[:labeled], judgments[labeled:]))
    FIXTURE.write_text(json.dumps([asdict(row) for row in rows]) + "\n", "utf-8")


if __name__ == "__main__":
    main()
