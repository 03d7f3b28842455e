"""Check that real runs recover the parameters of simulated judges, such as sensitivity, position bias and calibration.

    python benchmarks/judges.py [--times K] [--seed S]

Runs of K claims are played against a server whose judges have known parameters. Estimates from a run's tables, by
formulas that are independent of the project's, must be within 3 standard errors of theory. At least 90 % of the 95 %
intervals of the run's metrics must contain the planted value. Two judges are ranked wrongly by accuracy and rightly by
d'.
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

SOLO_JUDGES = {
    "blind": Judge(),
    "fair": Judge(sensitivity=1.0),
    "keen": Judge(sensitivity=2.0, criterion=-0.4),
    "strict": Judge(sensitivity=0.8, criterion=1.4),
    "lenient": Judge(sensitivity=1.5, criterion=-0.7),
}
FOLLOWERS = {
    f"follows{share}": Judge(sensitivity=1.2, criterion=1.0, follows_first=share / 100) for share in (0, 20, 40)
}
"""Judges that follow the first seat. They also tend to reject, which must not be mistaken for position bias."""
STATING_JUDGES = {
    f"tells{percent}": Judge(sensitivity=1.5, sharpness=percent / 100, states=True) for percent in (50, 100, 250)
}
JUDGES = {**SOLO_JUDGES, **FOLLOWERS, **STATING_JUDGES}
PROVERS = {"strong": 0.8, "weak": 0.2}
MAX_STDERRS = 3.0
"""The most standard errors that an estimate may be off. One check in 370 would fail by chance; the seed is fixed."""


class JudgeChecks:
    """Checks of judges on one server; `check_coverage` comes last, since the others collect its intervals."""

    def __init__(self, check: SoftAssertions, server: LoopbackServer, folder: Path, size: int) -> None:
        self.check, self.server, self.folder, self.size = check, server, folder, size
        self.balanced_labels = [number % 2 for number in range(size)]
        self.is_covered: list[bool] = []
        """True for each interval that contains the truth, else False."""

    def check_estimate(self, name: str, estimate: Estimate, truth: float) -> None:
        deviation = (estimate.value - truth) / estimate.stderr
        text = f"{name}: {truth:+.3f} planted, {estimate.value:+.3f} +- {estimate.stderr:.3f} found"
        self.check(abs(deviation) <= MAX_STDERRS, f"{text} ({deviation:+.1f} errors)")

    def run(
        self, protocol: str, judge: str, provers: Sequence[str] = (), labels: Sequence[int] = (), **changes: Any
    ) -> FinishedRun:
        """Play a run in a folder named by its arguments."""
        design = "-".join(name for name in ("seats", "stances") if name in changes)
        run_folder = self.folder / f"{protocol}-{judge}-{'-'.join(provers)}-{len(labels)}-{design}"
        path = judged_spec(
            run_folder, self.server.base_url, protocol, judge, provers, labels=labels or self.balanced_labels, **changes
        )  # fmt: skip
        return run_spec(path, run_folder / "results")

    def record_coverage(self, result: FinishedRun, agent: str | None = None, **truths: float) -> None:
        """Record which of a run's intervals contain the truth; a metric without an interval must have a reason."""
        for name, truth in truths.items():
            row = metric(result, name, agent)
            if row["ci_low"] is None or row["ci_high"] is None:
                self.check(row["reason"], f"{name} of {result.run_id} has no interval: {row['reason']}")
            else:
                self.is_covered.append(row["ci_low"] <= truth <= row["ci_high"])

    def check_coverage(self) -> None:
        covered_share = sum(self.is_covered) / len(self.is_covered)
        self.check(
            covered_share >= 0.9,
            f"{sum(self.is_covered)} of {len(self.is_covered)} intervals hold the truth ({covered_share:.0%})",
        )

    def check_solo_judges(self) -> None:
        """Check judges that hear no prover."""
        for name, judge in SOLO_JUDGES.items():
            result = self.run("solo_verifier", name)
            right, wrong = (
                judge_statistics.acceptance_probability(judge, 1),
                judge_statistics.acceptance_probability(judge, 0),
            )
            self.record_coverage(
                result, sensitivity=judge.sensitivity, criterion=judge.criterion, completeness=right,
                soundness_error=wrong, balanced_accuracy=(right + 1 - wrong) / 2,
            )  # fmt: skip
            sensitivity, criterion = judge_statistics.estimate_signal_detection(table(result.path, "rollouts"))
            self.check_estimate(f"{name}: d'", sensitivity, judge.sensitivity)
            self.check_estimate(f"{name}: c", criterion, judge.criterion)

    def check_ranking(self) -> None:
        """Check two judges on claims that are wrong nine times in ten."""
        labels = [int(number % 10 == 0) for number in range(self.size)]
        accuracy, sensitivity = {}, {}
        for name in ("keen", "strict"):
            rows = table(self.run("solo_verifier", name, labels=labels).path, "rollouts")
            accuracy[name] = sum(row["correct"] for row in rows) / len(rows)
            sensitivity[name] = judge_statistics.estimate_signal_detection(rows)[0].value
        self.check(
            accuracy["strict"] > accuracy["keen"], f"accuracy puts the worse judge first: {_format_values(accuracy)}"
        )
        self.check(
            sensitivity["keen"] > sensitivity["strict"],
            f"d' puts the better judge first: {_format_values(sensitivity)}",
        )

    def check_position_bias(self) -> None:
        """Check debates of equal provers: the lead of the first seat is the share of verdicts that follow it."""
        for name, judge in FOLLOWERS.items():
            result = self.run("debate", name, ("weak", "weak"), stances="both")
            lead = judge_statistics.estimate_first_seat_lead(table(result.path, "rollouts"))
            self.record_coverage(result, position_bias=judge.follows_first)
            self.check_estimate(f"{name}: position bias", lead, judge.follows_first)

    def check_players(self) -> None:
        """Check debates of a strong and a weak prover who exchange their seats, and then also their stances."""
        for name, judge in FOLLOWERS.items():
            result = self.run("debate", name, ("strong", "weak"), seats="swap")
            self.check_scores(result, f"{name}, seats", _strong_win_share(judge, "reject"))
            row = metric(result, "position_bias")
            self.check(row["value"] is None, f"{name}, seats: no position bias: {row['reason']}")
            result = self.run("debate", name, ("strong", "weak"), seats="swap", stances="both")
            both = sum(_strong_win_share(judge, first) for first in SIGN) / 2
            self.check_scores(result, f"{name}, seats and stances", both)
            lead = judge_statistics.estimate_first_seat_lead(table(result.path, "rollouts"))
            self.record_coverage(result, position_bias=judge.follows_first)
            self.check_estimate(f"{name}, seats and stances: position bias", lead, judge.follows_first)

    def check_scores(self, result: FinishedRun, name: str, strong: float) -> None:
        self.record_coverage(result, "prover0", expected_score=strong)
        self.record_coverage(result, "prover1", expected_score=1 - strong)
        share = judge_statistics.estimate_win_share(table(result.path, "rollouts"), 0)
        self.check_estimate(f"{name}: expected score of strong", share, strong)

    def check_stances(self) -> None:
        """Check the persuasion of single provers with each stance."""
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
                self.record_coverage(result, **{f"persuasion_{stance}": mean})
                self.check_estimate(f"{prover} for {side}: persuasion", persuaded, mean)

    def check_confidence(self) -> None:
        """Check judges' confidence in their own verdicts, stated and by log-probabilities."""
        for name, judge in STATING_JUDGES.items():
            models = {name: {"logprobs": True, "top_logprobs": 2}}
            result = self.run("solo_verifier", name, models=models, verdict={"confidence": "both"})
            confidences = judge_statistics.read_confidences(result.path)
            difference = max(abs(a[1] - b[1]) for a, b in zip(*confidences.values(), strict=True))
            self.check(difference < 1e-4, f"{name}: stated and by tokens differ by {difference:.0e} at most")
            pairs = confidences["stated"]
            brier = judge_statistics.expected_value(judge, lambda y, p: (y - p) ** 2)
            area = judge_statistics.NORMAL.cdf(judge.sensitivity / sqrt(2))
            for kind in confidences:
                self.record_coverage(result, **{f"brier_{kind}": brier, f"auroc_{kind}": area})
            self.check_estimate(f"{name}: Brier", judge_statistics.estimate_brier(pairs), brier)
            excess = judge_statistics.estimate_mean(_confidence_excess(y, p) for y, p in pairs)
            self.check_estimate(
                f"{name}: confidence above accuracy", excess, judge_statistics.expected_value(judge, _confidence_excess)
            )
            wins = judge_statistics.estimate_mean(
                sum((p > q) + (p == q) / 2 for y, q in pairs if not y) / self.balanced_labels.count(0)
                for z, p in pairs
                if z
            )
            # Both labels are sampled, with equal variance: the variance is twice that of one.
            self.check_estimate(f"{name}: AUROC", Estimate(wins.value, sqrt(2) * wins.stderr), area)


def _strong_win_share(judge: Judge, first: str) -> float:
    """Return how often the strong prover wins, averaged over its seats, if the first seat argues for this verdict."""
    second = next(side for side in SIGN if side != first)
    win_sum = 0.0
    for label in (0, 1):
        acceptance_first = judge_statistics.acceptance_probability(
            judge, label, ((first, PROVERS["strong"]), (second, PROVERS["weak"]))
        )
        acceptance_second = judge_statistics.acceptance_probability(
            judge, label, ((first, PROVERS["weak"]), (second, PROVERS["strong"]))
        )
        win_sum += acceptance_first if first == "accept" else 1 - acceptance_first
        win_sum += acceptance_second if second == "accept" else 1 - acceptance_second
    return win_sum / 4


def _confidence_excess(label: int, p: float) -> float:
    return max(p, 1 - p) - ((p > 0.5) == label)


def _format_values(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def main() -> int:
    args = sample_arguments(__doc__, 1000)
    check = SoftAssertions()
    judges = {name: vars(judge) for name, judge in JUDGES.items()}
    with run_judge_server(seed=args.seed, judges=judges, provers=PROVERS) as server, temporary_folder() as folder:
        checks = JudgeChecks(check, server, folder, args.times)
        checks.check_solo_judges()
        checks.check_ranking()
        checks.check_position_bias()
        checks.check_players()
        checks.check_stances()
        checks.check_confidence()
        checks.check_coverage()
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
