"""A got run replayed from its own journal, and whether what was published follows from it; or played anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from runner.comparison.compare import Compared, Comparison, compare_systems
from runner.comparison.measures import measure_named
from runner.comparison.words import told
from runner.documents.renames import SWEEP
from runner.errors import ProviderRefusal, ReleaseError, UsageError
from runner.models.keys import KeyUse
from runner.registry.differences import by_earlier, different_metrics, recomputed_by
from runner.registry.fetched import Got, get, is_got, opened
from runner.registry.missing_rows import lacks_rows, what_is_needed
from runner.registry.recompute import check_claims
from runner.registry.rows import different_from_published
from runner.registry.verify import wrong_files
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.results import Results
from runner.rollouts.plan import Plan
from runner.runs.accounting import Watch
from runner.runs.as_begun import as_begun
from runner.runs.reconstruct import Reconstructor, played_plan
from runner.runs.result import RunResult
from runner.runs.run import RunOptions
from runner.runs.which import ReplayOf, WhichRun
from runner.spec.experiment import LONGEST_RUN_ID
from runner.spec.load import load_spec
from runner.statistics.differences import Difference
from runner.statistics.paired import ALPHA
from runner.storage.atomic import read_json
from runner.text import comma_join, did_you_mean
from runner.training.any_run import run_plan
from runner.training.plan import MAX_PART_SUFFIX, AnyPlan, plan_of
from runner.transports.registry import Entry, Registry
from runner.version import __version__

MARGIN = 0.1
"""A difference of at most this share of a metric's scale counts as none, unless `--margin` says otherwise."""

PUBLISHED = "published"
"""Where a results folder keeps what `reproduce` gets: OWNER/NAME/VERSION below it."""


@dataclass(frozen=True)
class Replayed:
    """What became of a published run that was replayed from its journal."""

    got: Got
    run_id: str
    """Of the run in the results folder that replays it."""
    different: tuple[str, ...]
    """What does not follow from the transcripts, each by name; none: all of it follows."""
    otherwise: tuple[str, ...] = ()
    """What an earlier version told otherwise, or did not compute."""
    by_earlier: bool = False

    @property
    def recorded_version(self) -> str:
        """Which nip-run played it."""
        return str(self.got.release.facts.get("version"))

    @property
    def versions(self) -> str:
        """With which it was recomputed, and which one recorded it."""
        assert self.got.run is not None
        return recomputed_by(self.got.run.manifest())

    @property
    def same_version(self) -> bool:
        return self.recorded_version == __version__ and not self.by_earlier


def got_for(registry: Registry, entry: Entry, results: Results) -> Got:
    """A release, got into the results folder, or as it was got there before. Raises as `get`."""
    reference = entry.reference
    folder = results.path / PUBLISHED / reference.owner / reference.name / str(reference.version)
    if is_got(folder):
        got = opened(folder)
        if got.sha256 != entry.sha256:
            raise ReleaseError(f"{folder} holds another release of this name; remove it, and get it again")
        return got
    return get(registry, reference, folder)


def replayed(got: Got, results: Results, watch: Watch | None = None) -> Replayed:
    """Play a got run from its own journal as a run of its own, and compare all that was published with it.

    Raises:
        UsageError: it is a training run.
        ReleaseError: a file of it is not as it was published.
        RunError, SpecError: it plans more than it holds, or its files cannot be read.
    """
    run = _sound(got)
    plan = played_plan(run)
    with closing(Reconstructor(run, plan)) as journal:
        check_claims(run, plan, len(journal))
    source = ReplayOf(run.path)
    name = results.name_for(_suffixed(run.run_id, "-reproduced"), again=True)
    which = WhichRun(run_id=name, replay=source)
    mine, _ = as_begun(plan_of(load_spec(run.spec)), results, which)
    result = run_plan(mine, results, name, RunOptions(replay=source, watch=watch, reproduces=_link(got)))
    manifest = run.manifest()
    metrics = different_metrics(read_json(run.metrics), result.metrics, manifest)
    wrong = [
        *metrics.wrong,
        *different_from_published(run, result.folder),
        *_different_counts(run, result),
    ]
    return Replayed(got, result.run_id, tuple(wrong), metrics.otherwise, by_earlier(manifest))


def _sound(got: Got) -> RunFolder:
    """The run of a release whose files are as published.

    Raises:
        UsageError: it is a training run, or did not come to its end.
        ReleaseError: some are not; which.
    """
    wrong = list(wrong_files(got, data_only=True))
    if wrong:
        raise ReleaseError("\n".join([*wrong, "get it again into another folder"]))
    run = got.run
    if run is None:
        raise UsageError(f"{got.release.reference} is a {got.release.kind}; only a run can be reproduced")
    manifest = run.manifest()
    if manifest.is_training_run:
        parts = comma_join(str(link.release) for link in got.release.links if link.role == "part")
        raise UsageError(f"{run.run_id} is a training run, whose games are releases of their own: {parts or 'none'}")
    if manifest.status not in PLAYED:
        raise UsageError(f"{run.run_id} is {manifest.status}, and has no numbers to reproduce")
    if lacks_rows(got):
        raise UsageError(f"{got.release.reference}: {what_is_needed(got)}")
    return run


def _suffixed(run_id: str, suffix: str) -> str:
    """A name for a run that belongs to another, short enough to be numbered."""
    return run_id[: LONGEST_RUN_ID - len(suffix) - MAX_PART_SUFFIX] + suffix


def _link(got: Got) -> Mapping[str, str]:
    return {"release": str(got.release.reference), "sha256": got.sha256}


_COUNTED = ("rollouts", "completions", "prompt_tokens", "completion_tokens", "cached_tokens", "transport_failed")


def _different_counts(run: RunFolder, result: RunResult) -> Iterator[str]:
    published = run.manifest()
    for name in _COUNTED:
        ours, theirs = getattr(published, name), getattr(result.manifest, name)
        if ours is not None and ours != theirs:
            yield f"{name}: published {ours!r}, recomputed {theirs!r}"


@dataclass(frozen=True)
class Fresh:
    """A published run and one that played it anew."""

    got: Got
    run_id: str
    comparison: Comparison
    verdict: str
    """In words: reproduced, drifted by how much, or that it cannot be told."""
    outcome: str
    """`reproduced`, `drifted` or `undecided`."""

    @property
    def compared(self) -> Compared:
        return self.comparison.pairs[0]


def fresh_plan(got: Got, overrides: Sequence[str]) -> AnyPlan:
    """The plan that plays a got run anew, as it was published.

    Raises:
        UsageError: it cannot be, or an override changes what is played.
        SpecError: with everything that is wrong.
    """
    run = _sound(got)
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


def fresh_name(got: Got, results: Results) -> str:
    """The id of the run that plays a got run anew: of one that was begun, its own."""
    run = got.run
    assert run is not None
    return results.name_for(_suffixed(run.run_id, "-fresh"), again=True)


def played_anew(
    got: Got,
    plan: AnyPlan,
    results: Results,
    allowed: frozenset[KeyUse],
    *,
    metric: str = "accuracy",
    margin: float = MARGIN,
    watch: Watch | None = None,
    name: Callable[[Got, Results], str] = fresh_name,
) -> Fresh:
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
            RunOptions(watch=watch, allowed_keys=allowed, reproduces=_link(got)),
        )
    except ProviderRefusal as error:
        raise ProviderRefusal(
            f"cannot be run{': model gone' if error.no_such_model else ''}. {error}",
            of_one_call=error.of_one_call,
            changes=error.changes,
            no_such_model=error.no_such_model,
        ) from error
    return compared(got, result, results, metric, margin)


def compared(got: Got, result: RunResult, results: Results, metric: str, margin: float = MARGIN) -> Fresh:
    """A published run and one that played it anew, by the test of `compare`.

    Reproduced is what is shown to differ by no more than `margin`, a share of the metric's scale, or of the published
    value where it has none. That a difference is not shown is not enough: few datapoints show nothing.
    """
    run = got.run
    assert run is not None
    found = compare_systems([[run.path], [result.folder.path]], results, metric=metric)
    pair = found.pairs[0]
    measure = measure_named(metric, sorted({row["agent"] for row in run.manifest().agents}))
    difference = Difference(pair.difference, pair.stderr, pair.ci_low, pair.ci_high, pair.detectable, pair.groups)
    shown = told(pair.difference, measure, difference)
    low, high = pair.ci_low, pair.ci_high
    ends = [told(end, measure, difference, unit=False) for end in (low, high) if end is not None]
    if ends:
        shown += f" [{', '.join(ends)}]"
    if pair.p is None:
        return Fresh(got, result.run_id, found, f"cannot be told: {pair.verdict}", "undecided")
    if pair.p <= ALPHA:
        flips = len(pair.flips)
        flipped = f"{flips} flipped datapoint{'' if flips == 1 else 's'}"
        return Fresh(got, result.run_id, found, f"drifted by {shown}, {flipped}", "drifted")
    most = margin * (abs(pair.base_value) if measure.bound is None else measure.bound)
    least = told(most, measure, difference)
    if pair.detectable is None or low is None or high is None:
        why = "no difference could have been seen with so few datapoints"
        return Fresh(got, result.run_id, found, f"cannot be told: {shown}; {why}", "undecided")
    if max(-low, high) > most:
        between = f"it lies between {ends[0]} and {'+' if high > 0 else ''}{told(high, measure, difference)}"
        said = f"cannot be told: {between}, and within {least} would be reproduced"
        return Fresh(got, result.run_id, found, said, "undecided")
    return Fresh(got, result.run_id, found, f"reproduced within {least}: {shown}", "reproduced")


def facts_of(found: Replayed) -> Mapping[str, Any]:
    """What a machine is told of a replay."""
    return {
        "release": str(found.got.release.reference),
        "run_id": found.run_id,
        "follows": not found.different,
        "different": list(found.different),
        "otherwise": list(found.otherwise),
        "version": found.recorded_version,
        "nip_run": __version__,
        "same_version": found.same_version,
    }
