"""A training run's stages into what comes next, for people."""

from __future__ import annotations

from runner.results.folder import RunFolder
from runner.spec.trainers import TrainingSettings
from runner.text import escape_controls
from runner.training.plan import part_id
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
    test = _part(folder, part_id(folder.run_id, iteration, "benchmark"))
    if iteration == training.iterations:
        return [f"the last test{test}"]
    if stages.last(GamesPlayed, iteration) is None:
        games = _part(folder, part_id(folder.run_id, iteration, "training"))
        return [f"iteration {iteration}: its games{games}"]
    built = stages.last(DatasetsBuilt, iteration)
    if built is None:
        tested = stages.last(TestPlayed, iteration) is not None
        return [f"iteration {iteration}: its {'datasets' if tested or not test else f'test{test}'}"]
    return [
        f"iteration {iteration}: {group}: {_standing(folder, stages.of_group(GroupRecord, iteration, group), group)}"
        for group, report in built.groups.items()
        if report.examples >= training.min_examples
    ] or [f"iteration {iteration}: no group is trained, for lack of examples"]


def _part(folder: RunFolder, run_id: str) -> str:
    """How a part of a training run stands, in brackets; nothing where it has not begun."""
    part = folder.beside(run_id)
    return f" ({run_id}, {part.manifest().status})" if part.manifest_path.is_file() else ""


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
        return f"waits for a model that you train ({guide}); resume with --set-model {group}=NAME"
    return "its training goes on, or did when the run stopped"
