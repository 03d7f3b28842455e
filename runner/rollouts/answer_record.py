"""The listed answers of a finished game: how it showed them, who argued for which, and what the verifier decided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.base.value_class import value_class
from runner.game.prompts.templates import ANSWERS
from runner.game.protocols.answer_verdicts import VerdictForm
from runner.game.protocols.ballot import FIRST_ANSWER, Ballot, answer_position, letter_of
from runner.game.protocols.protocol import Decision, Protocol, verdict_word
from runner.game.protocols.rounds import Round, argued_decisions
from runner.statistics.answer_verdicts import brier_score

if TYPE_CHECKING:
    from runner.rollouts.agents.agent import Agent
    from runner.rollouts.rollout import Call, Rollout


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
        return brier_score(self.probabilities, self.ballot.right)

    @property
    def chosen_letter(self) -> str | None:
        return None if self.chosen is None else letter_of(self.chosen)

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


def record_answers(
    verifier: Agent, ballot: Ballot, rounds: Sequence[Round], calls: Sequence[Call], decision: int
) -> AnswerRecord:
    """Return the record of a game's answers. Its last round has the decision, if there is one."""
    protocol = verifier.protocol_handler
    argued = argued_decisions(protocol, ballot, [played.raw for played in rounds])
    positions = {agent: code - FIRST_ANSWER for agent, code in argued.items()}
    chosen, form = answer_position(decision), verifier.hyper_params.verdict.form
    is_forced = protocol.parameters.force_guess is not None
    if chosen is None or form == "answer" or is_forced:
        return AnswerRecord(ballot, chosen, positions, form)
    return AnswerRecord(ballot, chosen, positions, form, _mean_numbers(verifier, ballot, rounds, calls))


def _mean_numbers(
    verifier: Agent, ballot: Ballot, rounds: Sequence[Round], calls: Sequence[Call]
) -> tuple[float, ...] | None:
    from runner.rollouts.confidence import answers_that_decided, parse_or_none

    round_, count = len(rounds) - 1, len(ballot.texts)
    texts = (text for text, _ in answers_that_decided(verifier, rounds[-1], calls, round_, count))
    parsed = (parse_or_none(verifier, text, round_, count) for text in texts)
    votes = [answer.numbers for answer in parsed if answer is not None and answer.numbers is not None]
    return tuple(math.fsum(values) / len(votes) for values in zip(*votes, strict=True)) if votes else None


def votes_json(rollout: Rollout) -> list[int] | list[str] | None:
    """Return the votes of a game as JSON data: decisions, or letters of listed answers (`none` without one)."""
    if rollout.votes is None:
        return None
    return list(rollout.votes) if rollout.answers is None else [verdict_word(vote) for vote in rollout.votes]


def decision_fields(decision: int, *, lists_answers: bool) -> dict[str, Any]:
    """Return the fields that describe a decision in JSON data: `decision`, or `answer` with the letter of an answer."""
    if not lists_answers:
        return {"decision": int(decision)}
    position = answer_position(decision)
    return {"decision": None, "answer": None if position is None else letter_of(position)}


def shown_columns(rollout: Rollout) -> dict[str, Any]:
    """Return the columns of a game's datapoint, with listed answers by the letters of this game."""
    columns = dict(rollout.job.datapoint.columns)
    return columns if rollout.answers is None else {**columns, ANSWERS: rollout.answers.texts}


def shown_label(rollout: Rollout) -> int | str | None:
    """Return the label of a game's datapoint, or the letters of the right answers in this game."""
    return rollout.job.datapoint.label if rollout.answers is None else rollout.answers.right_letters


def shown_decision(rollout: Rollout) -> int | str | None:
    """Return the decision of a game, or the letter of the chosen answer; None without a verdict."""
    if rollout.answers is not None:
        return rollout.answers.chosen_letter
    return None if rollout.decision == Decision.NONE else int(rollout.decision)


def shown_stances(protocol: Protocol, rollout: Rollout) -> dict[str, int | str]:
    """Return the stance of each prover, or the letter of the answer that it argued for."""
    if rollout.answers is None:
        return dict(protocol.prover_stances(rollout.job.prover_stance))
    return {agent: letter_of(position) for agent, position in rollout.answers.argued.items()}
