"""The page of a training run: its learning curve, what became of each model, its parts, and where it stands."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from runner.base.storage.log_lines import NOT_BOUND, is_bound_to_run
from runner.models.settings import ModelSettings
from runner.pages.charts.curve import Series, curve
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.html import rendered
from runner.pages.numbers import count, decimal, dollars, interval, took
from runner.pages.report.run import RunPage, shared_facts
from runner.pages.report.run_facts import models
from runner.pages.report.run_problems import of_parts
from runner.pages.report.run_state import why_stopped
from runner.pages.report.training_stages import stages_table
from runner.pages.site import Section
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import used_models
from runner.runs.finished.part_problems import found_in
from runner.runs.finished.reconstruction import saved_plan
from runner.training.stage_log import read_stages
from runner.training.stages import ModelState, Stages, Switched
from runner.training.summary import became_words, come_to, left_out_words, test_name


def training_page(folder: RunFolder, here: Collection[str], *, titled: bool, has_commands: bool = True) -> RunPage:
    """The page of a training run; `here` are the runs that the site has, `titled` as in `shared_facts`.

    Raises:
        RunError, JournalError, SpecError: a file of the run or of a part is gone or damaged.
    """
    manifest, plan = folder.manifest(), saved_plan(folder)
    metrics, stages = come_to(folder, manifest), read_stages(folder.path, folder.identity())
    parts = Results.of(folder).parts_of(folder.run_id)
    facts = {
        **shared_facts(folder, manifest, here, titled=titled, has_commands=has_commands),
        "models": models(plan),
        "headline": _headline(manifest, metrics),
        "state": list(_state(folder, manifest, metrics)),
        "tests": _tests(metrics, here),
        "curve": _curve(folder.run_id, metrics),
        "iterations": _iterations(metrics),
        "lineage": _lineage(plan, stages),
        "stages": stages_table(stages),
        "parts": [_part(part.manifest(), here) for part in parts],
        "troubles": of_parts(found_in(folder, parts)),
    }
    section = Section(f"run/{manifest.run_id}", rendered("training.html", facts))
    return RunPage(folder, manifest, section, metrics=metrics, games=metrics["games"]["rollouts"])


def _headline(manifest: Manifest, metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    tests, games = metrics["tests"], metrics["games"]
    ends = [("First test" if len(tests) > 1 else "Accuracy", tests[0]["accuracy"])] if tests else []
    ends += [("Last test", tests[-1]["accuracy"])] if len(tests) > 1 else []
    shown = [(title, decimal(row["value"]), f"95 %: {interval(row)}" if interval(row) else "") for title, row in ends]
    lasted = took(manifest.started_at, manifest.finished_at)
    return [
        *shown,
        ("Games", count(games["rollouts"]), f"{count(games['completions'])} calls"),
        ("Cost", dollars(games["cost_usd"]), "without the trainers"),
        *([("Time", lasted, "")] if lasted else []),
    ]


def _state(folder: RunFolder, manifest: Manifest, metrics: Mapping[str, Any]) -> Iterator[str]:
    if manifest.status == Status.RUNNING:
        yield "Still going on; what follows is what it has come to so far."
    yield from why_stopped(folder, manifest)
    for line in metrics.get("next", ()):
        yield f"Next in it: {line}"
    if folder.stage_log.is_file() and not is_bound_to_run(folder.stage_log):
        yield f"Its stage log: {NOT_BOUND}."


def _test_names(metrics: Mapping[str, Any]) -> list[str]:
    over = not metrics.get("next")
    return [test_name(test, len(metrics["iterations"]), over=over) for test in metrics["tests"]]


def _tests(metrics: Mapping[str, Any], here: Collection[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "value": decimal(test["accuracy"]["value"]),
            "interval": interval(test["accuracy"]),
            "n": count(test["accuracy"]["n"]),
            "clusters": count(test["accuracy"]["clusters"]),
            "run_id": test["run_id"],
            "is_here": test["run_id"] in here,
        }
        for name, test in zip(_test_names(metrics), metrics["tests"], strict=True)
    ]


def _curve(run_id: str, metrics: Mapping[str, Any]) -> Any:
    """The accuracy on the test by iteration; nothing where only one test was played."""
    if len(metrics["tests"]) < 2:
        return None
    named = zip(_test_names(metrics), metrics["tests"], strict=True)
    points = [(float(test["iteration"]), ChartEstimate.of(name, test["accuracy"])) for name, test in named]
    return curve([Series("test", points)], title="Accuracy on the test by iteration", key=f"learning-{run_id}")


def _iterations(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each group that was trained in an iteration, and why examples were left out."""
    return [
        {
            "iteration": count(row["iteration"]),
            "group": group,
            "examples": count(outcome["examples"]),
            "became": became_words(outcome, row["models"][group]["model"]),
            "left_out": left_out_words(outcome),
        }
        for row in metrics["iterations"]
        for group, outcome in row["outcomes"].items()
    ]


def _lineage(plan: Plan, stages: Stages) -> list[dict[str, Any]]:
    """Of each model group, all trainings behind the model that it has by now, the oldest first."""
    switched = stages.all(Switched)
    now: Mapping[str, ModelState] = switched[-1].models if switched else {}
    return [_group(name, settings, now.get(name)) for name, settings in used_models(plan).items()]


def _group(name: str, settings: ModelSettings, now: ModelState | None) -> dict[str, Any]:
    steps: Sequence[Mapping[str, Any]] = now["lineage"] if now is not None else [vars(one) for one in settings.lineage]
    base = now["base_model"] if now is not None else settings.base_model or settings.name
    return {
        "group": name,
        "base": base,
        "model": now["model"] if now else settings.name,
        "steps": list(map(_step, steps)),
    }


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    about = [f"{step['run_id']}, iteration {step['iteration']}"]
    about += [f"{title} {step[name]}" for name, title in (("job", "job"), ("release", "release")) if step.get(name)]
    return {
        "model": step["model"],
        "from": step["from_model"],
        "method": {"sft": "supervised", "dpo": "by preferences"}.get(step["method"], step["method"]),
        "dataset": step["dataset_sha256"],
        "about": ", ".join(about),
    }


def _part(manifest: Manifest, here: Collection[str]) -> dict[str, Any]:
    return {
        "run_id": manifest.run_id,
        "is_here": manifest.run_id in here,
        "what": f"{'games' if manifest.kind == 'training' else 'test'} of iteration {manifest.iteration}",
        "status": str(manifest.status),
        "games": count(manifest.rollouts),
        "calls": count(manifest.completions),
        "cost": dollars(manifest.own_cost_usd) if manifest.rollouts is not None else "",
    }
