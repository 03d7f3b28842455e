"""Counts the answers and rollouts of a run, for its progress display and for its manifest.

A session counts each answer when a game gets it, for the progress display. It counts each rollout with its calls when
the rollout's rows are written, for the manifest of a finished run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runner.base.errors import CallError, TooManyUnusable
from runner.base.token_classes import NEW_TOKEN_CLASSES
from runner.models.costs import CallCosts
from runner.models.interface import Completion, Request
from runner.models.usage_totals import UsageTotals
from runner.results.manifest import Counts, Status, is_allowed_loss
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.execution.spending import Spending
from runner.runs.execution.unusable_answers import AnswerCounts
from runner.runs.finished.problems import ProblemCounter

log = logging.getLogger("nip_run.accounting")


@dataclass
class Progress:
    """The progress of a run, as passed to `on_progress` of `runner.run`."""

    rollouts: int = 0
    jobs: int = 0
    total: int = 0
    """The number of jobs: games, or trees of several rollouts."""
    of: str = "rollouts"
    """The unit of `total`: "rollouts" or "trees"."""
    failures: int = 0
    """The number of failed calls."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """The number of rollouts with each outcome."""
    answers: UsageTotals = field(default_factory=UsageTotals)
    """The tokens and the cost of all answers; answers from a cache or another run cost nothing."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Current problems, mostly by server address, such as a server that does not answer."""
    notes: list[str] = field(default_factory=list)
    """The notes so far, which the run's result will also have."""
    priced: bool = True
    """Whether the price of every call so far is known."""
    right: int = 0
    """The number of rollouts with a correct verdict."""
    judged: int = 0
    """The number of rollouts whose verdict counts as correct or wrong: all except transport failures."""
    repeats: int = 0
    """The number of answers that were requested because the previous one was unusable."""
    last_error: str = ""
    in_flight: Callable[[], int] = lambda: 0
    """Returns the number of calls in flight."""
    questions: Callable[[], int] = lambda: 0
    """Returns the number of questions that wait for people, in all runs of the command."""
    question_page: str = ""
    """The address of the page where people answer."""
    stage: str = ""
    """The name of the stage of a training run. If the stage plays no games, `total` is 0."""

    def snapshot(self) -> Progress:
        """Return a copy that does not change when the run goes on."""
        in_flight, questions = self.in_flight(), self.questions()
        return replace(
            self,
            outcomes=dict(self.outcomes),
            answers=replace(self.answers),
            warnings=dict(self.warnings),
            notes=list(self.notes),
            in_flight=lambda: in_flight,
            questions=lambda: questions,
        )

    def count_calls_of(self, parts: Sequence[Progress]) -> None:
        """Set the counts of calls and their cost to the sums over other runs."""
        self.failures = sum(part.failures for part in parts)
        self.repeats = sum(part.repeats for part in parts)
        self.answers = sum((part.answers for part in parts), UsageTotals())
        self.priced = all(part.priced for part in parts)
        lost_outcome = Outcome.TRANSPORT_FAILED.value
        self.outcomes = {lost_outcome: sum(part.outcomes.get(lost_outcome, 0) for part in parts)}
        self.in_flight = lambda: sum(part.in_flight() for part in parts)

    @property
    def calls(self) -> int:
        return self.answers.completions

    @property
    def prompt_tokens(self) -> int:
        return self.answers.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return self.answers.completion_tokens

    @property
    def cost_usd(self) -> float | None:
        return self.answers.usd if self.priced else None


class RolloutCounts(NamedTuple):
    """The counts of one rollout, which `Accounting` adds to those of the run."""

    outcome: str
    correct: bool | None
    """Whether the verdict is correct; None if the rollout failed in transport or its datapoint has no label."""
    failed_calls: int
    completions: int
    tokens: tuple[int, ...]
    """The token counts in the order of `TOKEN_CLASSES`."""
    usd: tuple[float, ...]
    """The cost of each call with a known price."""
    origin: str | None = None
    """The id of the run that the verdict was copied from; None if it was not copied or failed in transport."""


OnProgress = Callable[[Progress], None]
"""Called whenever the progress changes."""


class Accounting:
    """Counts answers as they arrive, and rollouts as they are written."""

    def __init__(self, plan: Plan, costs: CallCosts, on_progress: OnProgress | None = None) -> None:
        self.progress = Progress(total=plan.size, of="rollouts" if plan.tree_shape is None else "trees")
        self._costs = costs
        self._on_progress = on_progress or (lambda _: None)
        self._plan = plan
        self._written_totals = UsageTotals()
        """The totals of the calls in the tables. Replayed answers cost nothing."""
        self._failed_calls = 0
        """The number of failed calls in the tables, including the failed calls of earlier processes."""
        self._copied_answers: Counter[str] = Counter()
        """The number of rollouts whose verdict was copied from another run, by the id of that run."""
        self.problems = ProblemCounter(plan)
        self._max_lost = plan.spec.experiment.rollouts.max_transport_failed
        self._max_unusable = plan.spec.experiment.rollouts.max_unusable
        self._new_answers = AnswerCounts()
        """The usable and unusable answers that models gave since this command started."""
        self._has_warned = False
        """Whether the warning about many unusable answers was shown."""

    def count_answer(self, request: Request, completion: Completion) -> None:
        """Count an answer that has just arrived, and report the progress."""
        price = self._costs.prices[request.group]
        self.progress.priced = self.progress.priced and (price is not None or completion.from_cache)
        self.progress.answers.count(completion.usage, None if completion.from_cache else price)
        self.progress.repeats += request.sample.attempt > 0
        self._on_progress(self.progress)

    def count_worker_answers(self, group: str, answers: UsageTotals, repeats: int, *, from_cache: bool) -> None:
        """Count answers that games in a worker process received, and report the progress."""
        is_priced = from_cache or self._costs.prices[group] is not None
        self.progress.priced = self.progress.priced and is_priced
        self.progress.answers += answers
        self.progress.repeats += repeats
        self._on_progress(self.progress)

    def count_new_answers(self, counts: AnswerCounts) -> None:
        """Count usable and unusable new answers, and warn once if many are unusable."""
        self._new_answers = self._new_answers.plus(counts)
        if self._new_answers.unusable and not self._has_warned and self._new_answers.is_alarming:
            self._has_warned = True
            self.warn(
                f"unusable answers of {self._plan.identity}",
                f"warning: {self._new_answers}; for example, {self._new_answers.example}. To stop such a run "
                "automatically, set rollouts.max_unusable (a share)",
            )

    def check_share_of_unusable_answers(self) -> None:
        """Check that the share of unusable answers is within `rollouts.max_unusable`.

        Raises:
            TooManyUnusable: the share is above the limit.
        """
        if self._new_answers.exceeds(self._max_unusable):
            raise TooManyUnusable(
                f"stopped: {self._new_answers}, more than rollouts.max_unusable ({self._max_unusable:g}) allows\n"
                f"For example, {self._new_answers.example}.\n"
                "All answers so far are saved. Fix the cause and repeat the command to resume, or raise "
                "rollouts.max_unusable to continue anyway."
            )

    def count_failure(self, error: CallError) -> None:
        """Count a failed call, and report the progress."""
        self.progress.failures += 1
        self.progress.last_error = str(error)
        self._on_progress(self.progress)

    def warn(self, subject: str, message: str | None) -> None:
        """Show a warning about a subject, such as a server's address; the message None removes the warning."""
        log.warning("%s", message or f"{subject} answers again")
        if message is None:
            self.progress.warnings.pop(subject, None)
        else:
            self.progress.warnings[subject] = message
        self._on_progress(self.progress)

    def report_note(self, note: str) -> None:
        """Add a note to the progress."""
        self.progress.notes.append(note)
        self._on_progress(self.progress)

    def add(self, rollout: Rollout) -> None:
        """Count a finished rollout and its calls."""
        self.add_counts(self.rollout_counts(rollout))
        self.problems.add(rollout)

    def rollout_counts(self, rollout: Rollout) -> RolloutCounts:
        """Return what a finished rollout adds to the counts."""
        groups, prices = self._plan.groups(swapped=rollout.job.swapped), self._costs.prices
        totals, usd, failed_calls = UsageTotals(), [], 0
        for call in rollout.calls:
            is_answered = call.finish_reason is not None
            failed_calls += call.error is not None and not is_answered
            price = prices[groups[call.agent]] if call.paid else None
            totals.count(call.usage, None, int(is_answered))
            if price is not None:
                usd.append(price.cost_of(call.usage))
        is_lost = rollout.outcome == Outcome.TRANSPORT_FAILED
        origin = None if is_lost else rollout.verdict_origin(*self._plan.spec.protocol.verifier_names)
        tokens = totals.token_counts
        return RolloutCounts(
            rollout.outcome.value, rollout.correct, failed_calls, totals.completions, tokens, tuple(usd), origin
        )

    def add_counts(self, rollout: RolloutCounts) -> None:
        """Add the result of `rollout_counts` to the counts of the run."""
        progress, totals = self.progress, self._written_totals
        progress.rollouts += 1
        progress.outcomes[rollout.outcome] = progress.outcomes.get(rollout.outcome, 0) + 1
        if rollout.correct is not None:
            progress.judged += 1
            progress.right += rollout.correct
        self._failed_calls += rollout.failed_calls
        if rollout.origin is not None:
            self._copied_answers[rollout.origin] += 1
        totals.completions += rollout.completions
        totals.add_tokens(rollout.tokens)
        for usd in rollout.usd:
            totals.usd += usd

    def end_job(self) -> None:
        """Count a job whose rollouts are all finished."""
        self.progress.jobs += 1
        self._on_progress(self.progress)

    @property
    def transport_failed(self) -> int:
        """The number of rollouts that failed in transport."""
        return self.progress.outcomes.get(Outcome.TRANSPORT_FAILED.value, 0)

    def status(self) -> Status:
        """Return the final status of a run whose rollouts are all written."""
        lost, rollouts = self.transport_failed, self.progress.rollouts
        if lost == rollouts:
            return Status.FAILED
        return Status.DONE if is_allowed_loss(lost, rollouts, self._max_lost) else Status.INCOMPLETE

    def describe_loss(self) -> str | None:
        """Describe an incomplete run's lost rollouts: the number, the limit and an example; None for other runs."""
        if self.status() != Status.INCOMPLETE:
            return None
        return (
            f"{self.transport_failed} of {self.progress.rollouts} rollouts lost in transport, but "
            f"rollouts.max_transport_failed allows only a share of {self._max_lost:g}; for example: "
            f"{self.problems.lost_example()}"
        )

    def unfinished_counts(self, spent: Spending) -> Counts:
        """Return the counts for the manifest of an unfinished run; `spent` is the run's spending so far."""
        return {
            "rollouts": self.progress.rollouts,
            "completions": spent.answers,
            "failed_calls": self.progress.failures,
            "cost_usd": self._round_cost(spent.usd),
            "cost_usd_at_most": self._round_cost(spent.maximum.usd),
        }

    def final_counts(self, max_spent: UsageTotals) -> Counts:
        """Return the counts for the manifest of a finished run; `max_spent` is the most that the run may have cost."""
        counts: Counts = {
            "rollouts": self.progress.rollouts,
            "completions": self._written_totals.completions,
            "prompt_tokens": self._written_totals.prompt_tokens,
            "completion_tokens": self._written_totals.completion_tokens,
            "cached_tokens": self._written_totals.cached_tokens,
            "failed_calls": self._failed_calls,
            "cost_usd": self._round_cost(self._written_totals.usd),
            "cost_usd_at_most": self._round_cost(max_spent.usd),
            "transport_failed": self.transport_failed,
            "answers_from": dict(sorted(self._copied_answers.items())),
        }
        for name in NEW_TOKEN_CLASSES:
            if count := getattr(self._written_totals, name):
                counts[name] = count  # type: ignore[literal-required]
        return counts

    def _round_cost(self, usd: float) -> float | None:
        return round(usd, 9) if self._costs.is_priced else None
