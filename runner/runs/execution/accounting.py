"""The counts of a run: its progress while it is played, the figures of its manifest."""

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
from runner.runs.execution.unusable import AnswerCounts
from runner.runs.finished.problems import GameProblem, GameProblems

log = logging.getLogger("nip_run.accounting")


@dataclass
class Progress:
    """What a run has done so far, as `on_progress` of `runner.run` is given it."""

    rollouts: int = 0
    jobs: int = 0
    total: int = 0
    """How many jobs there are: games, or trees of several rollouts each."""
    of: str = "rollouts"
    failures: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    answers: UsageTotals = field(default_factory=UsageTotals)
    """Of all answers, whoever paid for them; the dollars are those of this run's own."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What is wrong just now, such as a server that does not answer, by its address."""
    notes: list[str] = field(default_factory=list)
    """What was noticed, each when it was; the run's result has them, too."""
    priced: bool = True
    """False once a call came whose price is unknown."""
    right: int = 0
    judged: int = 0
    """How many rollouts there are whose verdict is right or wrong: all but those that failed in transport."""
    repeats: int = 0
    """Answers that were asked for because the one before could not be used."""
    last_error: str = ""
    in_flight: Callable[[], int] = lambda: 0
    """How many calls wait for their answers."""
    stage: str = ""
    """What of a training run this is; alone, with no jobs, where it plays no games."""

    def snapshot(self) -> Progress:
        """A copy that stays as it is."""
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
        """Have the calls of other runs together, and what they cost."""
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
    """A rollout as the counts of a run see it."""

    outcome: str
    correct: bool | None
    failed: int
    """Calls that failed."""
    completions: int
    tokens: tuple[int, ...]
    """A count for each of `TOKEN_CLASSES`."""
    usd: tuple[float, ...]
    """What each call cost whose price is known."""
    origin: str | None = None
    """The run that its verdict was copied from; None: none, or the rollout does not count."""


Watch = Callable[[Progress], None]
"""Called whenever the progress has moved."""


class Accounting:
    """Counts answers as they come in, and rollouts as they are written."""

    def __init__(self, plan: Plan, costs: CallCosts, watch: Watch | None = None) -> None:
        self.progress = Progress(total=plan.size, of="rollouts" if plan.shape is None else "trees")
        self._costs = costs
        self._watch = watch or (lambda _: None)
        self._plan = plan
        self._written = UsageTotals()
        """Of the calls in the tables; what a replay was answered with costs nothing."""
        self._failed_calls = 0
        self._copied: Counter[str] = Counter()
        self._troubles = GameProblems(plan)
        self._max_lost = plan.spec.experiment.rollouts.max_transport_failed
        self._max_unusable = plan.spec.experiment.rollouts.max_unusable
        self._new_answers = AnswerCounts()
        self._has_warned = False

    def answered(self, request: Request, completion: Completion) -> None:
        """Count an answer for those who watch, as it comes in."""
        price = self._costs.prices[request.group]
        self.progress.priced = self.progress.priced and (price is not None or completion.from_cache)
        self.progress.answers.count(completion.usage, None if completion.from_cache else price)
        self.progress.repeats += request.sample.attempt > 0
        self._watch(self.progress)

    def answered_elsewhere(self, group: str, answers: UsageTotals, repeats: int, *, from_cache: bool) -> None:
        """Count answers that games of another process got."""
        known = from_cache or self._costs.prices[group] is not None
        self.progress.priced = self.progress.priced and known
        self.progress.answers += answers
        self.progress.repeats += repeats
        self._watch(self.progress)

    def count_new(self, counts: AnswerCounts) -> None:
        """Count new answers, and warn once if many of them cannot be used."""
        self._new_answers = self._new_answers.plus(counts)
        if self._new_answers.is_alarming and not self._has_warned:
            self._has_warned = True
            self.warn(
                f"unusable answers of {self._plan.identity}",
                f"warning: {self._new_answers}; for example, {self._new_answers.example}. To stop such a run by "
                "itself, set rollouts.max_unusable (a share)",
            )

    def check_unusable(self) -> None:
        """See that the share of unusable answers is within the spec's limit.

        Raises:
            TooManyUnusable: it is not.
        """
        if self._new_answers.exceeds(self._max_unusable):
            raise TooManyUnusable(
                f"stopped: {self._new_answers}, more than rollouts.max_unusable ({self._max_unusable:g}) allows\n"
                f"For example, {self._new_answers.example}.\n"
                "Everything so far is saved, and the same command resumes. Set rollouts.max_unusable higher to go on "
                "regardless."
            )

    def failed(self, error: CallError) -> None:
        """Count a failed attempt."""
        self.progress.failures += 1
        self.progress.last_error = str(error)
        self._watch(self.progress)

    def warn(self, server: str, message: str | None) -> None:
        """Tell those who watch what is wrong with a server, and with None that it is no more."""
        log.warning("%s", message or f"{server} answers again")
        if message is None:
            self.progress.warnings.pop(server, None)
        else:
            self.progress.warnings[server] = message
        self._watch(self.progress)

    def tell(self, note: str) -> None:
        """Tell those who watch what the run's notes will say."""
        self.progress.notes.append(note)
        self._watch(self.progress)

    def add(self, rollout: Rollout) -> None:
        """Count a finished rollout, and its calls as its rows have them."""
        self.count(self.counted(rollout))
        self._troubles.add(rollout)

    def counted(self, rollout: Rollout) -> CountedRollout:
        """What a finished rollout counts as."""
        groups, prices = self._plan.groups(swapped=rollout.job.swapped), self._costs.prices
        used, usd, failed = UsageTotals(), [], 0
        for call in rollout.calls:
            answered = call.finish_reason is not None
            failed += call.error is not None and not answered
            price = prices[groups[call.agent]] if call.paid else None
            used.count(call.usage, None, int(answered))
            if price is not None:
                usd.append(price.cost_of(call.usage))
        lost = rollout.outcome == Outcome.TRANSPORT_FAILED
        origin = None if lost else rollout.verdict_origin(self._plan.spec.protocol.verifier_name)
        tokens = used.token_counts
        return CountedRollout(
            rollout.outcome.value, rollout.correct, failed, used.completions, tokens, tuple(usd), origin
        )

    def count(self, rollout: CountedRollout) -> None:
        """Count what `counted` found."""
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

    def smooth(self, rollout: Rollout) -> tuple[int, int] | None:
        """The answers and messages of a rollout in which nothing went wrong; None where something did."""
        return self._troubles.smooth(rollout)

    def count_smooth(self, answers: int, messages: int) -> None:
        """Count a rollout of which `smooth` said so."""
        self._troubles.add_smooth(answers, messages)

    def end_job(self) -> None:
        """Count a job, all of whose rollouts are in."""
        self.progress.jobs += 1
        self._watch(self.progress)

    @property
    def transport_failed(self) -> int:
        """How many rollouts ended because no answer came."""
        return self.progress.outcomes.get(Outcome.TRANSPORT_FAILED.value, 0)

    def status(self) -> Status:
        """How a run ends whose rollouts are all written."""
        lost, rollouts = self.transport_failed, self.progress.rollouts
        if lost == rollouts:
            return Status.FAILED
        return Status.DONE if is_allowed_loss(lost, rollouts, self._max_lost) else Status.INCOMPLETE

    def lost(self) -> str | None:
        """What an incomplete run lost, for messages: the count, the bound, and one example."""
        if self.status() != Status.INCOMPLETE:
            return None
        return (
            f"{self.transport_failed} of {self.progress.rollouts} rollouts lost in transport, and "
            f"rollouts.max_transport_failed allows a share of {self._max_lost:g}; such as "
            f"{self._troubles.lost_example()}"
        )

    def troubles(self) -> list[GameProblem]:
        """What went wrong in the rollouts that are in."""
        return self._troubles.found()

    def unfinished(self, spent: UsageTotals) -> Counts:
        """The counts of a run that did not finish, by what its journal says was spent."""
        return {
            "rollouts": self.progress.rollouts,
            "completions": spent.completions,
            "failed_calls": self.progress.failures,
            "cost_usd": self._rounded(spent.usd),
        }

    def finished(self, spent: UsageTotals) -> Counts:
        """The counts of a run whose tables are written; what it spent is the most that it may have cost."""
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
        return round(usd, 9) if self._costs.priced else None
