"""The places in a tree of responses, as numbers.

Every step of a game is answered several times and every answer gone on from. A node is the place after an answer; its
path is the number of the answer taken in each round so far. A round in which nobody speaks has one answer, 0.
"""

from __future__ import annotations

from dataclasses import dataclass

NodePath = tuple[int, ...]


@dataclass(frozen=True)
class TreeShape:
    """How many answers each step gets, and how many rounds there may be."""

    responses: int
    rounds: int

    @property
    def branches(self) -> int:
        """How many branches a tree may have: the distance between the repeats of two trees."""
        return int(self.responses**self.rounds)

    def repeat(self, tree: int, path: NodePath) -> int:
        """The repeat of a node: that of the first branch that goes through it."""
        code = 0
        for answer in (*path, *[0] * (self.rounds - len(path))):
            code = code * self.responses + answer
        return tree * self.branches + code

    def path(self, repeat: int) -> NodePath:
        """The answers that a branch took, one a round."""
        digits = []
        code = repeat % self.branches
        for _ in range(self.rounds):
            code, digit = divmod(code, self.responses)
            digits.append(digit)
        return tuple(reversed(digits))

    def siblings(self, repeat: int, round_: int) -> list[int]:
        """The repeats of the other answers to a step that a branch is at."""
        tree, path = self.tree(repeat), self.path(repeat)
        nodes = [self.repeat(tree, (*path[:round_], answer)) for answer in range(self.responses)]
        return [node for answer, node in enumerate(nodes) if answer != path[round_]]

    def tree(self, repeat: int) -> int:
        """Which tree of its datapoint a branch is of."""
        return repeat // self.branches
