"""Trees of responses (MALT, Motwani et al. 2024): the branches of a datapoint's tree, and the value of each step.

In each round, several answers are requested, and the game continues after each of them. A branch is a normal rollout,
whose `repeat` is its index among all branches that the tree can have. A node is the state after an answer. Its path
has, for each round so far, the index of the answer. A silent round has one answer, with index 0. Preference pairs for
training and the statistics of a run are computed from trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rewards import reaches
from runner.game.protocols.rounds import Round
from runner.game.protocols.tree_shape import NodePath, TreeShape
from runner.rollouts.rollout import Rollout

NOT_COMPARABLE = (
    "its numbers are means over the branches of trees, where a game that ends early counts less, so they cannot be "
    "compared with those of single games"
)


@dataclass
class TreeNode:
    """A node of a tree: the rounds up to this node, and the branches with these rounds (`leaves`)."""

    path: NodePath
    leaves: list[Rollout] = field(default_factory=list)
    children: list[TreeNode] = field(default_factory=list)

    @property
    def rounds(self) -> Sequence[Round]:
        """The rounds up to and including this node's answer."""
        return self.leaves[0].rounds[: len(self.path)]

    def expected_reward(self, agent: str) -> float:
        """Return the mean, over the branches with this node, of the agent's total reward from the node's round on."""
        start = max(len(self.path) - 1, 0)
        return fmean(sum(played.rewards.get(agent, 0.0) for played in leaf.rounds[start:]) for leaf in self.leaves)

    def nodes(self) -> Iterator[TreeNode]:
        """Yield all nodes below this node, level by level."""
        level = self.children
        while level:
            yield from level
            level = [child for node in level for child in node.children]


def build_tree(branches: Sequence[Rollout], shape: TreeShape) -> TreeNode | None:
    """Build a tree from its branches and return the root, the state before the first answer.

    Branches that ended with an error (such as a refusal or a failure in transport) are left out. Return None if no
    branch remains.
    """
    complete = [leaf for leaf in branches if leaf.outcome.played_out]
    root = TreeNode((), complete)
    _add_children(root, shape)
    return root if complete else None


def _add_children(node: TreeNode, shape: TreeShape) -> None:
    """Add a child for each answer after a node, and all nodes below."""
    depth = len(node.path)
    by_answer: dict[int, list[Rollout]] = {}
    for leaf in node.leaves:
        if len(leaf.rounds) > depth:
            by_answer.setdefault(shape.path(leaf.job.repeat)[depth], []).append(leaf)
    for answer, leaves in sorted(by_answer.items()):
        child = TreeNode((*node.path, answer), leaves)
        _add_children(child, shape)
        node.children.append(child)


@dataclass(frozen=True)
class Contrast:
    """The answers of one agent after one node, divided into good and bad ones by their expected rewards."""

    agent: str
    node: TreeNode
    positive: tuple[TreeNode, ...]
    negative: tuple[TreeNode, ...]


def is_positive(node: TreeNode, agent: str, protocol: Protocol) -> bool:
    """Return whether the expected reward is at least the midpoint between the agent's best and worst rewards."""
    return reaches(node.expected_reward(agent), protocol.reward_mid_point(agent))


def contrasts(root: TreeNode, protocol: Protocol) -> Iterator[Contrast]:
    """Yield a contrast for each node after which an agent gave both good and bad answers.

    The order is by agent, as in the protocol, and then by level.
    """
    nodes = [root, *root.nodes()]
    for agent in protocol.agent_names:
        for node in nodes:
            answers = [child for child in node.children if agent in child.rounds[-1].raw]
            good = tuple(child for child in answers if is_positive(child, agent, protocol))
            bad = tuple(child for child in answers if not is_positive(child, agent, protocol))
            if good and bad:
                yield Contrast(agent, node, good, bad)


class TreeStatistics:
    """Statistics of a run's trees: the expected rewards of nodes, and how often a node has good and bad answers.

    Names and values are as in the original code: a branch that ended early counts as a node with reward 0 in each
    remaining round. A tree's value in a round is the mean over its nodes. Deviations are population deviations.
    """

    NAMES = ("expected_reward", "is_positive_example", "has_positive_and_negative")

    def __init__(self, protocol: Protocol, shape: TreeShape) -> None:
        self._protocol, self._shape = protocol, shape
        self._means: dict[tuple[str, str], list[list[float]]] = {}

    def add(self, root: TreeNode) -> None:
        """Add the tree with this root."""
        levels: list[list[TreeNode]] = [[] for _ in range(self._shape.rounds)]
        for node in root.nodes():
            levels[len(node.path) - 1].append(node)
        for agent in self._protocol.agent_names:
            rows: list[list[tuple[float, float, float]]] = []
            ended_values = (0.0, float(reaches(0.0, self._protocol.reward_mid_point(agent))), 0.0)
            ended_count = 0
            for nodes in levels:
                rows.append([*(self._values(node, agent) for node in nodes), *[ended_values] * ended_count])
                ended_count += sum(not node.children for node in nodes)
            for index, name in enumerate(self.NAMES):
                means = [fmean(row[index] for row in level) for level in rows]
                self._means.setdefault((agent, name), []).append(means)

    def _values(self, node: TreeNode, agent: str) -> tuple[float, float, float]:
        signs = {is_positive(child, agent, self._protocol) for child in node.children}
        return node.expected_reward(agent), float(is_positive(node, agent, self._protocol)), float(len(signs) == 2)

    def original_statistics(self) -> dict[str, float | dict[str, list[float]]]:
        """Return the mean and deviation of each statistic, by agent: for each round, and over all rounds together."""
        result: dict[str, float | dict[str, list[float]]] = {}
        for kind, statistic in (("mean", fmean), ("std", pstdev)):
            for name in self.NAMES:
                by_round = {
                    agent: [statistic(tree[round_] for tree in trees) for round_ in range(self._shape.rounds)]
                    for (agent, statistic_name), trees in self._means.items()
                    if statistic_name == name
                }
                result[f"{kind}_{name}_by_round"] = by_round
        for (agent, name), trees in self._means.items():
            levels = [level for tree in trees for level in tree]
            result[f"{agent}.mean_{name}"] = fmean(levels)
            result[f"{agent}.std_{name}"] = pstdev(levels)
        return result
