"""Counts unusable answers while a run is played, for a warning and for the limit `rollouts.max_unusable`.

An answer is unusable if the game cannot continue with it. Examples are refusals, and messages in a wrong format.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from runner.base.redaction import redacted
from runner.base.text import in_one_line, shortened
from runner.models.interface import Choice, Completion, Request
from runner.models.layers.answer_form import advise_on_json
from runner.rollouts.plan import Plan

MIN_ANSWERS: Final = 20
"""The share of unusable answers has no effect if there are fewer answers."""
WARNING_SHARE: Final = 0.5
"""The warning appears if the share is above this value with 99.5 % confidence: for 16 of 20 answers, or 35 of 50."""
_Z: Final = 2.576
"""The half-width of the confidence interval in standard errors. It covers 99 % of a normal distribution."""
GENERATION: Final = "generation", "author"
"""The protocol of `nip-run make-dataset`, and its only agent, who writes programs and no verdicts."""
EXAMPLE_LENGTH: Final = 120
"""The maximum number of characters of a quoted answer, and of the reason why it is unusable."""


class AnswerCounts(NamedTuple):
    """The number of new answers, the number of unusable ones among them, and the first unusable one with advice."""

    answers: int = 0
    unusable: int = 0
    example: str = ""

    def plus(self, other: AnswerCounts) -> AnswerCounts:
        """Return the sum, with the first example."""
        total = self.answers + other.answers, self.unusable + other.unusable
        return AnswerCounts(*total, self.example or other.example)

    def __str__(self) -> str:
        return f"{self.unusable:,} of {self.answers:,} answers since this command started cannot be used"

    @property
    def is_alarming(self) -> bool:
        """Whether the lower end of the Wilson interval of the unusable share is above `WARNING_SHARE`."""
        if self.answers < MIN_ANSWERS:
            return False
        n, share, spread = self.answers, self.unusable / self.answers, _Z**2 / self.answers
        half_width = _Z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
        return (share + spread / 2 - half_width) / (1 + spread) > WARNING_SHARE

    def exceeds(self, max_share: float | None) -> bool:
        """Return whether more than this share of the answers is unusable; False for few answers or without a limit."""
        return max_share is not None and self.answers >= MIN_ANSWERS and self.unusable > max_share * self.answers


class AnswerChecker:
    """Checks whether answers are usable, by the rules of the agent that requested them. Blank text is not usable."""

    def __init__(self, plan: Plan) -> None:
        self._agents, self._models = plan.game_agents(), plan.spec.experiment.models
        self._is_analysis = plan.spec.experiment.analysis is not None
        self._needs_verdicts = (plan.spec.protocol.name, *plan.spec.protocol.agent_names) != GENERATION
        self._answer_counts = {point.id: point.answer_count for point in plan.spec.dataset.datapoints}

    def count(self, request: Request, completion: Completion) -> AnswerCounts:
        """Return the counts of one answer; zeros for an answer from a cache or a replay, which cost nothing."""
        if completion.from_cache:
            return AnswerCounts()
        sample, problem = request.sample, ""
        choices = completion.choices or (Choice(None, None),)
        for choice in choices:
            unusable = self.problem(request, choice)
            if unusable is None:
                return AnswerCounts(1)
            problem = problem or unusable
        text = (choices[0].text or "").strip()
        excerpt = shortened(in_one_line(redacted(text)), EXAMPLE_LENGTH)
        reason = shortened(in_one_line(redacted(problem)), EXAMPLE_LENGTH)
        author = f"{sample.agent} ({completion.model}) in round {sample.round} of"
        if self._is_analysis:
            author = f"{completion.model} about"
        example = (
            f"{author} {in_one_line(sample.datapoint)} answered '{excerpt}': {reason}; "
            f"{self._advise(request, choices[0])}"
        )
        return AnswerCounts(1, 1, example)

    def problem(self, request: Request, choice: Choice, decision: int | None = None) -> str | None:
        """Return why an answer is unusable; None if it is usable.

        If `decision` is given, an answer with another decision is not usable either.
        """
        sample = request.sample
        agent, turn = self._agents[sample.agent], (sample.round, self._answer_counts.get(sample.datapoint))
        reason = agent.unusable_reason(choice, *turn)
        if reason is None and self._needs_verdicts:
            reason = agent.undecided_reason(choice, *turn)
        if reason is None and not (choice.text or "").strip():
            reason = "the answer has no content"
        if reason is None and decision is not None and agent.read(choice, *turn).decision != decision:
            reason = "the text itself is read as another verdict than the selected one; change the text"
        return reason

    def _advise(self, request: Request, choice: Choice) -> str:
        group = request.group
        if choice.refusal or choice.finish_reason == "content_filter":
            return f"the model refuses, so change the prompts or models.{group}.model"
        if choice.finish_reason == "length" or not (choice.text or "").strip():
            return f"raise models.{group}.{self._models[group].length_limit_key}, which also limits reasoning tokens"
        if request.schema is not None and not self._is_analysis:
            return advise_on_json(group, self._models[group])
        if self._is_analysis:
            return "check the question and the answers of the analyzer, add --structured yes, or use another model"
        return f"check that the template of {request.sample.agent} asks for the format that the protocol parses"
