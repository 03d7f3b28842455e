"""Trees of responses with silent rounds and failed branches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean, pstdev
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.base.errors import ContextExceededError, RefusedError
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import Reply, Round
from runner.game.protocols.tree_shape import NodePath as AnswerPath
from runner.game.protocols.tree_shape import TreeShape
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.engine import Engine
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.rollouts.trees import TreeStatistics, build_tree, contrasts
from runner.spec.datasets.loader import Datapoint
from tests.support.games import load_protocol_text

PROTOCOL_WITH_SILENT_STEP = """\
name: paused
agents:
  prover: {role: prover, human_name: Expert}
  verifier: {role: verifier, human_name: Verifier}
channels:
  main: {members: [prover, verifier]}
cycle:
  - speak: {prover: [main]}
  - speak: {}
  - speak: {verifier: [main]}
parameters: {max_message_rounds: 3, verifier_first: false}
"""


@dataclass(frozen=True)
class ScriptedAgent:
    """An agent that is refused at some nodes. The verifier's first answer accepts, and its other answers reject."""

    name: str
    shape: TreeShape
    refused: Sequence[AnswerPath]
    hyper_params = SimpleNamespace(verdict=VerdictSettings())

    async def respond(self, observation: Observation, complete: Any, wait_for_replies: Any) -> Reply:
        del complete, wait_for_replies
        path = self.shape.path(observation.repeat)[: observation.round + 1]
        if path in self.refused:
            raise (RefusedError if observation.round else ContextExceededError)(f"refused at {path}")
        text = f"{self.name} {path}"
        if self.name == "prover":
            return Reply(text, {"main": text})
        return Reply(text, None, Decision.REJECT if path[-1] else Decision.ACCEPT)


def play_tree(folder: Path, *refused: AnswerPath) -> tuple[Protocol, TreeShape, list[Rollout]]:
    """Play a tree with two answers for each step, on a datapoint with label 1."""
    protocol = load_protocol_text(folder, PROTOCOL_WITH_SILENT_STEP)
    shape = TreeShape(2, 3)
    agents = {name: cast("Agent", ScriptedAgent(name, shape, refused)) for name in protocol.agent_names}

    async def unasked(_: Any) -> Any:
        raise AssertionError

    engine = Engine(
        protocol, agents, unasked, tree_shape=shape, job_of_branch=lambda job, repeat: replace(job, repeat=repeat)
    )  # fmt: skip
    job = Job(0, "tree", Datapoint("p", 1, {"question": "q", "solution": "s"}), 0, 7)
    return protocol, shape, asyncio.run(engine.play(job))


def test_silent_round_does_not_branch(tmp_path: Path) -> None:
    protocol, shape, branches = play_tree(tmp_path)
    root = build_tree(branches, shape)
    assert root is not None
    assert [shape.path(leaf.job.repeat) for leaf in root.leaves] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert [node.path for node in root.nodes()] == [
        (0,), (1,), (0, 0), (1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1),
    ]  # fmt: skip
    assert [(c.agent, c.node.path) for c in contrasts(root, protocol)] == [("verifier", (0, 0)), ("verifier", (1, 0))]


@pytest.mark.parametrize(
    ("refused", "remaining"),
    [
        ([(1, 0, 1)], [(0, 0, 0), (0, 0, 1), (1, 0, 0)]),
        ([(1,)], [(0, 0, 0), (0, 0, 1)]),
        ([(0,)], [(1, 0, 0), (1, 0, 1)]),
        ([(0, 0, 0), (1,)], [(0, 0, 1)]),
    ],
)
def test_failed_branch_is_omitted_and_its_siblings_remain(
    tmp_path: Path, refused: list[AnswerPath], remaining: list[AnswerPath]
) -> None:
    protocol, shape, branches = play_tree(tmp_path, *refused)
    assert sum(branch.error is not None for branch in branches) == len(refused)
    root = build_tree(branches, shape)
    assert root is not None
    assert [shape.path(leaf.job.repeat) for leaf in root.leaves] == remaining
    complete_pairs = {path[:2] for path in remaining if (*path[:2], 0) in remaining and (*path[:2], 1) in remaining}
    assert [contrast.node.path for contrast in contrasts(root, protocol)] == sorted(complete_pairs)
    for node in root.nodes():
        remaining_below = [path for path in remaining if path[: len(node.path)] == node.path]
        assert node.expected_reward("verifier") == sum(1.0 if path[2] == 0 else -1.0 for path in remaining_below) / len(
            remaining_below
        )
    statistics = TreeStatistics(protocol, shape)
    statistics.add(root)
    statistics.original_statistics()


def test_tree_without_finished_branches_is_none(tmp_path: Path) -> None:
    _, shape, branches = play_tree(tmp_path, (0,), (1,))
    assert [branch.outcome for branch in branches] == ["context_exceeded", "context_exceeded"]
    assert build_tree(branches, shape) is None


TENTHS_REWARDS = {"verifier_reward": 1.5, "verifier_incorrect_penalty": 0.1, "prover_reward": 1.6}
MIDPOINT = Fraction(8, 10)
"""The midpoint of both agents' rewards. As a float, 0.7 + 0.1 is below it."""


def random_branches(protocol: Protocol, shape: TreeShape, chance: random.Random) -> list[Rollout]:
    """Return branches of random lengths. Rewards are multiples of 0.1, and many sums equal the midpoint."""

    def grow(path: AnswerPath, rounds: tuple[Round, ...]) -> Iterator[Rollout]:
        if len(path) == shape.rounds or (path and chance.random() < 0.3):
            job = Job(0, "tree", Datapoint("p", 1, {}), shape.repeat(0, path), 7)
            yield Rollout(job, rounds, 1, Outcome.DECIDED, 1, {})
            return
        for answer in range(shape.responses):
            rewards = {agent: chance.choice((-1, 1, 1, 7, 8)) / 10 for agent in protocol.agent_names}
            round_ = Round(raw=dict.fromkeys(protocol.agent_names, "text"), rewards=rewards)
            yield from grow((*path, answer), (*rounds, round_))

    return list(grow((), ()))


def compute_exact_rows(
    branches: list[Rollout], shape: TreeShape, agent: str
) -> list[list[tuple[Fraction, Fraction, Fraction]]]:
    """Return rows of value, reached midpoint and differing children of the nodes and ended branches of each round."""

    def exact_value(path: AnswerPath) -> Fraction:
        branches_below = [
            b for b in branches if len(b.rounds) >= len(path) and shape.path(b.job.repeat)[: len(path)] == path
        ]
        tenths = [round(10 * round_.rewards[agent]) for b in branches_below for round_ in b.rounds[len(path) - 1 :]]
        return Fraction(sum(tenths), 10 * len(branches_below))

    levels = []
    for depth in range(1, shape.rounds + 1):
        nodes = {shape.path(b.job.repeat)[:depth] for b in branches if len(b.rounds) >= depth}
        child_nodes = {shape.path(b.job.repeat)[: depth + 1] for b in branches if len(b.rounds) > depth}
        rows = [
            (
                exact_value(node), Fraction(exact_value(node) >= MIDPOINT),
                Fraction(len({exact_value(child) >= MIDPOINT for child in child_nodes if child[:depth] == node}) == 2),
            )
            for node in nodes
        ]  # fmt: skip
        levels.append(
            [*rows, *[(Fraction(0), Fraction(0), Fraction(0))] * sum(len(b.rounds) < depth for b in branches)]
        )
    return levels


@pytest.mark.parametrize("responses", [2, 3])
def test_tree_statistics_match_exact_fractions(responses: int) -> None:
    """Fractions have no rounding errors, so that ties are exact."""
    protocol = load_protocol("nip", {**TENTHS_REWARDS, "max_message_rounds": 4})
    shape, chance = TreeShape(responses, 4), random.Random(responses)
    forest = [random_branches(protocol, shape, chance) for _ in range(4)]
    statistics = TreeStatistics(protocol, shape)
    for branches in forest:
        root = build_tree(branches, shape)
        assert root is not None
        statistics.add(root)
    statistics_by_name: dict[str, Any] = statistics.original_statistics()
    for agent in protocol.agent_names:
        trees = [compute_exact_rows(branches, shape, agent) for branches in forest]
        values = [row[0] for tree in trees for level in tree for row in level]
        assert values.count(MIDPOINT) > 3
        for index, name in enumerate(TreeStatistics.NAMES):
            means = [[fmean(row[index] for row in level) for level in tree] for tree in trees]
            flat = [mean for tree in means for mean in tree]
            assert statistics_by_name[f"{agent}.mean_{name}"] == pytest.approx(fmean(flat))
            assert statistics_by_name[f"{agent}.std_{name}"] == pytest.approx(pstdev(flat))
            by_round = list(zip(*means, strict=True))
            assert statistics_by_name[f"mean_{name}_by_round"][agent] == pytest.approx(list(map(fmean, by_round)))
            assert statistics_by_name[f"std_{name}_by_round"][agent] == pytest.approx(
                list(map(pstdev, by_round)), abs=1e-12
            )
