"""The listed answers of a finished game: how it showed them, who argued for which, and what the verifier decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.base.value_class import value_class
from runner.game.protocols.answer_verdicts import VerdictForm
from runner.game.protocols.ballot import Ballot, answer_position, letter_of


@value_class(frozen=True)
class AnswerRecord:
    """The answers of a game, in the order in which it showed them, and the verdict on them."""

    ballot: Ballot
    chosen: int | None
    """The position of the chosen answer; None without a verdict."""
    argued: Mapping[str, int]
    """The position of the answer that each prover argued for, without provers that chose none."""
    form: VerdictForm = "answer"
    numbers: tuple[float, ...] | None = None
    """The probability or score of each answer, by `form`; the mean of the votes that decided."""

    @property
    def is_right(self) -> bool | None:
        """Whether the chosen answer is right; None if the right answers are not known."""
        return None if self.ballot.right is None else self.chosen in self.ballot.right

    @property
    def probabilities(self) -> tuple[float, ...] | None:
        return self.numbers if self.form == "distribution" else None

    @property
    def p_right(self) -> float | None:
        """The probability of the right answers together; None if it is not known."""
        if self.probabilities is None or self.ballot.right is None:
            return None
        return min(1.0, math.fsum(self.probabilities[i] for i in sorted(self.ballot.right)))

    @property
    def brier(self) -> float | None:
        """The multi-class Brier score of the probabilities; None without probabilities or right answers."""
        if self.probabilities is None or self.ballot.right is None:
            return None
        from runner.statistics.answer_verdicts import brier_score

        return brier_score(self.probabilities, self.ballot.right)

    @property
    def chosen_letter(self) -> str | None:
        return None if self.chosen is None else letter_of(self.chosen)

    @property
    def chosen_text(self) -> str | None:
        return None if self.chosen is None else self.ballot.texts[self.chosen]

    @property
    def right_letters(self) -> str | None:
        """The letters of the right answers, such as `A, C`; None if they are not known."""
        return None if self.ballot.right is None else ", ".join(letter_of(i) for i in sorted(self.ballot.right))

    @property
    def texts(self) -> dict[str, str]:
        """The answers by letter."""
        return {letter_of(i): text for i, text in enumerate(self.ballot.texts)}

    def describe_numbers(self) -> str:
        """Return the probabilities or scores as one line; empty if the verdict has none."""
        if self.numbers is None:
            return ""
        kind = "probabilities" if self.form == "distribution" else "scores"
        return f"{kind}: " + ", ".join(f"{letter_of(i)} {number:.3g}" for i, number in enumerate(self.numbers))

    def columns(self) -> dict[str, Any]:
        """Return the columns of the table `rollouts` that describe the answers. Answers are letters of the game."""
        right, numbers = self.ballot.right, self.numbers
        return {
            "answer": self.chosen_letter,
            "right_answers": None if right is None else [letter_of(i) for i in sorted(right)],
            "answer_order": [index + 1 for index in self.ballot.order],
            "argued_answers": {agent: letter_of(position) for agent, position in self.argued.items()},
            "answer_scores": None if numbers is None else {letter_of(i): number for i, number in enumerate(numbers)},
            "p_right": self.p_right,
            "answer_brier": self.brier,
        }


ANSWER_COLUMNS = (
    "answer", "right_answers", "answer_order", "argued_answers", "answer_scores", "p_right", "answer_brier",
)  # fmt: skip
"""The columns of the table `rollouts` that describe listed answers; NULL in games with other verdicts."""


def decision_fields(decision: int, *, lists_answers: bool) -> dict[str, object]:
    """Return the fields that describe a decision in JSON data: `decision`, or `answer` with the letter of an answer."""
    if not lists_answers:
        return {"decision": int(decision)}
    position = answer_position(decision)
    return {"decision": None, "answer": None if position is None else letter_of(position)}
