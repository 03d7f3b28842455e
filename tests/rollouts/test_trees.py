"""Trees of responses where a round is silent and where branches fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from runner.agents.agent import Agent, Observation
from runner.datasets.load import Datapoint
from runner.errors import ContextExceededError, RefusedError
from runner.protocols.game import Reply
from runner.protocols.protocol import Decision, Protocol
from runner.protocols.tree_shape import NodePath as Answers
from runner.protocols.tree_shape import TreeShape
from runner.rollouts.engine import Engine
from runner.rollouts.job import Job
from runner.rollouts.rollout import Rollout
from runner.rollouts.trees import TreeStatistics, build_tree, contrasts
from tests.support.games import protocol_of

PAUSED = """\
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
class Scripted:
    """An agent that is refused at some nodes; the verifier accepts by its first answer and rejects by others."""

    name: str
    shape: TreeShape
    refused: Sequence[Answers]

    async def respond(self, observation: Observation, complete: Any) -> Reply:
        del complete
        path = self.shape.path(observation.repeat)[: observation.round + 1]
        if path in self.refused:
            raise (RefusedError if observation.round else ContextExceededError)(f"refused at {path}")
        text = f"{self.name} {path}"
        if self.name == "prover":
            return Reply(text, {"main": text})
        return Reply(text, None, Decision.REJECT if path[-1] else Decision.ACCEPT)


def tree_of(folder: Path, *refused: Answers) -> tuple[Protocol, TreeShape, list[Rollout]]:
    """The branches of a tree of two answers a step, on a datapoint that is to be accepted."""
    protocol = protocol_of(folder, PAUSED)
    shape = TreeShape(2, 3)
    agents = {name: cast("Agent", Scripted(name, shape, refused)) for name in protocol.agent_names}

    async def unasked(_: Any) -> Any:
        raise AssertionError

    engine = Engine(
        protocol, agents, unasked, shape=shape, branch=lambda job, repeat: replace(job, repeat=repeat)
    )  # fmt: skip
    job = Job(0, "tree", Datapoint("p", 1, {"question": "q", "solution": "s"}), 0, 7)
    return protocol, shape, asyncio.run(engine.play(job))


def test_a_silent_round_has_one_answer_and_divides_nothing(tmp_path: Path) -> None:
    protocol, shape, branches = tree_of(tmp_path)
    root = build_tree(branches, shape)
    assert root is not None
    assert [shape.path(leaf.job.repeat) for leaf in root.leaves] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert [node.path for node in root.nodes()] == [
        (0,), (1,), (0, 0), (1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1),
    ]  # fmt: skip
    assert [(c.agent, c.node.path) for c in contrasts(root, protocol)] == [("verifier", (0, 0)), ("verifier", (1, 0))]


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ([(1, 0, 1)], [(0, 0, 0), (0, 0, 1), (1, 0, 0)]),
        ([(1,)], [(0, 0, 0), (0, 0, 1)]),
        ([(0,)], [(1, 0, 0), (1, 0, 1)]),
        ([(0, 0, 0), (1,)], [(0, 0, 1)]),
    ],
)
def test_a_branch_that_fails_is_left_out_and_its_siblings_are_not(
    tmp_path: Path, refused: list[Answers], left: list[Answers]
) -> None:
    protocol, shape, branches = tree_of(tmp_path, *refused)
    assert sum(branch.error is not None for branch in branches) == len(refused)
    root = build_tree(branches, shape)
    assert root is not None
    assert [shape.path(leaf.job.repeat) for leaf in root.leaves] == left
    both = {path[:2] for path in left if (*path[:2], 0) in left and (*path[:2], 1) in left}
    assert [contrast.node.path for contrast in contrasts(root, protocol)] == sorted(both)
    for node in root.nodes():
        under = [path for path in left if path[: len(node.path)] == node.path]
        assert node.expected_reward("verifier") == sum(1.0 if path[2] == 0 else -1.0 for path in under) / len(under)
    statistics = TreeStatistics(protocol, shape)
    statistics.add(root)
    statistics.original_statistics()


def test_a_tree_of_which_nothing_came_to_an_end_gives_nothing(tmp_path: Path) -> None:
    _, shape, branches = tree_of(tmp_path, (0,), (1,))
    assert [branch.outcome for branch in branches] == ["context_exceeded", "context_exceeded"]
    assert build_tree(branches, shape) is None
