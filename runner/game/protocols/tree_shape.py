"""Numbering of the nodes in a tree of responses.

Every step of a game gets several answers, and the game continues from each. A node is the state after an answer; its
path has the number of the chosen answer in each round so far. A round without speakers has one answer, 0.
"""

from __future__ import annotations

from dataclasses import dataclass

NodePath = tuple[int, ...]


@dataclass(frozen=True)
class TreeShape:
    """The number of answers per step, and the maximum number of rounds."""

    responses: int
    rounds: int

    @property
    def branches(self) -> int:
        """The maximum number of branches of a tree, which is also the distance between the repeats of two trees."""
        return int(self.responses**self.rounds)

    def repeat(self, tree: int, path: NodePath) -> int:
        """Return the repeat of a node, which is that of the first branch through it."""
        code = 0
        for answer in (*path, *[0] * (self.rounds - len(path))):
            code = code * self.responses + answer
        return tree * self.branches + code

    def path(self, repeat: int) -> NodePath:
        """Return the numbers of the answers in a branch, one per round."""
        digits = []
        code = repeat % self.branches
        for _ in range(self.rounds):
            code, digit = divmod(code, self.responses)
            digits.append(digit)
        return tuple(reversed(digits))

    def siblings(self, repeat: int, round_: int) -> list[int]:
        """Return the repeats of the other answers to the same step of a branch."""
        tree, path = self.tree(repeat), self.path(repeat)
        nodes = [self.repeat(tree, (*path[:round_], answer)) for answer in range(self.responses)]
        return [node for answer, node in enumerate(nodes) if answer != path[round_]]

    def tree(self, repeat: int) -> int:
        """Return the number of the tree, among those of its datapoint, that a branch belongs to."""
        return repeat // self.branches
