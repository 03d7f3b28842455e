"""Judges with planted sensitivity, criterion, position bias and calibration, which a run's metrics must match."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from runner.runs.finished.result import FinishedRun
from tests.support import judge_statistics
from tests.support.runs import metric, run_spec, table
from tests.support.servers.client import LoopbackServer
from tests.support.servers.judges import Judge
from tests.support.servers.judges_client import judged_spec, run_judge_server

pytestmark = pytest.mark.full

SIZE = 120
JUDGES = {
    "keen": Judge(sensitivity=2.0, criterion=-0.4),
    "strict": Judge(sensitivity=0.8, criterion=1.4),
    "leaning": Judge(sensitivity=1.2, criterion=1.0),
    "biased": Judge(sensitivity=1.2, criterion=1.0, follows_first=0.4),
    "sure": Judge(sensitivity=1.5, sharpness=2.5, states=True),
}
PROVERS = {"strong": 0.8, "weak": 0.2}
ALTERNATING_LABELS = [number % 2 for number in range(SIZE)]


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    judges = {name: vars(judge) for name, judge in JUDGES.items()}
    with run_judge_server(seed=3, judges=judges, provers=PROVERS) as running:
        yield running


def does_interval_contain(result: FinishedRun, name: str, truth: float, agent: str | None = None) -> bool:
    """Return whether the interval of a run's metric contains the planted value."""
    row = metric(result, name, agent)
    return bool(row["ci_low"] <= truth <= row["ci_high"])


def test_accuracy_ranks_two_judges_wrongly_and_d_prime_ranks_them_correctly(
    tmp_path: Path, server: LoopbackServer
) -> None:
    """Nine of ten claims are wrong, so a judge that rejects nearly all claims is right most of the time."""
    labels = [int(number % 10 == 0) for number in range(2 * SIZE)]
    accuracy, sensitivity = {}, {}
    for name in ("keen", "strict"):
        path = judged_spec(tmp_path / name, server.base_url, "solo_verifier", name, labels=labels)
        result = run_spec(path, tmp_path / "results")
        assert result.accuracy is not None
        accuracy[name] = result.accuracy.value
        judge = JUDGES[name]
        d_prime, criterion = judge_statistics.estimate_signal_detection(table(result.path, "rollouts"))
        sensitivity[name] = metric(result, "sensitivity")["value"]
        assert sensitivity[name] == pytest.approx(d_prime.value)
        assert metric(result, "criterion")["value"] == pytest.approx(criterion.value)
        assert d_prime.contains(judge.sensitivity)
        assert criterion.contains(judge.criterion)
    assert accuracy["keen"] < accuracy["strict"]
    assert sensitivity["keen"] > sensitivity["strict"]


def test_position_bias_matches_the_planted_bias_and_not_the_criterion(tmp_path: Path, server: LoopbackServer) -> None:
    """A judge that tends to reject has no position bias; one that follows the first seat in 4 of 10 games has 0.4."""
    for name in ("leaning", "biased"):
        path = judged_spec(
            tmp_path / name, server.base_url, "debate", name, ("weak", "weak"), labels=ALTERNATING_LABELS,
            stances="both",
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
        rows = table(result.path, "rollouts")
        assert len(rows) == 2 * SIZE
        truth = JUDGES[name].follows_first
        assert does_interval_contain(result, "position_bias", truth)
        assert judge_statistics.estimate_first_seat_lead(rows).is_near(truth)
        assert metric(result, "criterion")["ci_low"] > 0.3
    assert metric(result, "position_bias")["ci_low"] > 0.2


def test_a_swap_separates_the_strength_of_a_player_from_its_seat(tmp_path: Path, server: LoopbackServer) -> None:
    """Without a swap, the strong prover's wins could come from its seat or from the judge's tendency to reject."""
    judge, forces = JUDGES["leaning"], (0.8, 0.2)
    for stances in (None, "both"):
        folder, design = tmp_path / str(stances), dict[str, Any]({} if stances is None else {"stances": stances})
        path = judged_spec(
            folder, server.base_url, "debate", "leaning", ("strong", "weak"), labels=ALTERNATING_LABELS, seats="swap",
            **design,
        )  # fmt: skip
        result = run_spec(path, folder / "results")
        rows = table(result.path, "rollouts")
        strong_scores = []
        for side in ("reject", "accept"):  # in either seat
            other_side = "accept" if side == "reject" else "reject"
            arguments = ((side, forces[0]), (other_side, forces[1]))
            accepts = [judge_statistics.acceptance_probability(judge, label, arguments) for label in (0, 1)]
            strong_scores.append(sum(accepts if side == "accept" else [1 - p for p in accepts]) / 2)
        truth = sum(strong_scores) / 2
        assert does_interval_contain(result, "expected_score", truth, "prover0")
        assert does_interval_contain(result, "expected_score", 1 - truth, "prover1")
        assert judge_statistics.estimate_win_share(rows, 0).is_near(truth)
        assert metric(result, "expected_score", "prover0")["ci_low"] > 0.5
        bias, seat = metric(result, "position_bias"), metric(result, "seat_score", "prover0")
        if stances is None:
            assert (bias["value"], bias["reason"]) == (None, "seat and stance are one here: add stances: both")
            assert seat["ci_low"] > 0.5  # the judge tends to reject
        else:
            assert does_interval_contain(result, "position_bias", 0.0)
            assert does_interval_contain(result, "seat_score", 0.5, "prover0")


def test_both_stances_separate_persuasion_from_truth(tmp_path: Path, server: LoopbackServer) -> None:
    judge = JUDGES["keen"]
    path = judged_spec(tmp_path, server.base_url, "adp", "keen", ("strong",), labels=ALTERNATING_LABELS, stances="both")
    result = run_spec(path, tmp_path / "results")
    rows = table(result.path, "rollouts")
    for stance, side in enumerate(("reject", "accept")):
        for label in (0, 1):
            games = [row["decision"] == 1 for row in rows if (row["stance"], row["y"]) == (stance, label)]
            assert len(games) == SIZE // 2
            assert judge_statistics.estimate_share(games).is_near(
                judge_statistics.acceptance_probability(judge, label, [(side, PROVERS["strong"])])
            )
        accepted = (
            sum(judge_statistics.acceptance_probability(judge, label, [(side, PROVERS["strong"])]) for label in (0, 1))
            / 2
        )
        assert does_interval_contain(result, f"persuasion_{stance}", accepted if stance else 1 - accepted)


def test_planted_confidence_is_recorded_as_stated_and_from_logprobs(tmp_path: Path, server: LoopbackServer) -> None:
    judge = JUDGES["sure"]
    path = judged_spec(
        tmp_path, server.base_url, "solo_verifier", "sure", labels=ALTERNATING_LABELS,
        models={"sure": {"logprobs": True, "top_logprobs": 2}}, verdict={"confidence": "both"},
    )  # fmt: skip
    result = run_spec(path, tmp_path / "results")
    assert does_interval_contain(result, "sensitivity", judge.sensitivity)
    assert does_interval_contain(result, "criterion", judge.criterion)
    assert does_interval_contain(result, "balanced_accuracy", judge_statistics.acceptance_probability(judge, 1))
    squared = judge_statistics.expected_value(judge, lambda label, p: (label - p) ** 2)
    for kind in ("stated", "logprob"):
        assert does_interval_contain(result, f"brier_{kind}", squared)
        assert does_interval_contain(result, f"auroc_{kind}", judge_statistics.NORMAL.cdf(judge.sensitivity / sqrt(2)))
    rows = table(result.path, "rollouts")
    pairs_by_kind = judge_statistics.read_confidences(result.path)
    for kind, pairs in pairs_by_kind.items():
        assert [row[f"confidence_{kind}"] for row in rows] == pytest.approx([p for _, p in pairs])
    assert [len(pairs) for pairs in pairs_by_kind.values()] == [SIZE, SIZE]
    for (label, stated), (same_label, by_tokens) in zip(*pairs_by_kind.values(), strict=True):
        assert (label, stated) == (same_label, pytest.approx(by_tokens, abs=1e-4))
    pairs = pairs_by_kind["stated"]
    assert judge_statistics.estimate_brier(pairs).value == pytest.approx(metric(result, "brier_stated")["value"])
    excess = judge_statistics.estimate_mean(max(p, 1 - p) - ((p > 0.5) == label) for label, p in pairs)
    assert excess.contains(
        judge_statistics.expected_value(judge, lambda label, p: max(p, 1 - p) - ((p > 0.5) == label))
    )
    assert excess.interval[0] > 0


def test_judges_answer_the_same_in_another_process(tmp_path: Path, server: LoopbackServer) -> None:
    judges = {name: vars(judge) for name, judge in JUDGES.items()}
    messages_by_server = []
    with run_judge_server(seed=3, judges=judges, provers=PROVERS) as other_server:
        for index, judge_server in enumerate((server, other_server)):
            path = judged_spec(
                tmp_path / str(index), judge_server.base_url, "adp", "keen", ("weak",), labels=ALTERNATING_LABELS[:8]
            )
            rows = table(run_spec(path, tmp_path / f"results{index}").path, "completions")
            messages_by_server.append([row["raw_message"] for row in rows])
    assert messages_by_server[0] == messages_by_server[1]
