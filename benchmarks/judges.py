"""Planted judges are recovered from real runs: sensitivity, criterion, position bias, persuasion, calibration.

    python benchmarks/judges.py [--times K] [--seed S]

Runs of K claims against a server in a process of its own, whose judges see, lean and know themselves as they are told
to. What a run's tables say is held against theory, by formulas that are not the project's: each within 3 standard
errors. The run's own metrics: of their 95 % intervals at least 90 % hold what was planted. And two judges that accuracy
ranks wrongly, and d' rightly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from common import sample_arguments, temporary_folder

from runner.runs.finished.result import FinishedRun
from tests.support import judge_statistics
from tests.support.judge_statistics import Estimate
from tests.support.runs import metric, run_spec, table
from tests.support.servers.client import LoopbackServer
from tests.support.servers.judges import SIGN, Judge
from tests.support.servers.judges_client import judged_spec, run_judge_server
from tests.support.soft_assertions import SoftAssertions

ALONE = {
    "blind": Judge(),
    "fair": Judge(sensitivity=1.0),
    "keen": Judge(sensitivity=2.0, criterion=-0.4),
    "strict": Judge(sensitivity=0.8, criterion=1.4),
    "lenient": Judge(sensitivity=1.5, criterion=-0.7),
}
FOLLOWERS = {
    f"follows{share}": Judge(sensitivity=1.2, criterion=1.0, follows_first=share / 100) for share in (0, 20, 40)
}
"""They rather reject, too: that is no position bias."""
TELLERS = {
    f"tells{percent}": Judge(sensitivity=1.5, sharpness=percent / 100, states=True) for percent in (50, 100, 250)
}
JUDGES = {**ALONE, **FOLLOWERS, **TELLERS}
PROVERS = {"strong": 0.8, "weak": 0.2}
ERRORS = 3.0
"""So many standard errors an estimate may be off: one claim of 370 would fail by chance, and the seed is fixed."""


class Proof:
    """The claims, and the server that they are made of."""

    def __init__(self, check: SoftAssertions, server: LoopbackServer, at: Path, size: int) -> None:
        self.check, self.server, self.at, self.size = check, server, at, size
        self.evenly = [number % 2 for number in range(size)]
        self.held: list[bool] = []
        """Of each metric with an interval: whether that holds the truth."""

    def near(self, name: str, found: Estimate, truth: float) -> None:
        off = (found.value - truth) / found.stderr
        told = f"{name}: {truth:+.3f} planted, {found.value:+.3f} +- {found.stderr:.3f} found"
        self.check(abs(off) <= ERRORS, f"{told} ({off:+.1f} errors)")

    def run(
        self, protocol: str, judge: str, provers: Sequence[str] = (), labels: Sequence[int] = (), **changes: Any
    ) -> FinishedRun:
        """A run of its own for each set of arguments."""
        design = "-".join(name for name in ("seats", "stances") if name in changes)
        at = self.at / f"{protocol}-{judge}-{'-'.join(provers)}-{len(labels)}-{design}"
        path = judged_spec(
            at, self.server.base_url, protocol, judge, provers, labels=labels or self.evenly, **changes
        )  # fmt: skip
        return run_spec(path, at / "results")

    def held_by(self, result: FinishedRun, agent: str | None = None, **truths: float) -> None:
        """Count which of a run's intervals hold the truth; one that it does not give has a reason."""
        for name, truth in truths.items():
            row = metric(result, name, agent)
            if row["ci_low"] is None or row["ci_high"] is None:
                self.check(row["reason"], f"{name} of {result.run_id} has no interval: {row['reason']}")
            else:
                self.held.append(row["ci_low"] <= truth <= row["ci_high"])

    def intervals(self) -> None:
        share = sum(self.held) / len(self.held)
        self.check(share >= 0.9, f"{sum(self.held)} of {len(self.held)} intervals hold the truth ({share:.0%})")

    def alone(self) -> None:
        """Judges that hear nobody."""
        for name, judge in ALONE.items():
            result = self.run("solo_verifier", name)
            right, wrong = (
                judge_statistics.acceptance_probability(judge, 1),
                judge_statistics.acceptance_probability(judge, 0),
            )
            self.held_by(
                result, sensitivity=judge.sensitivity, criterion=judge.criterion, completeness=right,
                soundness_error=wrong, balanced_accuracy=(right + 1 - wrong) / 2,
            )  # fmt: skip
            sensitivity, criterion = judge_statistics.estimate_signal_detection(table(result.path, "rollouts"))
            self.near(f"{name}: d'", sensitivity, judge.sensitivity)
            self.near(f"{name}: c", criterion, judge.criterion)

    def wrongly_ranked(self) -> None:
        """Nine claims of ten are wrong."""
        labels = [int(number % 10 == 0) for number in range(self.size)]
        accuracy, sensitivity = {}, {}
        for name in ("keen", "strict"):
            rows = table(self.run("solo_verifier", name, labels=labels).path, "rollouts")
            accuracy[name] = sum(row["correct"] for row in rows) / len(rows)
            sensitivity[name] = judge_statistics.estimate_signal_detection(rows)[0].value
        self.check(accuracy["strict"] > accuracy["keen"], f"accuracy puts the worse judge first: {_told(accuracy)}")
        self.check(sensitivity["keen"] > sensitivity["strict"], f"d' puts the better judge first: {_told(sensitivity)}")

    def position(self) -> None:
        """A debate of equals, whose first seat argues for either verdict: its lead is what follows it."""
        for name, judge in FOLLOWERS.items():
            result = self.run("debate", name, ("weak", "weak"), stances="both")
            lead = judge_statistics.estimate_first_seat_lead(table(result.path, "rollouts"))
            self.held_by(result, position_bias=judge.follows_first)
            self.near(f"{name}: position bias", lead, judge.follows_first)

    def players(self) -> None:
        """A debate of a strong and a weak prover, who exchange their seats; then their stances, too."""
        for name, judge in FOLLOWERS.items():
            result = self.run("debate", name, ("strong", "weak"), seats="swap")
            self.scores(result, f"{name}, seats", _won_by_strong(judge, "reject"))
            row = metric(result, "position_bias")
            self.check(row["value"] is None, f"{name}, seats: no position bias: {row['reason']}")
            result = self.run("debate", name, ("strong", "weak"), seats="swap", stances="both")
            both = sum(_won_by_strong(judge, first) for first in SIGN) / 2
            self.scores(result, f"{name}, seats and stances", both)
            lead = judge_statistics.estimate_first_seat_lead(table(result.path, "rollouts"))
            self.held_by(result, position_bias=judge.follows_first)
            self.near(f"{name}, seats and stances: position bias", lead, judge.follows_first)

    def scores(self, result: FinishedRun, name: str, strong: float) -> None:
        self.held_by(result, "prover0", expected_score=strong)
        self.held_by(result, "prover1", expected_score=1 - strong)
        found = judge_statistics.estimate_win_share(table(result.path, "rollouts"), 0)
        self.near(f"{name}: expected score of strong", found, strong)

    def stances(self) -> None:
        """One prover, with each stance."""
        for prover, force in PROVERS.items():
            result = self.run("adp", "fair", (prover,), stances="both")
            rows = table(result.path, "rollouts")
            for stance, side in enumerate(("reject", "accept")):
                truth = [
                    judge_statistics.acceptance_probability(JUDGES["fair"], label, [(side, force)]) for label in (0, 1)
                ]
                persuaded = judge_statistics.estimate_share(
                    row["decision"] == stance for row in rows if row["stance"] == stance
                )
                mean = sum(truth) / 2 if stance else 1 - sum(truth) / 2
                self.held_by(result, **{f"persuasion_{stance}": mean})
                self.near(f"{prover} for {side}: persuasion", persuaded, mean)

    def confidence(self) -> None:
        """What judges say of their own verdicts, in words and by their tokens."""
        for name, judge in TELLERS.items():
            models = {name: {"logprobs": True, "top_logprobs": 2}}
            result = self.run("solo_verifier", name, models=models, verdict={"confidence": "both"})
            told = judge_statistics.read_confidences(result.path)
            differ = max(abs(a[1] - b[1]) for a, b in zip(*told.values(), strict=True))
            self.check(differ < 1e-4, f"{name}: stated and by tokens differ by {differ:.0e} at most")
            pairs = told["stated"]
            brier = judge_statistics.expected_value(judge, lambda y, p: (y - p) ** 2)
            area = judge_statistics.NORMAL.cdf(judge.sensitivity / sqrt(2))
            for kind in told:
                self.held_by(result, **{f"brier_{kind}": brier, f"auroc_{kind}": area})
            self.near(f"{name}: Brier", judge_statistics.estimate_brier(pairs), brier)
            excess = judge_statistics.estimate_mean(_excess(y, p) for y, p in pairs)
            self.near(f"{name}: confidence above accuracy", excess, judge_statistics.expected_value(judge, _excess))
            wins = judge_statistics.estimate_mean(
                sum((p > q) + (p == q) / 2 for y, q in pairs if not y) / self.evenly.count(0) for z, p in pairs if z
            )
            # Both labels are sampled: twice the variance of one, as both are alike.
            self.near(f"{name}: AUROC", Estimate(wins.value, sqrt(2) * wins.stderr), area)


def _won_by_strong(judge: Judge, first: str) -> float:
    """How often the strong prover wins, in either seat, where the first seat argues for this verdict."""
    second = next(side for side in SIGN if side != first)
    won = 0.0
    for label in (0, 1):
        sits_first = judge_statistics.acceptance_probability(
            judge, label, ((first, PROVERS["strong"]), (second, PROVERS["weak"]))
        )
        sits_second = judge_statistics.acceptance_probability(
            judge, label, ((first, PROVERS["weak"]), (second, PROVERS["strong"]))
        )
        won += sits_first if first == "accept" else 1 - sits_first
        won += sits_second if second == "accept" else 1 - sits_second
    return won / 4


def _excess(label: int, p: float) -> float:
    return max(p, 1 - p) - ((p > 0.5) == label)


def _told(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def main() -> int:
    args = sample_arguments(__doc__, 1000)
    check = SoftAssertions()
    judges = {name: vars(judge) for name, judge in JUDGES.items()}
    with run_judge_server(seed=args.seed, judges=judges, provers=PROVERS) as server, temporary_folder() as at:
        proof = Proof(check, server, at, args.times)
        proof.alone()
        proof.wrongly_ranked()
        proof.position()
        proof.players()
        proof.stances()
        proof.confidence()
        proof.intervals()
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
