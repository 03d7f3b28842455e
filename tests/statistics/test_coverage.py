"""How often intervals hold the truth: a sample of `benchmarks/proofs/coverage_metrics.py`."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import ROOT

PROOFS = ROOT / "benchmarks" / "proofs"


@pytest.fixture(scope="module")
def proof() -> ModuleType:
    """The proof's own judges and counting."""
    sys.path.insert(0, str(PROOFS))
    try:
        spec = importlib.util.spec_from_file_location("coverage_metrics", PROOFS / "coverage_metrics.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["coverage_metrics"] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(PROOFS))


def check(situation: Any, proof: ModuleType, times: int, *least: str) -> None:
    found = proof.measured(situation, times, [11, 0], many=20_000)
    claims = dict(proof.judged(situation, found, times))
    assert all(any(name in claim for claim in claims) for name in least)
    assert not [claim for claim, holds in claims.items() if not holds]


@pytest.mark.sample(1)
@pytest.mark.parametrize("at", [0, 1])
def test_a_sample_of_intervals_holds_the_truth(proof: ModuleType, at: int) -> None:
    if at == 0:
        check(proof.Judge(40, 3, 0.8, 0.3, 0.3, "pairs"), proof, 60, "sensitivity", "pair_score", "soundness_error")
    else:
        check(proof.Forecaster(100, 2, 1.5, "sure", rounded=True), proof, 60, "brier_stated", "auroc", "ece")


@pytest.mark.full
@pytest.mark.parametrize("datapoints", [20, 50, 200])
def test_intervals_hold_the_truth(proof: ModuleType, datapoints: int) -> None:
    for design in ("alone", "pairs", "stances", "exchanged", "seats"):
        check(proof.Judge(datapoints, 2, 0.85, 0.25, 0.3, design), proof, 400, "accuracy")
    for told in ("calibrated", "sure", "leaning", "vague"):
        check(proof.Forecaster(datapoints, 2, 1.5, told, rounded=False), proof, 300, "auroc")
