"""A got run played anew with the reader's key, and whether it is still what was published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runner.base.errors import ProviderRefusal, UsageError
from runner.base.text import comma_join, did_you_mean
from runner.documents.renamed_keys import SWEEP
from runner.models.api_keys import KeyUse
from runner.registry.fetched_release import FetchedRelease
from runner.registry.verification.reproducible import link_of, sound, suffixed
from runner.results.comparison.comparison import Comparison, SystemComparison, compare_systems
from runner.results.comparison.wording import told
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_table import RANKING_METRIC, compared_metric
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Watch
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import WhichRun
from runner.runs.session.chat_format_lock import as_begun
from runner.runs.session.run import RunOptions
from runner.spec.loader import load_spec
from runner.statistics.differences import Difference
from runner.statistics.sign_flip import ALPHA
from runner.training.dispatch import run_plan
from runner.training.plan import AnyPlan, plan_of

MARGIN = 0.1
"""A difference of at most this share of a metric's scale counts as none, unless `--margin` says otherwise."""


@dataclass(frozen=True)
class FreshPlay:
    """A published run and one that played it anew."""

    got: FetchedRelease
    run_id: str
    comparison: Comparison
    verdict: str
    """In words: reproduced, drifted by how much, or that it cannot be told."""
    outcome: str
    """`reproduced`, `drifted` or `undecided`."""

    @property
    def compared(self) -> SystemComparison:
        return self.comparison.pairs[0]


def fresh_plan(got: FetchedRelease, overrides: Sequence[str]) -> AnyPlan:
    """The plan that plays a got run anew, as it was published.

    Raises:
        UsageError: it cannot be, or an override changes what is played.
        SpecError: with everything that is wrong.
    """
    run = sound(got)
    published = plan_of(load_spec(run.spec))
    _check_overrides(overrides, published.mutable_keys)
    return plan_of(load_spec(run.spec, list(overrides)))


def _check_overrides(overrides: Sequence[str], mutable: Sequence[str]) -> None:
    """See that overrides change no game.

    Raises:
        UsageError: some would; which.
    """
    keys = [word.partition("=")[0].lstrip("+~") for word in overrides]
    refused = [key for key in keys if key == SWEEP or not any(_is_of(key, free) for free in mutable)]
    if refused:
        hint = did_you_mean(refused[0], [one.replace("*", "GROUP") for one in mutable])
        free = comma_join(one for one in mutable if one != SWEEP)
        raise UsageError(
            f"--set {comma_join(refused)}: this would play another game, and say nothing of the published one{hint}. "
            f"What may be set: {free}"
        )


def _is_of(key: str, free: str) -> bool:
    """Whether a dotted key is a free one, or below it; `*` is any one name."""
    ours, theirs = key.split("."), free.split(".")
    return len(ours) >= len(theirs) and all(b in ("*", a) for a, b in zip(ours, theirs, strict=False))


def fresh_name(got: FetchedRelease, results: Results) -> str:
    """The id of the run that plays a got run anew: of one that was begun, its own."""
    run = got.run
    assert run is not None
    return results.name_for(suffixed(run.run_id, "-fresh"), again=True)


def played_anew(
    got: FetchedRelease,
    plan: AnyPlan,
    results: Results,
    allowed: frozenset[KeyUse],
    *,
    metric: str = RANKING_METRIC,
    margin: float = MARGIN,
    watch: Watch | None = None,
    name: Callable[[FetchedRelease, Results], str] = fresh_name,
) -> FreshPlay:
    """Play a got run anew with the reader's key, and compare: is it still what was published?

    Raises:
        ProviderRefusal: the model is gone, or the provider refuses otherwise.
        UsageError, BudgetExhausted, Interrupted, RunError: as `run_plan` and `compare_systems`.
    """
    run = got.run
    assert run is not None
    assert isinstance(plan, Plan)
    which = WhichRun(run_id=name(got, results))
    plan, _ = as_begun(plan, results, which)
    try:
        result = run_plan(
            plan,
            results,
            str(which.run_id),
            RunOptions(watch=watch, allowed_keys=allowed, reproduces=link_of(got)),
        )
    except ProviderRefusal as error:
        raise ProviderRefusal(
            f"cannot be run{': model gone' if error.no_such_model else ''}. {error}",
            of_one_call=error.of_one_call,
            changes=error.changes,
            no_such_model=error.no_such_model,
        ) from error
    return compared(got, result, results, metric, margin)


def compared(
    got: FetchedRelease, result: FinishedRun, results: Results, metric: str, margin: float = MARGIN
) -> FreshPlay:
    """A published run and one that played it anew, by the test of `compare`.

    Reproduced is what is shown to differ by no more than `margin`, a share of the metric's scale, or of the published
    value where it has none. That a difference is not shown is not enough: few datapoints show nothing.
    """
    run = got.run
    assert run is not None
    found = compare_systems([[run.path], [result.folder.path]], results, metric=metric)
    outcome, said = outcome_of(found.pairs[0], {row["agent"] for row in run.manifest().agents}, metric, margin)
    return FreshPlay(got, result.run_id, found, said, outcome)


def outcome_of(
    pair: SystemComparison, agents: Iterable[str], metric: str = RANKING_METRIC, margin: float = MARGIN
) -> tuple[str, str]:
    """`reproduced`, `drifted` or `undecided`, and why in words: of a run, the base, and of one that played it anew."""
    measure = compared_metric(metric, sorted(agents))
    difference = Difference(pair.difference, pair.stderr, pair.ci_low, pair.ci_high, pair.detectable, pair.groups)
    shown = told(pair.difference, measure, difference)
    low, high = pair.ci_low, pair.ci_high
    ends = [told(end, measure, difference, unit=False) for end in (low, high) if end is not None]
    if ends:
        shown += f" [{', '.join(ends)}]"
    if pair.p is None:
        return "undecided", f"cannot be told: {pair.verdict}"
    if pair.p <= ALPHA:
        flips = len(pair.flips)
        flipped = f"{flips} flipped datapoint{'' if flips == 1 else 's'}"
        return "drifted", f"drifted by {shown}, {flipped}"
    most = margin * (abs(pair.base_value) if measure.bound is None else measure.bound)
    least = told(most, measure, difference)
    if pair.detectable is None or low is None or high is None:
        why = "no difference could have been seen with so few datapoints"
        return "undecided", f"cannot be told: {shown}; {why}"
    if max(-low, high) > most:
        between = f"it lies between {ends[0]} and {'+' if high > 0 else ''}{told(high, measure, difference)}"
        return "undecided", f"cannot be told: {between}, and within {least} would be reproduced"
    return "reproduced", f"reproduced within {least}: {shown}"
