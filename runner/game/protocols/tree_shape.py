"""Numbering of the nodes in a tree of responses.

In a tree, every step of a game has several answers, and the game continues from each answer. A node is the state of a
game after an answer. Its path is a list with the number of the answer in each round so far; a round without speakers
has only answer 0. A branch is a path through all rounds. Branches of one datapoint are numbered through, over all of
its trees; the tables store this number as the repeat of a rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

NodePath = tuple[int, ...]


@dataclass(frozen=True)
class TreeShape:
    """The size of a tree."""

    responses: int
    """Number of answers per step."""
    rounds: int
    """Maximum number of rounds."""

    @property
    def branches(self) -> int:
        """The maximum number of branches per tree. Repeats are numbered as if each tree had this number of branches."""
        return int(self.responses**self.rounds)

    def repeat(self, tree: int, path: NodePath) -> int:
        """Return the repeat of a node, which is the repeat of the first branch that contains the node."""
        code = 0
        for answer in (*path, *[0] * (self.rounds - len(path))):
            code = code * self.responses + answer
        return tree * self.branches + code

    def path(self, repeat: int) -> NodePath:
        """Return the path of a branch: the number of the answer in each round."""
        digits = []
        code = repeat % self.branches
        for _ in range(self.rounds):
            code, digit = divmod(code, self.responses)
            digits.append(digit)
        return tuple(reversed(digits))

    def siblings(self, repeat: int, round_: int) -> list[int]:
        """Return the repeats of the other answers to the step that a branch has in round `round_`."""
        tree, path = self.tree(repeat), self.path(repeat)
        nodes = [self.repeat(tree, (*path[:round_], answer)) for answer in range(self.responses)]
        return [node for answer, node in enumerate(nodes) if answer != path[round_]]

    def tree(self, repeat: int) -> int:
        """Return the number of the tree that a branch belongs to; the trees of a datapoint are numbered from 0."""
        return repeat // self.branches
