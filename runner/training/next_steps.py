"""A training run's stages into what comes next, for people."""

from __future__ import annotations

from runner.base.text import escape_controls
from runner.results.folder import RunFolder
from runner.results.manifest import Status
from runner.spec.training_settings import TrainingSettings
from runner.training.plan import part_id, tests_before
from runner.training.stage_log import iteration_folder
from runner.training.stages import (
    DatasetsBuilt,
    GamesPlayed,
    GroupRecord,
    JobEnded,
    Stages,
    Switched,
    TestPlayed,
    TrainingEnded,
    Waited,
)


def next_steps(folder: RunFolder, stages: Stages, training: TrainingSettings) -> list[str]:
    """Where a run that is not finished stands: a line, or one for each model group that is trained or waited for."""
    iteration = len(stages.all(Switched))
    test, games = (folder.beside(part_id(folder.run_id, iteration, kind)) for kind in ("benchmark", "training"))
    is_tested = stages.last(TestPlayed, iteration) is not None or _is_done(test)
    if iteration == training.iterations:
        return [
            "its end" if is_tested or not tests_before(training, iteration) else f"the last test{_standing_of(test)}"
        ]
    if training.rerun_tests is not None:
        return [f"the test before iteration {iteration}{_standing_of(test)}"]
    # A run can be stopped between the end of its games and the line that says so.
    if stages.last(GamesPlayed, iteration) is None and not _is_done(games):
        return [f"iteration {iteration}: its games{_standing_of(games)}"]
    built = stages.last(DatasetsBuilt, iteration)
    if built is None:
        is_next = tests_before(training, iteration) and not is_tested
        return [f"iteration {iteration}: its {f'test{_standing_of(test)}' if is_next else 'datasets'}"]
    return [
        f"iteration {iteration}: {group}: {_standing(folder, stages.of_group(GroupRecord, iteration, group), group)}"
        for group, report in built.groups.items()
        if report.examples >= training.min_examples
    ] or [f"iteration {iteration}: no group is trained, for lack of examples"]


def _is_done(part: RunFolder) -> bool:
    return part.manifest_path.is_file() and part.manifest().status == Status.DONE


def _standing_of(part: RunFolder) -> str:
    """How a part of a training run stands, in brackets; nothing where it has not begun."""
    return f" ({part.run_id}, {part.manifest().status})" if part.manifest_path.is_file() else ""


def _standing(folder: RunFolder, records: list[GroupRecord], group: str) -> str:
    """How one group's training stands in its iteration."""
    if not records:
        return "its training is next, or goes on"
    last = records[-1]
    if isinstance(last, TrainingEnded):
        return f"trained: {escape_controls(last.model)}"
    if isinstance(last, JobEnded):
        return f"training {last.state}: {escape_controls(last.message)}\n  the same command begins a new job"
    if isinstance(last, Waited):
        guide = iteration_folder(folder, last.iteration) / f"{group}.job" / "README.txt"
        return f"waits for a model that you train ({guide}); go on with --set-model {group}=NAME"
    return "its training goes on, or did when the run stopped"
