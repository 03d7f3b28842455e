"""The counts of a run: its progress while it is played, and the figures in its manifest."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runner.base.errors import CallError, TooManyUnusable
from runner.models.costs import CallCosts
from runner.models.interface import LATER_CLASSES, Completion, Request
from runner.models.usage_totals import UsageTotals
from runner.results.manifest import Counts, Status, is_allowed_loss
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.execution.spending import Spending
from runner.runs.execution.unusable import AnswerCounts
from runner.runs.finished.problems import GameProblems

log = logging.getLogger("nip_run.accounting")


@dataclass
class Progress:
    """The progress of a run, as passed to `on_progress` of `runner.run`."""

    rollouts: int = 0
    jobs: int = 0
    total: int = 0
    """The number of jobs: games, or trees of several rollouts."""
    of: str = "rollouts"
    failures: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    answers: UsageTotals = field(default_factory=UsageTotals)
    """The tokens of all answers, including those from a cache or another run; the cost is only this run's."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Current problems by server address, such as a server that does not answer."""
    notes: list[str] = field(default_factory=list)
    """The notes so far; the run's result also has them."""
    priced: bool = True
    """Whether the price of every call so far is known."""
    right: int = 0
    judged: int = 0
    """The number of rollouts with a right or wrong verdict, which are all except transport failures."""
    repeats: int = 0
    """The number of answers that were requested because the previous one was unusable."""
    last_error: str = ""
    in_flight: Callable[[], int] = lambda: 0
    """Returns the number of calls in flight."""
    stage: str = ""
    """The stage of a training run; without jobs if the stage plays no games."""

    def snapshot(self) -> Progress:
        """Return a copy that does not change any more."""
        waiting = self.in_flight()
        return replace(
            self,
            outcomes=dict(self.outcomes),
            answers=replace(self.answers),
            warnings=dict(self.warnings),
            notes=list(self.notes),
            in_flight=lambda: waiting,
        )

    def count_calls_of(self, parts: Sequence[Progress]) -> None:
        """Set the counts of calls and their cost to the sums over other runs."""
        self.failures = sum(part.failures for part in parts)
        self.repeats = sum(part.repeats for part in parts)
        self.answers = sum((part.answers for part in parts), UsageTotals())
        self.priced = all(part.priced for part in parts)
        lost = Outcome.TRANSPORT_FAILED.value
        self.outcomes = {lost: sum(part.outcomes.get(lost, 0) for part in parts)}
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


class CountedRollout(NamedTuple):
    """The values of a rollout that the counts of a run need."""

    outcome: str
    correct: bool | None
    failed: int
    """The number of failed calls."""
    completions: int
    tokens: tuple[int, ...]
    """The token counts in the order of `TOKEN_CLASSES`."""
    usd: tuple[float, ...]
    """The cost of each call with a known price."""
    origin: str | None = None
    """The run that its verdict was copied from; None if there is none, or if the rollout does not count."""


Watch = Callable[[Progress], None]
"""Called whenever the progress changes."""


class Accounting:
    """Counts answers as they arrive, and rollouts as they are written."""

    def __init__(self, plan: Plan, costs: CallCosts, watch: Watch | None = None) -> None:
        self.progress = Progress(total=plan.size, of="rollouts" if plan.shape is None else "trees")
        self._costs = costs
        self._watch = watch or (lambda _: None)
        self._plan = plan
        self._written = UsageTotals()
        """The totals of the calls in the tables; replayed answers cost nothing."""
        self._failed_calls = 0
        self._copied: Counter[str] = Counter()
        self.problems = GameProblems(plan)
        self._max_lost = plan.spec.experiment.rollouts.max_transport_failed
        self._max_unusable = plan.spec.experiment.rollouts.max_unusable
        self._new_answers = AnswerCounts()
        self._has_warned = False

    def answered(self, request: Request, completion: Completion) -> None:
        """Count an answer for the watch when it arrives."""
        price = self._costs.prices[request.group]
        self.progress.priced = self.progress.priced and (price is not None or completion.from_cache)
        self.progress.answers.count(completion.usage, None if completion.from_cache else price)
        self.progress.repeats += request.sample.attempt > 0
        self._watch(self.progress)

    def count_remote_answers(self, group: str, answers: UsageTotals, repeats: int, *, from_cache: bool) -> None:
        """Count the answers that games in another process received."""
        is_priced = from_cache or self._costs.prices[group] is not None
        self.progress.priced = self.progress.priced and is_priced
        self.progress.answers += answers
        self.progress.repeats += repeats
        self._watch(self.progress)

    def count_new(self, counts: AnswerCounts) -> None:
        """Count new answers, and warn once if many of them are unusable."""
        self._new_answers = self._new_answers.plus(counts)
        if self._new_answers.is_alarming and not self._has_warned:
            self._has_warned = True
            self.warn(
                f"unusable answers of {self._plan.identity}",
                f"warning: {self._new_answers}; for example, {self._new_answers.example}. To stop such a run "
                "automatically, set rollouts.max_unusable (a share)",
            )

    def check_unusable(self) -> None:
        """Check that the share of unusable answers is within the spec's limit.

        Raises:
            TooManyUnusable: it is not.
        """
        if self._new_answers.exceeds(self._max_unusable):
            raise TooManyUnusable(
                f"stopped: {self._new_answers}, more than rollouts.max_unusable ({self._max_unusable:g}) allows\n"
                f"For example, {self._new_answers.example}.\n"
                "Everything so far is saved, and the same command resumes. To continue despite this, raise "
                "rollouts.max_unusable."
            )

    def failed(self, error: CallError) -> None:
        """Count a failed attempt."""
        self.progress.failures += 1
        self.progress.last_error = str(error)
        self._watch(self.progress)

    def warn(self, server: str, message: str | None) -> None:
        """Report a problem of a server to the watch, or with None that it is solved."""
        log.warning("%s", message or f"{server} answers again")
        if message is None:
            self.progress.warnings.pop(server, None)
        else:
            self.progress.warnings[server] = message
        self._watch(self.progress)

    def tell(self, note: str) -> None:
        """Report one of the run's notes to the watch."""
        self.progress.notes.append(note)
        self._watch(self.progress)

    def add(self, rollout: Rollout) -> None:
        """Count a finished rollout and its calls."""
        self.count(self.counted(rollout))
        self.problems.add(rollout)

    def counted(self, rollout: Rollout) -> CountedRollout:
        """Return the values of a finished rollout that `count` needs."""
        groups, prices = self._plan.groups(swapped=rollout.job.swapped), self._costs.prices
        totals, usd, failed = UsageTotals(), [], 0
        for call in rollout.calls:
            is_answered = call.finish_reason is not None
            failed += call.error is not None and not is_answered
            price = prices[groups[call.agent]] if call.paid else None
            totals.count(call.usage, None, int(is_answered))
            if price is not None:
                usd.append(price.cost_of(call.usage))
        lost = rollout.outcome == Outcome.TRANSPORT_FAILED
        origin = None if lost else rollout.verdict_origin(self._plan.spec.protocol.verifier_name)
        tokens = totals.token_counts
        return CountedRollout(
            rollout.outcome.value, rollout.correct, failed, totals.completions, tokens, tuple(usd), origin
        )

    def count(self, rollout: CountedRollout) -> None:
        """Count a finished rollout by the values from `counted`."""
        progress, written = self.progress, self._written
        progress.rollouts += 1
        progress.outcomes[rollout.outcome] = progress.outcomes.get(rollout.outcome, 0) + 1
        if rollout.correct is not None:
            progress.judged += 1
            progress.right += rollout.correct
        self._failed_calls += rollout.failed
        if rollout.origin is not None:
            self._copied[rollout.origin] += 1
        written.completions += rollout.completions
        written.add_tokens(rollout.tokens)
        for usd in rollout.usd:
            written.usd += usd

    def end_job(self) -> None:
        """Count a job whose rollouts are all finished."""
        self.progress.jobs += 1
        self._watch(self.progress)

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

    def lost(self) -> str | None:
        """Describe what an incomplete run lost: the count, the limit and one example; None if it is not incomplete."""
        if self.status() != Status.INCOMPLETE:
            return None
        return (
            f"{self.transport_failed} of {self.progress.rollouts} rollouts lost in transport, but "
            f"rollouts.max_transport_failed allows only a share of {self._max_lost:g}; for example "
            f"{self.problems.lost_example()}"
        )

    def unfinished(self, spent: Spending) -> Counts:
        """Return the counts of an unfinished run, given what its journal says was spent."""
        return {
            "rollouts": self.progress.rollouts,
            "completions": spent.at_most.completions,
            "failed_calls": self.progress.failures,
            "cost_usd": self._rounded(spent.usd),
            "cost_usd_at_most": self._rounded(spent.at_most.usd),
        }

    def finished(self, spent: UsageTotals) -> Counts:
        """Return the counts of a run whose tables are written; `spent` is the most that it may have cost."""
        counts: Counts = {
            "rollouts": self.progress.rollouts,
            "completions": self._written.completions,
            "prompt_tokens": self._written.prompt_tokens,
            "completion_tokens": self._written.completion_tokens,
            "cached_tokens": self._written.cached_tokens,
            "failed_calls": self._failed_calls,
            "cost_usd": self._rounded(self._written.usd),
            "cost_usd_at_most": self._rounded(spent.usd),
            "transport_failed": self.transport_failed,
            "answers_from": dict(sorted(self._copied.items())),
        }
        for name in LATER_CLASSES:
            if count := getattr(self._written, name):
                counts[name] = count  # type: ignore[literal-required]
        return counts

    def _rounded(self, usd: float) -> float | None:
        return round(usd, 9) if self._costs.is_priced else None
