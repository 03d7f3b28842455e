"""Check that 95 % intervals over groups of datapoints contain the truth in 92.5 to 97.5 % of simulated benchmarks.

    python benchmarks/coverage.py [--times N] [--seed S]

N benchmarks are simulated in four situations. Each has a right and a wrong version of 40 programs, judged twice, with a
chance of acceptance for each version. The two versions of a program are equally difficult or not, and the judge is
biased for or against each program or not. `Metrics` counts the games, once with `group_by` and once without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from common import sample_arguments

from runner.game.protocols.loader import load_protocol
from runner.game.protocols.rounds import Round
from runner.results.metric_computation import Metrics
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.spec.datasets.loader import Datapoint
from runner.statistics.intervals import load_scipy
from tests.support.soft_assertions import SoftAssertions

PROGRAMS, REPEATS = 40, 2
SKILL, DIFFICULTY, BIAS_DEVIATION = 1.0, 2.0, 3.0
"""In log odds: the mean skill, and the standard deviations of the programs' difficulty and of the bias towards them."""

LOW, HIGH = 0.925, 0.975
METRICS = ("accuracy", "precision", "decision")


@dataclass(frozen=True)
class Situation:
    """The common properties of the versions of a program."""

    has_shared_difficulty: bool
    has_bias: bool

    def __str__(self) -> str:
        difficulty = "shared" if self.has_shared_difficulty else "apart"
        return f"difficulty {difficulty}, bias {'varied' if self.has_bias else 'none'}"

    def draw_acceptance_chances(self, rng: np.random.Generator, programs: int) -> np.ndarray:
        """Draw the chances that the wrong and the right version of each program are accepted."""
        ease = rng.normal(SKILL, DIFFICULTY, (programs, 1 if self.has_shared_difficulty else 2))
        bias = rng.normal(0, BIAS_DEVIATION, (programs, 1)) if self.has_bias else 0.0
        chances: np.ndarray = 1 / (1 + np.exp(-(ease * [-1, 1] + bias)))
        return chances

    def true_values(self, rng: np.random.Generator) -> dict[str, float]:
        """Return the true value of each metric, over all possible programs."""
        wrong, right = self.draw_acceptance_chances(rng, 2_000_000).mean(axis=0)
        return {
            "accuracy": (right + 1 - wrong) / 2,
            "precision": right / (right + wrong),
            "decision": (right + wrong) / 2,
        }


def main() -> int:
    args = sample_arguments(__doc__, 1000)
    load_scipy()
    check, rows = SoftAssertions(), []
    for is_shared in (False, True):
        for is_biased in (False, True):
            situation, rng = Situation(is_shared, is_biased), np.random.default_rng([args.seed, is_shared, is_biased])
            coverages = measure_coverage(situation, args.times, rng)
            rows.append((situation, coverages))
            for metric in METRICS:
                share = coverages[True, metric]
                check(LOW <= share <= HIGH, f"{situation}: {metric}, by group: {share:.1%}")
    print_table(rows)
    ungrouped = [coverages[False, "accuracy"] for _, coverages in rows]
    check(
        min(ungrouped) < LOW and max(ungrouped) > HIGH, f"without groups: {min(ungrouped):.1%} to {max(ungrouped):.1%}"
    )
    return check.exit_code()


def measure_coverage(situation: Situation, repetitions: int, rng: np.random.Generator) -> dict[tuple[bool, str], float]:
    """Return the share of intervals that contain the truth, by metric, with groups and without."""
    true_values, games = situation.true_values(rng), PossibleGames()
    covered = dict.fromkeys(((grouped, metric) for grouped in (True, False) for metric in METRICS), 0)
    for _ in range(repetitions):
        accepted = rng.random((REPEATS, PROGRAMS, 2)) < situation.draw_acceptance_chances(rng, PROGRAMS)
        for grouped in (True, False):
            metrics = games.metrics(accepted, grouped=grouped)
            for row in metrics.estimates():
                if row.agent is None and row.metric in true_values:
                    assert row.ci_low is not None
                    assert row.ci_high is not None
                    covered[grouped, row.metric] += row.ci_low <= true_values[row.metric] <= row.ci_high
    return {name: count / repetitions for name, count in covered.items()}


class PossibleGames:
    """A cache of all possible games, each created once."""

    def __init__(self) -> None:
        self._protocol = load_protocol("solo_verifier")
        self._games = {
            (*key, grouped, decision): rollout
            for grouped in (True, False)
            for key, job in _create_jobs(grouped=grouped)
            for decision, rollout in enumerate(_create_both_games(job))
        }

    def metrics(self, accepted: np.ndarray, *, grouped: bool) -> Metrics:
        """Return the metrics of games with these verdicts, which are by repeat, program and label."""
        metrics = Metrics(self._protocol)
        for (repeat, program, label), decision in np.ndenumerate(accepted):
            metrics.add(self._games[repeat, program, label, grouped, int(decision)])
        return metrics


def _create_jobs(*, grouped: bool) -> Iterator[tuple[tuple[int, int, int], Job]]:
    for repeat, program, label in np.ndindex(REPEATS, PROGRAMS, 2):
        name = f"{program}/{label}"
        point = Datapoint(name, label, {}, str(program)) if grouped else Datapoint(name, label, {})
        yield (repeat, program, label), Job(0, f"{name}/{repeat}", point, repeat, 0)


def _create_both_games(job: Job) -> tuple[Rollout, Rollout]:
    """Return a game that ends in rejection, and one that ends in acceptance."""

    def game_with(decision: int) -> Rollout:
        reward = {"verifier": 1.0 if decision == job.datapoint.label else -1.0}
        last = Round({"verifier": "."}, (), decision, reward, {}, {}, {"verifier": 1}, {"verifier": False})
        return Rollout(job, (last,), decision, Outcome.DECIDED, None, reward)

    return game_with(0), game_with(1)


def print_table(rows: list[tuple[Situation, dict[tuple[bool, str], float]]]) -> None:
    print(f"\nshare of 95 % intervals that contain the truth, {PROGRAMS} pairs, {REPEATS} rollouts each")
    print(f"{'':38}" + "".join(f"{metric:>20}" for metric in METRICS))
    print(f"{'':38}" + f"{'by group':>11}{'alone':>9}" * len(METRICS))
    for situation, coverages in rows:
        shares = (f"{coverages[True, metric]:>11.1%}{coverages[False, metric]:>9.1%}" for metric in METRICS)
        print(f"{situation!s:38}" + "".join(shares))
    print()


if __name__ == "__main__":
    sys.exit(main())
