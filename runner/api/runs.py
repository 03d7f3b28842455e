"""The public functions that play: a run, the points of a sweep side by side, and a run that was played."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.api.arguments import loaded, results_at
from runner.api.display import RunResult, Transcript
from runner.base.errors import UsageError, Waiting
from runner.models.api_keys import all_allowed
from runner.results.leaderboard.results_folder import Results
from runner.runs.execution.accounting import Progress
from runner.runs.execution.shard_consistency import in_shard, parse_shard
from runner.runs.finished import result as played
from runner.runs.finished.selection import ReplayOf, WhichRun
from runner.runs.session.chat_format_lock import with_original_formats
from runner.runs.session.run import RunOptions
from runner.spec.loader import Spec, SpecSource
from runner.training.dispatch import PlannedRun, choose_run_id, run_all, run_spec
from runner.training.plan import AnyPlan, plan_of
from runner.training.sweep_budgets import shared_budgets
from runner.training.trust import check_trust


def run(
    spec: Spec | SpecSource,
    results: str | Path | None = None,
    *,
    run_id: str | None = None,
    again: bool = False,
    replay: played.FinishedRun | str | Path | None = None,
    until_round: int | None = None,
    shard: str | None = None,
    set_model: Mapping[str, str] | None = None,
    allow_keys: str | Sequence[str] = (),
    allow_commands: str | Sequence[str] = (),
    allow_hosts: str | Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
    on_rollout: Callable[[Transcript], None] | None = None,
) -> RunResult:
    """Run a spec, going on where an earlier process stopped.

    `results` is by default what `NIP_RUN_RESULTS` names, else `results`. A finished run is shown and not played again;
    `again` plays it again, as a run of its own. `replay` plays the spec with the answers of another run (its result, id
    or folder), all of them or those before `until_round`. `shard`, such as "3/8", plays that part of the run; `merge`
    makes one run of all parts. `set_model` names the models that the user has trained, by group. `allow_keys` are the
    pairs `VAR=HOST`, or one, that a spec which came from elsewhere may send; `allow_commands` the programs that it may
    run, and `allow_hosts` the servers that it may ask without a key.

    `on_progress` is called whenever the progress has moved, each time with a `Progress` of its own; `on_rollout` with
    each finished rollout in the order of the plan, those too that an earlier process played. Both are called while
    calls are in flight, which wait for them; what they raise ends the run, and the same call of `run` goes on with it.
    A run that is finished already calls neither: ask its result for `rollouts()` and `transcript(...)`.

        >>> from runner import load_spec, run
        >>> spec = load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "name": "heard"})
        >>> heard = []
        >>> result = run(spec, on_rollout=lambda rollout: heard.append(rollout.outcome))
        >>> heard
        ['decided', 'decided']
        >>> result.metrics["outcomes"]["decided"], result.manifest.cost_usd
        (2, 0.0)

    Raises:
        SpecError: with everything that is wrong, as `problems`; nothing was called.
        UsageError: what was asked is for the other kind of run, or `until_round` without `replay`; or a spec from
            elsewhere wants a key, to ask a server, or to run a program.
        BudgetExhausted: what is left does not fit the budget.
        ProviderRefusal: key, billing, unknown model, refused parameter.
        Interrupted: SIGINT or SIGTERM; run again to go on.
        Waiting: a training run goes on when the models of `groups` were trained by hand.
        RunError: disk, journal, server or leaderboard; the message says what to do.
    """
    folder = results_at(results)
    source = _replayed(replay, until_round, folder)
    options = RunOptions(
        replay=source,
        watch=None if on_progress is None else lambda progress: on_progress(progress.snapshot()),
        on_rollout=None if on_rollout is None else lambda game: on_rollout(Transcript(**vars(game))),
        manual_models=set_model or {},
        allowed_keys=all_allowed(allow_keys, allow_commands, allow_hosts),
    )
    meant = loaded(spec, folder)
    if shard is not None:
        part = parse_shard(shard, again=again, replay=source, set_model=set_model)
        meant = in_shard(plan_of(meant), part).spec
    return RunResult.of(run_spec(meant, folder, options, WhichRun(run_id, again, source)))


def merge(
    run: str | Path, results: str | Path | None = None, *, parts: Sequence[played.FinishedRun | str | Path] = ()
) -> RunResult:
    """Make one run of its shards, as if one process had played it; one that was merged already is shown.

    `run` is the run's id or folder. Its parts are those that stand in its folder, and `parts`, which stand elsewhere.
    Nobody is asked, and no key is needed.

        >>> from runner import load_spec, merge, run
        >>> spec = load_spec("specs/quickstart.yaml", {"dataset.limit": 4, "name": "in-shards"})
        >>> played = [run(spec, shard=f"{number}/2") for number in (1, 2)]
        >>> [part.accuracy.n for part in played], merge(played[0].run_id.partition("/")[0]).accuracy.n
        ([2, 2], 4)

    Raises:
        MergeError: a `RunError` with all that is wrong with the parts as `problems`: missing, there twice, of another
            run, unfinished, edited.
        RunError, Interrupted: as `run`.
    """
    # Here and not above: a run that is played whole needs none of it.
    from runner.results.folder import RunFolder, split_part
    from runner.runs.shards.merge import merge as merged

    folder = results_at(results)
    others = [part.folder if isinstance(part, played.FinishedRun) else RunFolder(Path(part)) for part in parts]
    given = Path(run)
    run_id = given.resolve().name if given.is_dir() else split_part(str(run))[0]
    return RunResult.of(merged(run_id, folder, others))


def _replayed(
    replay: played.FinishedRun | str | Path | None, until_round: int | None, results: Results
) -> ReplayOf | None:
    if replay is None:
        if until_round is not None:
            raise UsageError("until_round needs replay: the run whose answers are taken before that round")
        return None
    folder = replay.folder if isinstance(replay, played.FinishedRun) else results.find(str(replay))
    return ReplayOf(folder.path, until_round)


def run_sweep(
    specs: Sequence[Spec],
    results: str | Path | None = None,
    *,
    again: bool = False,
    allow_keys: str | Sequence[str] = (),
    allow_commands: str | Sequence[str] = (),
    allow_hosts: str | Sequence[str] = (),
    on_progress: Callable[[Spec, Progress], None] | None = None,
) -> list[RunResult]:
    """Run the points of a sweep side by side, under one budget and one set of limits; their results in order.

    What stops one point for good stops all; the same call goes on where they stopped. `rollouts.concurrency` is that of
    all points together. `on_progress` is called with the spec of the point that has moved. All else is as in `run`;
    training runs are run one after another.

        >>> from runner import load_specs, run_sweep
        >>> specs = load_specs("specs/quickstart.yaml", ["dataset.limit=2", "sweep={seed: [0, 1]}"])
        >>> [result.manifest.seed for result in run_sweep(specs)]
        [0, 1]

    Raises:
        SpecError, UsageError, BudgetExhausted, ProviderRefusal, Interrupted, Waiting, RunError: as `run`, of the point
            that failed first.
    """
    folder = results_at(results)
    points = _points(specs, folder, WhichRun(again=again))
    allowed = all_allowed(allow_keys, allow_commands, allow_hosts)
    for point in points:
        check_trust(point.plan, None, allowed)
    done: list[RunResult] = []
    waiting: list[Waiting] = []

    def ended(place: int, result: played.FinishedRun | Waiting) -> None:
        if isinstance(result, Waiting):
            waiting.append(result)
        else:
            done.append(RunResult.of(replace(result, notes=(*points[place].notes, *result.notes))))

    def watch(spec: Spec) -> Callable[[Progress], None] | None:
        return None if on_progress is None else lambda progress: on_progress(spec, progress.snapshot())

    with shared_budgets([(point.key, point.plan, point.name) for point in points], folder) as budgets:
        runs = [
            PlannedRun(
                point.plan,
                point.name,
                RunOptions(
                    budget=budgets.by_key.get(point.key),
                    locked=point.name in budgets.locked,
                    watch=watch(point.spec),
                    allowed_keys=allowed,
                ),
            )
            for point in points
        ]
        run_all(runs, folder, ended)
    if waiting:
        raise waiting[0]
    return done


@dataclass(frozen=True)
class _Point:
    """A point of a sweep, as it was begun: its plan, the run that it is, and what is to be said of that."""

    spec: Spec
    plan: AnyPlan
    name: str
    notes: Sequence[str]

    @property
    def key(self) -> Hashable:
        """What points have alike that share a budget."""
        return str(self.spec.path), self.spec.experiment.budget


def _points(specs: Sequence[Spec], results: Results, which: WhichRun) -> list[_Point]:
    plans = [plan_of(spec) for spec in specs]
    own = {plan.run_id for plan in plans}
    names: list[str] = []
    points = []
    begun = [with_original_formats(plan, results, which, other_run_ids=own - {plan.run_id}) for plan in plans]
    for spec, (plan, note) in zip(specs, begun, strict=True):
        names.append(choose_run_id(plan, results, which, given=names))
        points.append(_Point(spec, plan, names[-1], [] if note is None else [note]))
    return points


def open_run(run: str | Path, results: str | Path | None = None) -> RunResult:
    """A run that was played, finished or not: by its id, by the start of it, or by its folder.

    `results` is as in `run`.

        >>> from runner import load_spec, open_run, run
        >>> played = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "name": "opened"}))
        >>> open_run("opened").accuracy == played.accuracy
        True

    Raises:
        UsageError: there is none, or the start is that of several.
        RunError: it is damaged, or a newer nip-run wrote it.
    """
    return RunResult.of(played.FinishedRun.opened(results_at(results).find(str(run))))
