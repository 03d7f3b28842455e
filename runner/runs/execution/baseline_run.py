"""Loads the scores of a baseline: the finished run that a new run is compared with while it is played.

The spec key `until.compare` names the baseline. `nip-run plan --against` loads scores in the same way.
"""

from __future__ import annotations

from runner.base.errors import RunError, SpecError, UsageError
from runner.base.storage.parquet import read_tables
from runner.results.baseline_scores import BaselineScores, datapoint_key, read_baseline, shared_columns
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import fixed_verdicts_of
from runner.results.manifest import PLAYED
from runner.results.tasks import describe_spec_difference
from runner.rollouts.plan import Plan
from runner.runs.finished.reconstruction import played_plan
from runner.spec.assembly import Spec
from runner.spec.origin import DATA

_SCORES_QUERY = (
    "SELECT datapoint_id, sum(correct::INTEGER), count(correct) FROM rollouts GROUP BY datapoint_id ORDER BY 1"
)


def load_baseline(plan: Plan, results: Results, new_run_id: str) -> BaselineScores | None:
    """Return the scores of the run that `until.compare` names; None if the spec does not set it.

    `new_run_id` is the id of the run to play. This run must not be its own baseline.

    Raises:
        UsageError: the named run does not exist, is not finished, or shares no datapoint with the plan.
        RunError: files of the named run are damaged.
    """
    until = plan.spec.experiment.until
    if until is None or until.compare is None:
        return None
    # Prefer scores that were saved: in the folder of the resumed run, of the saved spec or of the downloaded spec.
    spec, folders = plan.spec, [results.run(new_run_id).path]
    if spec.path is not None:
        folders += [spec.path.parent, *([] if spec.fetched is None else [spec.path.parent / DATA])]
    for folder in folders:
        saved = read_baseline(folder)
        if saved is not None and saved.asked == until.compare:
            return saved
    if spec.fetched is not None and not {"until", "until.compare"} & spec.overridden:
        raise UsageError(
            f"until.compare: a downloaded spec may not choose a run of your results ({until.compare!r}); choose the "
            "run yourself with until.compare=RUN, or play all games with until=null"
        )
    try:
        other_run = results.find(until.compare)
    except UsageError as error:
        raise UsageError(f"until.compare: {error}") from None
    other_id = other_run.manifest().run_id
    if other_id == new_run_id:
        raise UsageError(
            f"until.compare: run {other_id} is the run to play; name another run (`nip-run runs` lists them)"
        )
    return load_scores(other_run, plan, f"until.compare: run {other_id}", until.compare)


def finished_spec(run: RunFolder, name: str) -> Spec:
    """Return the spec of a finished benchmark. `name` is the subject of error messages, such as "run pilot".

    Raises:
        UsageError: the run is not finished, or its games are separate runs.
        RunError: the run's files are damaged or have changed since they were written.
    """
    manifest = run.manifest()
    if manifest.has_parts:
        runs = "runs" if manifest.is_tournament else "test runs"
        raise UsageError(f"{name} is {manifest.kind_name}; name one of its {runs} (`nip-run runs -v` lists them)")
    if manifest.status not in PLAYED or not run.table("rollouts").is_file():
        raise UsageError(f"{name} is {manifest.status}; finish it first: nip-run {run.path}")
    try:
        return played_plan(run).spec
    except SpecError as error:
        raise RunError(f"{name}: its saved spec cannot be read: {error.problems[0]}; name another run") from error


def load_scores(other_run: RunFolder, plan: Plan, name: str, name_in_spec: str = "") -> BaselineScores:
    """Return the scores of a finished run on the datapoints that it shares with a plan.

    `name` is the subject of error messages. `name_in_spec` is the value of `until.compare`, if the spec sets it.

    Raises:
        UsageError: the run is not finished, shares no datapoint with the plan, sampled several responses per step
            (trees), or has verdicts that do not come from a verifier's answers.
        RunError: files of the run are damaged.
    """
    other_spec = finished_spec(other_run, name)
    if other_spec.experiment.rollouts.num_responses_per_timestep is not None:
        raise UsageError(f"{name} played trees, whose samples are not independent games; name another run")
    if (reason := fixed_verdicts_of(other_run)) is not None:
        raise UsageError(f"{name} has no verdicts to compare with: {reason}; name another run")
    columns = shared_columns(plan.spec, other_spec)
    rows = read_tables(_SCORES_QUERY, {"rollouts": other_run.intact_table("rollouts")}, {})
    counts_by_id = {id_: (int(right), int(games)) for id_, right, games in rows if games}
    counts_by_key: dict[str, tuple[int, int]] = {}
    for point in other_spec.dataset.datapoints:
        if point.id in counts_by_id:
            key, (right, games) = datapoint_key(point, columns), counts_by_id[point.id]
            earlier_right, earlier_games = counts_by_key.get(key, (0, 0))
            counts_by_key[key] = (earlier_right + right, earlier_games + games)
    scores = BaselineScores(other_run.manifest().run_id, name_in_spec, columns, counts_by_key)
    if all(scores.score(point) is None for point in plan.spec.dataset.datapoints):
        raise UsageError(
            f"{name} shares no datapoint with this spec: {describe_spec_difference(plan.spec, other_spec)}; name a run "
            "on the same dataset"
        )
    return scores
