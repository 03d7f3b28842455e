"""Play a fetched run again with calls to models, and test whether the published result still holds.

`nip-run reproduce --fresh` uses this module. The calls are made with the user's own API key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.base.errors import ProviderRefusal, UsageError
from runner.base.text import comma_join, did_you_mean
from runner.documents.renamed_keys import SWEEP
from runner.models.api_keys import KeyUse
from runner.registry.fetched_release import FetchedRelease
from runner.registry.verification.outcome import MARGIN, describe_outcome
from runner.registry.verification.reproducibility import add_suffix, build_link, check_reproducible
from runner.results.comparison.comparison import Comparison, ComparisonOptions, SystemComparison, compare_systems
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Status
from runner.results.metric_definitions import RANKING_METRIC
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import OnProgress
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import RunSelection
from runner.runs.session.original_settings import with_original_settings
from runner.runs.session.run import RunOptions
from runner.spec.loader import load_spec
from runner.training.dispatch import run_plan
from runner.training.plan import AnyPlan, plan_of
from runner.training.sweep_budgets import PlannedRun


@dataclass(frozen=True)
class FreshPlay:
    """A published run, and the run that played it again."""

    fetched: FetchedRelease
    run_id: str
    comparison: Comparison
    verdict: str
    """The outcome as a sentence with the difference, or with the reason why it is undecided."""
    outcome: str
    """`reproduced`, `drifted` or `undecided`."""

    @property
    def pair(self) -> SystemComparison:
        """The comparison of the new run with the published one."""
        return self.comparison.pairs[0]


def fresh_plan(fetched: FetchedRelease, overrides: Sequence[str]) -> AnyPlan:
    """Return the plan that plays a fetched run again. Overrides may change only settings that do not affect the games.

    Raises:
        UsageError: the run cannot be reproduced, or an override changes the games.
        SpecError: the spec has mistakes; the error lists them all.
    """
    run = check_reproducible(fetched)
    published = plan_of(load_spec(run.spec))
    _check_overrides(overrides, published.mutable_keys)
    return plan_of(load_spec(run.spec, list(overrides)))


def _check_overrides(overrides: Sequence[str], allowed_keys: Sequence[str]) -> None:
    """Check that overrides do not change the games: each key must match one of the patterns in `allowed_keys`.

    Raises:
        UsageError: an override changes the games; the message names its key.
    """
    keys = [override.partition("=")[0].lstrip("+~") for override in overrides]
    refused = [key for key in keys if key == SWEEP or not any(_matches(key, pattern) for pattern in allowed_keys)]
    if refused:
        hint = did_you_mean(refused[0], [pattern.replace("*", "GROUP") for pattern in allowed_keys])
        allowed = comma_join(pattern for pattern in allowed_keys if pattern != SWEEP)
        raise UsageError(
            f"--set {comma_join(refused)} would change the games, so the result could not be compared. You can "
            f"set: {allowed}{hint}"
        )


def _matches(key: str, pattern: str) -> bool:
    """Return whether a dotted key, or a key above it, matches a pattern. In the pattern, `*` matches one name."""
    parts, pattern_parts = key.split("."), pattern.split(".")
    return len(parts) >= len(pattern_parts) and all(
        pattern_part in ("*", part) for part, pattern_part in zip(parts, pattern_parts, strict=False)
    )


def play_again(
    fetched: FetchedRelease,
    plan: AnyPlan,
    results: Results,
    allowed: frozenset[KeyUse],
    *,
    metric: str = RANKING_METRIC,
    margin: float = MARGIN,
    on_progress: OnProgress | None = None,
) -> FreshPlay:
    """Play a fetched run again, and compare the new run, called RUN-fresh, with the published one.

    If the new run was interrupted, the same call continues it.

    Raises:
        ProviderRefusal: the model no longer exists, or the provider refuses for another reason.
        UsageError, BudgetExhausted, Interrupted, RunError: as `run_plan` and `compare_systems`.
    """
    run = fetched.run
    assert run is not None
    assert isinstance(plan, Plan)
    first = results.run(add_suffix(run.run_id, "-fresh"))
    plan, _ = with_original_settings(plan, results, RunSelection(run_id=first.run_id))
    resumes = first.identity() == plan.identity and first.manifest().status != Status.DONE
    name = first.run_id if resumes else results.name_for(first.run_id, again=True)
    options = RunOptions(on_progress=on_progress, allowed_keys=allowed, reproduces=build_link(fetched))
    try:
        result = run_plan(PlannedRun(plan, name, options), results)
    except ProviderRefusal as error:
        raise ProviderRefusal(
            f"the run cannot be played again{': a model no longer exists' if error.no_such_model else ''}. {error}",
            of_one_call=error.of_one_call,
            changes=error.changes,
            no_such_model=error.no_such_model,
        ) from error
    return compare_with_published(fetched, result, results, metric, margin)


def compare_with_published(
    fetched: FetchedRelease, result: FinishedRun, results: Results, metric: str, margin: float = MARGIN
) -> FreshPlay:
    """Compare a published run with the run that played it again, with the test that `nip-run compare` uses.

    The result is reproduced if the confidence interval of the difference is within `margin`, which is a share of the
    metric's scale, or of the published value if the metric has no scale. An insignificant difference is not enough,
    because with few datapoints no difference is significant.
    """
    run = fetched.run
    assert run is not None
    comparison = compare_systems(
        [[run.path], [result.folder.path]], results, ComparisonOptions(metric, tests_one_system=True)
    )
    outcome, verdict = describe_outcome(
        comparison.pairs[0], {row["agent"] for row in run.manifest().agents}, metric, margin
    )
    return FreshPlay(fetched, result.run_id, comparison, verdict, outcome)
