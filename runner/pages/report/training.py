"""The page of a training run: the learning curve, models, parts and state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from markupsafe import Markup

from runner.base.storage.log_lines import NOT_BOUND, is_log_bound_to_run
from runner.base.text import counted
from runner.pages.charts.curve import Series, curve
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.styles import ChartFrame
from runner.pages.html import render_template
from runner.pages.numbers import count, decimal, dollars, elapsed, interval
from runner.pages.report.run import RunFacts, RunPage
from runner.pages.report.run_facts import agent_models
from runner.pages.report.run_problems import problem_views
from runner.pages.report.run_state import why_stopped
from runner.pages.site import Section
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.rollouts.plan import Plan, used_models
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.stored_problems import collect_problems
from runner.training.stage_log import read_stages
from runner.training.stages import (
    DatasetsBuilt,
    GamesPlayed,
    JobEnded,
    JobNoted,
    JobWaited,
    ModelState,
    ModelSwitch,
    StageRecord,
    Stages,
    TestPlayed,
    TrainingEnded,
)
from runner.training.summary import describe_left_out, describe_outcome, read_summary, test_name


class IterationRow(NamedTuple):
    """The result of an iteration for a model group, and the reasons for omitted examples."""

    iteration: int
    group: str
    examples: int
    outcome: str
    """The group's new model, or why the group kept its model."""
    omitted: str


class GroupLineage(NamedTuple):
    """The base model of a model group, and the steps that trained it, oldest first."""

    group: str
    base: str
    steps: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrainingView:
    """The content of `training.html`."""

    run: RunFacts
    here: Collection[str]
    """Ids of the runs on the site."""
    tests: Sequence[tuple[str, Mapping[str, Any]]]
    curve: Markup | None
    iterations: Sequence[IterationRow]
    lineage: Sequence[GroupLineage]
    stages: Sequence[tuple[int, str, str]]
    parts: Sequence[Manifest]


def training_page(folder: RunFolder, here: Collection[str], *, titled: bool, has_commands: bool = True) -> RunPage:
    """Return the page of a training run; `here` has the ids of the runs on the site, `titled` is `RunFacts.is_titled`.

    Raises:
        RunError, JournalError, SpecError: a file of the run or of a part is missing or damaged.
    """
    manifest, plan = folder.manifest(), saved_plan(folder)
    metrics, stages = read_summary(folder, manifest), read_stages(folder.path, folder.identity())
    parts = Results.of(folder).parts_of(folder.run_id)
    names = _test_names(metrics)
    run = replace(
        RunFacts.from_manifest(folder, here, titled=titled, has_commands=has_commands),
        state=list(_state(folder, manifest, metrics)),
        headline=_headline(manifest, metrics),
        problems=problem_views(collect_problems(folder, parts)),
        models=agent_models(plan),
    )
    view = TrainingView(
        run=run,
        here=here,
        tests=list(zip(names, metrics["tests"], strict=True)),
        curve=_curve(folder.run_id, names, metrics["tests"]),
        iterations=_iterations(metrics),
        lineage=_lineage(plan, stages),
        stages=stage_rows(stages),
        parts=[part.manifest() for part in parts],
    )
    section = Section(f"run/{manifest.run_id}", render_template("training.html", view))
    return RunPage(folder, manifest, section, metrics=metrics, games=metrics["games"]["rollouts"])


def _headline(manifest: Manifest, metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    tests, games = metrics["tests"], metrics["games"]
    accuracies = [("First test" if len(tests) > 1 else "Accuracy", tests[0]["accuracy"])] if tests else []
    accuracies += [("Last test", tests[-1]["accuracy"])] if len(tests) > 1 else []
    entries = [
        (title, decimal(row["value"]), f"95 %: {interval(row)}" if interval(row) else "") for title, row in accuracies
    ]
    duration = elapsed(manifest.started_at, manifest.finished_at)
    return [
        *entries,
        ("Games", count(games["rollouts"]), f"{count(games['completions'])} calls"),
        ("Cost", dollars(games["cost_usd"]), "without the trainers"),
        *([("Time", duration, "")] if duration else []),
    ]


def _state(folder: RunFolder, manifest: Manifest, metrics: Mapping[str, Any]) -> Iterator[str]:
    if manifest.status == Status.RUNNING:
        yield "The training run is still running; the page shows the results so far."
    yield from why_stopped(folder, manifest)
    for line in metrics.get("next", ()):
        yield f"Next step: {line}"
    if folder.stage_log.is_file() and not is_log_bound_to_run(folder.stage_log):
        yield f"The run's stage log: {NOT_BOUND}."


def _test_names(metrics: Mapping[str, Any]) -> list[str]:
    is_done = not metrics.get("next")
    return [test_name(test, len(metrics["iterations"]), over=is_done) for test in metrics["tests"]]


def _curve(run_id: str, names: Sequence[str], tests: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Draw the accuracy of tests by iteration; None if fewer than two tests were played."""
    if len(tests) < 2:
        return None
    points = [
        (float(test["iteration"]), ChartEstimate.of(name, test["accuracy"]))
        for name, test in zip(names, tests, strict=True)
    ]
    frame = ChartFrame("Accuracy on the test by iteration", key=f"learning-{run_id}")
    return curve([Series("test", points)], frame, domain=(0.0, 1.0), note="mean and 95 % interval")


def _iterations(metrics: Mapping[str, Any]) -> list[IterationRow]:
    return [
        IterationRow(
            row["iteration"],
            group,
            outcome["examples"],
            describe_outcome(outcome, row["models"][group]["model"]),
            describe_left_out(outcome),
        )
        for row in metrics["iterations"]
        for group, outcome in row["outcomes"].items()
    ]


def _lineage(plan: Plan, stages: Stages) -> list[GroupLineage]:
    """Return, for each group's current model, its base model and the steps that trained it."""
    switched = stages.find_all(ModelSwitch)
    states: Mapping[str, ModelState] = switched[-1].models if switched else {}
    rows = []
    for group, settings in used_models(plan).items():
        state = states.get(group)
        base = state["base_model"] if state else settings.base_model or settings.name
        rows.append(GroupLineage(group, base, state["lineage"] if state else list(map(vars, settings.lineage))))
    return rows


def stage_rows(stages: Stages) -> list[tuple[int, str, str]]:
    """Return the iteration, the model group (or "") and the description of each stage."""
    return [
        (record.iteration, getattr(record, "group", ""), description)
        for record in stages.records
        for description in _descriptions(record)
    ]


def _descriptions(record: StageRecord) -> Iterator[str]:
    match record:
        case TestPlayed():
            yield f"test played: {record.run_id}"
        case GamesPlayed():
            yield f"games played: {record.run_id}"
        case DatasetsBuilt():
            for group, report in record.groups.items():
                reason = f", not written: {report.why_not_written}" if report.why_not_written else ""
                yield f"dataset of {group}: {counted(report.examples, 'example')}, {report.format}{reason}"
        case JobNoted():
            yield f"job of {record.backend} (attempt {record.attempt})"
        case JobWaited():
            yield "waiting for a model that the user trains"
        case JobEnded():
            yield f"job {record.state}: {record.message}"
        case TrainingEnded():
            yield f"trained: {record.model}"
        case ModelSwitch():
            yield "next iteration: " + ", ".join(
                f"{name} plays {state['model']}" for name, state in record.models.items()
            )
