"""Writes a run's trees of responses as data for a page's script: the value of each answer, and the training pairs.

A tree is identified by its datapoint and, if the datapoint has several trees, by its number. The modules that build
training data (`runner.rollouts.trees`, `runner.results.finetune.preferences`) compute the rewards, the good answers and
the pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runner.game.protocols.protocol import Decision
from runner.game.protocols.tree_shape import NodePath, TreeShape
from runner.pages.numbers import count
from runner.pages.packing import Texts, compress_json
from runner.pages.report.games import FORMAT, PieceWriter
from runner.pages.site import StorePiece
from runner.results.finetune.preferences import preferences
from runner.rollouts.agents.agent import Agent
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.rollouts.trees import NOT_COMPARABLE, TreeNode, TreeStatistics, build_tree, is_positive


@dataclass(frozen=True)
class _TreeContext:
    """Facts that all trees of a run share."""

    plan: Plan
    shape: TreeShape
    agents: Mapping[str, Agent]
    run_id: str


class TreesData:
    """Collects the branches of a run's trees, stores the trees in pieces, and computes their statistics."""

    def __init__(self, plan: Plan, run_id: str, slug: str, store_piece: StorePiece) -> None:
        assert plan.tree_shape is not None
        self._trees = _TreeContext(plan, plan.tree_shape, plan.agents(), run_id)
        self._slug, self._store_piece = slug, store_piece
        self._statistics = TreeStatistics(plan.spec.protocol, plan.tree_shape)
        self._complete_trees = 0
        self._branches: list[Rollout] = []
        self._pieces = PieceWriter(f"{slug}-trees", "trees", lambda name, data: store_piece(name, compress_json(data)))
        self._rows: list[dict[str, Any]] = []
        self.pairs: Counter[str] = Counter()
        self.branches = 0

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row without texts for each tree."""
        return self._rows

    def add(self, rollout: Rollout) -> None:
        """Add a branch; the branches of a tree must be added consecutively."""
        if self._branches and self._tree_of(self._branches[0]) != self._tree_of(rollout):
            self._add_tree()
        self._branches.append(rollout)

    def _tree_of(self, rollout: Rollout) -> tuple[Any, ...]:
        job = rollout.job
        return job.datapoint.id, self._trees.shape.tree(job.repeat), job.stance, job.swapped

    def _add_tree(self) -> None:
        branches, self._branches = self._branches, []
        self.branches += len(branches)
        packer = _Packer(branches, self._trees, self._pieces.texts)
        if packer.root is not None:
            self._statistics.add(packer.root)
            self._complete_trees += 1
        self.pairs.update(pair["agent"] for pair in packer.pairs)
        self._rows.append(packer.row())
        tree = packer.pack()
        self._pieces.add(tree, 400 * tree["size"])

    def about(self) -> dict[str, Any]:
        """Store the trees so far, and return the number of trees and the places of their data. All trees must be
        complete.
        """
        if self._branches:
            self._add_tree()
        pieces = self._pieces.flush()
        self._store_piece(f"{self._slug}-treelist", compress_json({"format": FORMAT, "trees": self._rows}))
        return {"count": self.count, "pieces": pieces}

    def expected(self) -> Mapping[str, Sequence[float]]:
        """Return the mean expected rewards at the nodes of complete trees: for each agent, a list by round."""
        if not self._complete_trees:
            return {}
        means = self._statistics.original_statistics()["mean_expected_reward_by_round"]
        assert isinstance(means, dict)
        return means


class _Packer:
    """Converts a tree to JSON data; `texts` are the texts of the piece."""

    def __init__(self, branches: Sequence[Rollout], trees: _TreeContext, texts: Texts) -> None:
        self._branches, self._shape, self._texts = branches, trees.shape, texts
        self._protocol = trees.plan.spec.protocol
        self.root = build_tree(branches, trees.shape)
        self.pairs = [] if self.root is None else list(self._pairs(self.root, trees))
        self._choices: dict[NodePath, dict[str, str]] = {}
        for pair in self.pairs:
            for choice in ("chosen", "rejected"):
                self._choices.setdefault(tuple(pair[choice]), {})[pair["agent"]] = choice

    def _pairs(self, root: TreeNode, trees: _TreeContext) -> Iterator[dict[str, Any]]:
        """Yield each agent's pairs of answers in a tree, as paths. Duplicates are kept; a dataset would drop them."""
        paths = {leaf.job.rollout_id: self._shape.path(leaf.job.repeat) for leaf in root.leaves}
        seed = trees.plan.spec.experiment.seed
        for agent, _, source in preferences(root, trees.agents, seed, trees.run_id):
            end = source.round + 1
            yield {
                "agent": agent,
                "round": source.round,
                "chosen": paths[source.rollout_id][:end],
                "rejected": paths[source.other["rejected_rollout_id"]][:end],
                "rewards": [source.reward, source.other["rejected_reward"]],
            }

    def row(self) -> dict[str, Any]:
        """Return the tree's row in the list."""
        job = self._branches[0].job
        leaves = [] if self.root is None else self.root.leaves
        return {
            "datapoint": job.datapoint.id,
            "tree": self._shape.tree(job.repeat),
            "label": job.datapoint.label,
            "branches": len(leaves),
            "right": sum(bool(leaf.correct) for leaf in leaves),
            "left_out": len(self._branches) - len(leaves),
            "pairs": len(self.pairs),
        }

    def pack(self) -> dict[str, Any]:
        nodes = [] if self.root is None else [self._pack_node(child) for child in self.root.children]
        values = {} if self.root is None else self._expected_rewards(self.root)
        size = 1 if self.root is None else sum(1 for _ in self.root.nodes())
        return {**self.row(), "worth": values, "learnt": self.pairs, "nodes": nodes, "size": size}

    def _expected_rewards(self, node: TreeNode) -> dict[str, float]:
        return {agent: node.expected_reward(agent) for agent in self._protocol.agent_names}

    def _pack_node(self, node: TreeNode) -> dict[str, object]:
        last_round, path = node.rounds[-1], tuple(node.path)
        leaf = node.leaves[0]
        outcome = {} if node.children else {"game": leaf.job.rollout_id, **self._end_of(leaf)}
        return {
            "path": node.path,
            "said": [
                {
                    "agent": agent,
                    "text": self._texts.add(text),
                    "good": is_positive(node, agent, self._protocol),
                    "learnt": self._choices.get(path, {}).get(agent),
                }
                for agent, text in last_round.raw.items()
            ],
            "worth": self._expected_rewards(node),
            "leaves": len(node.leaves),
            "right": sum(bool(branch.correct) for branch in node.leaves),
            "nodes": [self._pack_node(child) for child in node.children],
            **outcome,
        }

    def _end_of(self, leaf: Rollout) -> dict[str, object]:
        decision = None if leaf.decision == Decision.NONE else int(leaf.decision)
        return {"decision": decision, "correct": leaf.correct, "outcome": str(leaf.outcome)}


MAX_PLAIN_TREES = 20
"""Maximum number of trees in the page for browsers without JavaScript."""

TRAINING_PAIRS = "A training run uses the pairs of the agents whose models are trained, without duplicates."


@dataclass(frozen=True)
class TreesView:
    """The trees of a run in its summary."""

    text: str
    caution: str
    rounds: range
    agents: Sequence[tuple[str, Sequence[float], int]]
    """The name of each agent, its mean expected rewards by round, and its number of pairs."""
    first: Sequence[tuple[str, Mapping[str, Any]]]
    """The link and the row of each of the first trees."""


def trees_view(run_id: str, trees: TreesData) -> TreesView:
    """Return the statistics of a run's trees so far."""
    expected = trees.expected()
    return TreesView(
        f"{count(trees.count)} trees with {count(trees.branches)} branches; {count(trees.pairs.total())} pairs of "
        f"a good and a bad answer at the same step. {TRAINING_PAIRS}",
        f"{NOT_COMPARABLE[0].upper()}{NOT_COMPARABLE[1:]}.",
        range(max(map(len, expected.values()), default=0)),
        [(agent, values, trees.pairs[agent]) for agent, values in expected.items()],
        [(tree_link(run_id, row["datapoint"], row["tree"]), row) for row in trees.rows[:MAX_PLAIN_TREES]],
    )


def tree_link(run_id: str, datapoint: str, tree: int) -> str:
    """Return the link to a tree on the run's page."""
    query = f"?tree={tree}" if tree else ""
    return f"#/run/{quote(run_id, safe='')}/tree/{quote(datapoint, safe='')}{query}"
