"""Coverage of intervals: a sample of `benchmarks/coverage_metrics.py`."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    """Return the module `benchmarks/coverage_metrics.py`."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("coverage_metrics", BENCHMARKS / "coverage_metrics.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["coverage_metrics"] = module  # dataclasses look up their module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


def assert_claims_hold(case: Any, simulation: ModuleType, times: int, *required_metrics: str) -> None:
    measured = simulation.measure_coverage(case, times, [11, 0], many=20_000)
    claims = dict(simulation.check_coverage(case, measured, times))
    assert all(any(name in claim for claim in claims) for name in required_metrics)
    assert not [claim for claim, holds in claims.items() if not holds]


@pytest.mark.sample(1)
@pytest.mark.parametrize("case_index", [0, 1])
def test_sample_of_intervals_covers_the_truth(simulation: ModuleType, case_index: int) -> None:
    if case_index == 0:
        design = simulation.Judge(40, 3, 0.8, 0.3, 0.3, "pairs")
        assert_claims_hold(design, simulation, 60, "sensitivity", "pair_score", "soundness_error")
    else:
        assert_claims_hold(
            simulation.Forecaster(100, 2, 1.5, "sure", rounded=True), simulation, 60, "brier_stated", "auroc", "ece"
        )


@pytest.mark.full
@pytest.mark.parametrize("datapoints", [20, 50, 200])
def test_intervals_cover_the_truth(simulation: ModuleType, datapoints: int) -> None:
    for design in ("alone", "pairs", "stances", "exchanged", "seats"):
        assert_claims_hold(simulation.Judge(datapoints, 2, 0.85, 0.25, 0.3, design), simulation, 400, "accuracy")
    for confidence_style in ("calibrated", "sure", "leaning", "vague"):
        assert_claims_hold(
            simulation.Forecaster(datapoints, 2, 1.5, confidence_style, rounded=False), simulation, 300, "auroc"
        )
