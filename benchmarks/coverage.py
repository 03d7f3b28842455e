"""Intervals over groups of datapoints hold the truth as often as they say: 92.5 to 97.5 % of the time, for 95.

    python benchmarks/coverage.py [--times N] [--seed S]

N benchmarks of 40 programs each, a right and a wrong version of every one, judged a few times by a judge with a chance
of its own for each version; four situations, in which the difficulty is shared by the versions of a program or not, and
the judge leans to accept one program and to reject another, or not. The project's own `Metrics` counts the games, once
with `group_by` and once as if each version stood alone, which is what it did before there were groups.
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
SKILL, DIFFICULTY, LEANING = 1.0, 2.0, 3.0
"""On the scale of log odds: the mean, and the standard deviations of what differs between programs."""

LOW, HIGH = 0.925, 0.975
METRICS = ("accuracy", "precision", "decision")


@dataclass(frozen=True)
class Situation:
    """What the versions of a program have in common."""

    shared: bool
    leaning: bool

    def __str__(self) -> str:
        difficulty = "shared" if self.shared else "apart"
        return f"difficulty {difficulty}, bias {'varied' if self.leaning else 'none'}"

    def accepted(self, rng: np.random.Generator, programs: int) -> np.ndarray:
        """The chances that the wrong and the right version of each program are accepted."""
        ease = rng.normal(SKILL, DIFFICULTY, (programs, 1 if self.shared else 2))
        leaning = rng.normal(0, LEANING, (programs, 1)) if self.leaning else 0.0
        chances: np.ndarray = 1 / (1 + np.exp(-(ease * [-1, 1] + leaning)))
        return chances

    def truth(self, rng: np.random.Generator) -> dict[str, float]:
        """What each metric is over all programs there might be."""
        wrong, right = self.accepted(rng, 2_000_000).mean(axis=0)
        return {
            "accuracy": (right + 1 - wrong) / 2,
            "precision": right / (right + wrong),
            "decision": (right + wrong) / 2,
        }


def main() -> int:
    args = sample_arguments(__doc__, 1000)
    load_scipy()
    check, rows = SoftAssertions(), []
    for shared in (False, True):
        for leaning in (False, True):
            situation, rng = Situation(shared, leaning), np.random.default_rng([args.seed, shared, leaning])
            covered = coverage(situation, args.times, rng)
            rows.append((situation, covered))
            for metric in METRICS:
                share = covered[True, metric]
                check(LOW <= share <= HIGH, f"{situation}: {metric}, by group: {share:.1%}")
    print_table(rows)
    alone = [covered[False, "accuracy"] for _, covered in rows]
    check(min(alone) < LOW and max(alone) > HIGH, f"without groups: {min(alone):.1%} to {max(alone):.1%}")
    return check.exit_code()


def coverage(situation: Situation, repetitions: int, rng: np.random.Generator) -> dict[tuple[bool, str], float]:
    """How often the interval of each metric holds the truth, with groups and without."""
    truth, games = situation.truth(rng), Games()
    held = dict.fromkeys(((grouped, metric) for grouped in (True, False) for metric in METRICS), 0)
    for _ in range(repetitions):
        accepted = rng.random((REPEATS, PROGRAMS, 2)) < situation.accepted(rng, PROGRAMS)
        for grouped in (True, False):
            metrics = games.played(accepted, grouped=grouped)
            for row in metrics.estimates():
                if row.agent is None and row.metric in truth:
                    assert row.ci_low is not None
                    assert row.ci_high is not None
                    held[grouped, row.metric] += row.ci_low <= truth[row.metric] <= row.ci_high
    return {name: count / repetitions for name, count in held.items()}


class Games:
    """Every game that may come about, made once."""

    def __init__(self) -> None:
        self._protocol = load_protocol("solo_verifier")
        self._made = {
            (*at, grouped, decision): rollout
            for grouped in (True, False)
            for at, job in _jobs(grouped=grouped)
            for decision, rollout in enumerate(_decided(job))
        }

    def played(self, accepted: np.ndarray, *, grouped: bool) -> Metrics:
        """The metrics of games with these verdicts, by repeat, program and label."""
        metrics = Metrics(self._protocol)
        for (repeat, program, label), decision in np.ndenumerate(accepted):
            metrics.add(self._made[repeat, program, label, grouped, int(decision)])
        return metrics


def _jobs(*, grouped: bool) -> Iterator[tuple[tuple[int, int, int], Job]]:
    for repeat, program, label in np.ndindex(REPEATS, PROGRAMS, 2):
        name = f"{program}/{label}"
        point = Datapoint(name, label, {}, str(program)) if grouped else Datapoint(name, label, {})
        yield (repeat, program, label), Job(0, f"{name}/{repeat}", point, repeat, 0)


def _decided(job: Job) -> tuple[Rollout, Rollout]:
    """A game that ends in rejection, and one that ends in acceptance."""

    def ended(decision: int) -> Rollout:
        reward = {"verifier": 1.0 if decision == job.datapoint.label else -1.0}
        last = Round({"verifier": "."}, (), decision, reward, {}, {}, {"verifier": 1}, {"verifier": False})
        return Rollout(job, (last,), decision, Outcome.DECIDED, None, reward)

    return ended(0), ended(1)


def print_table(rows: list[tuple[Situation, dict[tuple[bool, str], float]]]) -> None:
    print(f"\nshare of 95 % intervals that hold the truth, {PROGRAMS} pairs, {REPEATS} rollouts each")
    print(f"{'':38}" + "".join(f"{metric:>20}" for metric in METRICS))
    print(f"{'':38}" + f"{'by group':>11}{'alone':>9}" * len(METRICS))
    for situation, covered in rows:
        shares = (f"{covered[True, metric]:>11.1%}{covered[False, metric]:>9.1%}" for metric in METRICS)
        print(f"{situation!s:38}" + "".join(shares))
    print()


if __name__ == "__main__":
    sys.exit(main())
