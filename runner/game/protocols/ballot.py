"""The answers of a game of a protocol with `answers: listed`, and the answer that each prover argues for.

A datapoint has candidate answers in the order of its file. Each game shows them in an order of its own as A, B, C, ...;
a position is an index in this order. The code of a decision for an answer is `FIRST_ANSWER` plus its position, which no
binary verdict has.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Final

from runner.base.hashing import derived_seed
from runner.base.value_class import value_class

MAX_ANSWERS: Final = len(ascii_uppercase)
FIRST_ANSWER: Final = 3
"""The code of a decision for the answer at position 0. Smaller codes are `Decision.REJECT`, `ACCEPT` and `NONE`."""

CORRECT: Final = "correct"
INCORRECT: Final = "incorrect"
OPEN: Final = "open"
"""The stance of a prover that chooses its answer itself."""

ANSWERS = "answers"
"""The column with the datapoint's answers, which the variable of this name replaces."""


def letter_of(position: int) -> str:
    """Return the letter of an answer: `A` for position 0."""
    return ascii_uppercase[position]


def answer_position(decision: int) -> int | None:
    """Return the position of the answer that a decision chooses; None for accept, reject and no decision."""
    return decision - FIRST_ANSWER if decision >= FIRST_ANSWER else None


@value_class(frozen=True)
class CandidateAnswers:
    """The candidate answers of a datapoint in the order of its file, and the indices of the right ones."""

    texts: tuple[str, ...]
    right: tuple[int, ...] | None
    """The indices of the right answers; None if the dataset's owner hides them."""


@dataclass(frozen=True)
class Ballot:
    """The answers of one game in the order in which it shows them."""

    texts: tuple[str, ...]
    order: tuple[int, ...]
    """The index, in the datapoint's order, of the answer at each position."""
    right: frozenset[int] | None
    """The positions of the right answers; None if they are not known."""
    assigned: Mapping[str, int] = field(default_factory=dict)
    """The position of the answer that each prover must argue for. Provers that choose an answer are left out."""

    def variables(self, agent: str) -> dict[str, object]:
        """Return the variables of an agent's templates that describe the answers."""
        position = self.assigned.get(agent)
        letter = "" if position is None else letter_of(position)
        return {
            "stance": letter or OPEN,
            "answers": [(letter_of(i), text) for i, text in enumerate(self.texts)],
            "answer_letter": letter,
            "answer": "" if position is None else self.texts[position],
        }


def deal_answers(candidates: CandidateAnswers, stances: Mapping[str, str], seed: int, *, shuffle: bool) -> Ballot:
    """Return the ballot of a game with this seed. `stances` has the stance of each prover in this game.

    Provers with the stance `incorrect` argue for different wrong answers, and those with `correct` for different right
    ones, as far as there are enough.
    """
    order = list(range(len(candidates.texts)))
    if shuffle:
        random.Random(derived_seed("answer_order", seed)).shuffle(order)
    right = None if candidates.right is None else frozenset(order.index(index) for index in candidates.right)
    texts = tuple(candidates.texts[index] for index in order)
    return Ballot(texts, tuple(order), right, _assign(stances, len(texts), right or frozenset(), seed))


def _assign(stances: Mapping[str, str], count: int, right: frozenset[int], seed: int) -> dict[str, int]:
    assigned: dict[str, int] = {}
    for kind in (CORRECT, INCORRECT):
        positions = [i for i in range(count) if (i in right) == (kind == CORRECT)]
        random.Random(derived_seed("argued_answer", kind, seed)).shuffle(positions)
        provers = [prover for prover, stance in stances.items() if stance == kind]
        if positions:
            assigned |= {prover: positions[i % len(positions)] for i, prover in enumerate(provers)}
    assigned |= {
        prover: ascii_uppercase.index(stance)
        for prover, stance in stances.items()
        if len(stance) == 1 and ascii_uppercase.index(stance) < count
    }
    return {prover: assigned[prover] for prover in stances if prover in assigned}


def exchange_stances(stances: Mapping[str, str], first: str) -> dict[str, str]:
    """Return the stances of a game in which the first prover has the stance `first`, `correct` or `incorrect`.

    The stances of the other provers are exchanged too, if the first prover's stance changes.
    """
    if first == next(iter(stances.values())):
        return dict(stances)
    return {prover: INCORRECT if stance == CORRECT else CORRECT for prover, stance in stances.items()}


def is_exchangeable(stances: Sequence[str]) -> bool:
    """Return whether all stances are `correct` or `incorrect`, so that games can exchange them."""
    return bool(stances) and all(stance in (CORRECT, INCORRECT) for stance in stances)


def draws_correct(seed: int) -> bool:
    """Return whether a game that draws the stances gives the first prover the stance `correct`."""
    return bool(derived_seed("first_stance", seed) % 2)
