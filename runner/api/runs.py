"""The public functions that play, merge, open and rejudge runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.api.arguments import ensure_loaded, open_results
from runner.api.display import RunResult, Transcript
from runner.base.errors import UsageError, Waiting
from runner.models.api_keys import all_allowed
from runner.registry.components.lookup import make_finder
from runner.results.leaderboard.results_folder import Results
from runner.runs.execution.accounting import Progress
from runner.runs.execution.shard_consistency import parse_shard, plan_of_shard
from runner.runs.finished import result as played
from runner.runs.finished.selection import ReplayOf, RunSelection
from runner.runs.planning.rejudging import WhichVerdicts, plan_rejudging
from runner.runs.session.original_settings import plans_with_original_settings
from runner.runs.session.run import RunOptions
from runner.spec.loader import Overrides, Spec, SpecSource
from runner.training.dispatch import choose_run_id, run_all, run_spec
from runner.training.plan import plan_of
from runner.training.sweep_budgets import PlannedRun
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
    """Run a spec, and return the result. A run that an earlier process began is resumed.

    `results` is the results folder: by default the environment variable `NIP_RUN_RESULTS`, otherwise `results`. If the
    run is finished, nothing is played, and its result is returned; `again` plays a separate run. `replay` plays the
    spec with the answers of another run (a result, id or folder): all answers, or those before round `until_round`.
    `shard`, such as "3/8", plays only this part of the run; `merge` makes one run of all parts. `set_model` has, for
    each model group, the name of the model that you trained.

    Three arguments give permissions to a downloaded spec: `allow_keys` lists the API keys that the spec may send, as
    `VAR=HOST`; `allow_commands` the programs that it may run; `allow_hosts` the servers that it may call without a key.

    `on_progress` is called with a new `Progress` whenever the progress changes. `on_rollout` is called with each
    finished rollout in the order of the plan, including rollouts of an earlier process. While these functions run, the
    run waits, although calls to models may be under way. If they raise an error, the run ends; call `run` with the same
    arguments to resume. They are not called if the run is already finished: use `rollouts()` and `transcript(...)` of
    the result.

        >>> from runner import load_spec, run
        >>> spec = load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "name": "callbacks"})
        >>> outcomes = []
        >>> result = run(spec, on_rollout=lambda rollout: outcomes.append(rollout.outcome))
        >>> outcomes
        ['decided', 'decided']
        >>> result.metrics["outcomes"]["decided"], result.manifest.cost_usd
        (2, 0.0)

    Raises:
        SpecError: the spec is invalid; `problems` lists all mistakes, and no model was called.
        UsageError: an argument does not apply to this kind of run, `until_round` is given without `replay`, or a
            downloaded spec needs permission for a key, a server or a program.
        BudgetExhausted: the remaining calls exceed the budget.
        ProviderRefusal: the provider refused the API key, the billing, the model or a parameter.
        Interrupted: the process received SIGINT or SIGTERM; call `run` again to resume.
        Waiting: a training run waits for models that you train by hand; `groups` has their model groups.
        RunError: the disk, journal, server or leaderboard has an error; the message says what to do.
    """
    folder = open_results(results)
    source = _replay_source(replay, until_round, folder)
    options = RunOptions(
        replay=source,
        on_progress=None if on_progress is None else lambda progress: on_progress(progress.snapshot()),
        on_rollout=None if on_rollout is None else lambda game: on_rollout(Transcript(**vars(game))),
        manual_models=set_model or {},
        allowed_keys=all_allowed(allow_keys, allow_commands, allow_hosts),
    )
    loaded_spec = ensure_loaded(spec, folder)
    if shard is not None:
        planned_shard = parse_shard(shard, again=again, replay=source, set_model=set_model)
        loaded_spec = plan_of_shard(plan_of(loaded_spec), planned_shard).spec
    return RunResult.of(run_spec(loaded_spec, folder, options, RunSelection(run_id, again, source)))


def merge(
    run: str | Path, results: str | Path | None = None, *, parts: Sequence[played.FinishedRun | str | Path] = ()
) -> RunResult:
    """Merge the shards of a run into one run, as if one process had played it; return a merged run unchanged.

    `run` is the run's id or folder. The shards in this folder are merged with `parts`, which are shards in other
    folders. No model is called, and no API key is needed.

        >>> from runner import load_spec, merge, run
        >>> spec = load_spec("specs/quickstart.yaml", {"dataset.limit": 4, "name": "in-shards"})
        >>> parts = [run(spec, shard=f"{number}/2") for number in (1, 2)]
        >>> [part.accuracy.n for part in parts], merge(parts[0].run_id.partition("/")[0]).accuracy.n
        ([2, 2], 4)

    Raises:
        MergeError: shards are missing, duplicate, unfinished, edited or of another run; `problems` lists all mistakes.
        RunError, Interrupted: as `run`.
    """
    from runner.results.folder import RunFolder, split_part
    from runner.runs.shards.merge import merge as merge_shards

    folder = open_results(results)
    part_folders = [part.folder if isinstance(part, played.FinishedRun) else RunFolder(Path(part)) for part in parts]
    path = Path(run)
    run_id = path.resolve().name if path.is_dir() else split_part(str(run))[0]
    return RunResult.of(merge_shards(run_id, folder, part_folders))


def _replay_source(
    replay: played.FinishedRun | str | Path | None, until_round: int | None, results: Results
) -> ReplayOf | None:
    if replay is None:
        if until_round is not None:
            raise UsageError(
                "until_round needs replay, the run whose answers are used before that round; pass replay=RUN, or omit "
                "until_round"
            )
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
    """Run the points of a sweep at the same time, with a shared budget and shared limits; return the results in order.

    If one point ends with an error, all points stop; call `run_sweep` with the same arguments to resume.
    `rollouts.concurrency` limits all points together. `on_progress` is called with the spec of the point that
    progressed, and its progress. All other arguments are as in `run`. Training runs are run one after another.

        >>> from runner import load_specs, run_sweep
        >>> specs = load_specs("specs/quickstart.yaml", ["dataset.limit=2", "sweep={seed: [0, 1]}"])
        >>> [result.manifest.seed for result in run_sweep(specs)]
        [0, 1]

    Raises:
        SpecError, UsageError, BudgetExhausted, ProviderRefusal, Interrupted, Waiting, RunError: as in `run`, for the
            first point that fails.
    """
    folder, selection = open_results(results), RunSelection(again=again)
    plans, notes = plans_with_original_settings([plan_of(spec) for spec in specs], folder, selection)
    allowed = all_allowed(allow_keys, allow_commands, allow_hosts)
    run_ids: list[str] = []
    for plan in plans:
        run_ids.append(choose_run_id(plan, folder, selection, taken_ids=run_ids))
        check_trust(plan, None, allowed)
    finished: list[RunResult] = []
    waiting: list[Waiting] = []

    def on_point_end(index: int, result: played.FinishedRun | Waiting) -> None:
        if isinstance(result, Waiting):
            waiting.append(result)
        else:
            finished.append(RunResult.of(replace(result, notes=(*notes[index], *result.notes))))

    def progress_callback(spec: Spec) -> Callable[[Progress], None] | None:
        return None if on_progress is None else lambda progress: on_progress(spec, progress.snapshot())

    runs = [
        PlannedRun(
            plan,
            run_id,
            RunOptions(on_progress=progress_callback(spec), allowed_keys=allowed),
            budget_key=(str(spec.path), spec.experiment.budget),
        )
        for spec, plan, run_id in zip(specs, plans, run_ids, strict=True)
    ]
    run_all(runs, folder, on_point_end)
    if waiting:
        raise waiting[0]
    return finished


def open_run(run: str | Path, results: str | Path | None = None) -> RunResult:
    """Open a run, finished or not. `run` is its id, a unique beginning of its id, or its folder.

    `results` is as in `run`.

        >>> from runner import load_spec, open_run, run
        >>> result = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "name": "opened"}))
        >>> open_run("opened").accuracy == result.accuracy
        True

    Raises:
        UsageError: there is no such run, or several ids have this beginning.
        RunError: the run is damaged, or a newer version of nip-run wrote it.
    """
    return RunResult.of(played.FinishedRun.from_folder(open_results(results).find(str(run))))


def rejudge(
    run: played.FinishedRun | str | Path,
    overrides: Overrides = (),
    *,
    verdict: WhichVerdicts = "last",
    results: str | Path | None = None,
    again: bool = False,
    allow_keys: str | Sequence[str] = (),
    allow_commands: str | Sequence[str] = (),
    allow_hosts: str | Sequence[str] = (),
) -> list[RunResult]:
    """Judge the debates of a run again with another judge, and return the new runs. Only the judge's model is called.

    `run` is a run's result, id or folder. `overrides` configure the judge: its model, templates, decision format,
    `votes`, or a sweep over any of these, which makes a run for each point; the results are in the order of the points.
    `verdict` selects whether the judge decides only at the end of each debate, or at every turn that allows a decision.
    All other arguments are as in `run`.

        >>> from runner import load_spec, rejudge, run
        >>> debated = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2}))
        >>> (judged,) = rejudge(debated, {"votes": 3})
        >>> judged.manifest.rejudge_of.run_id == debated.run_id, judged.metrics["outcomes"]["decided"]
        (True, 2)

    Raises:
        SpecError, UsageError, BudgetExhausted, ProviderRefusal, Interrupted, RunError: as in `run`; also if an override
            would change the debates; the message names this override.
    """
    results_folder = open_results(results)
    folder = run.folder if isinstance(run, played.FinishedRun) else results_folder.find(str(run))
    plans = plan_rejudging(folder, overrides, verdict, results_folder.path_of, make_finder())
    specs = [plan.spec for plan in plans]
    return run_sweep(
        specs, results, again=again, allow_keys=allow_keys, allow_commands=allow_commands, allow_hosts=allow_hosts
    )
