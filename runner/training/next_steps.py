"""Describes the next steps of an unfinished training run, for `show` and the pages."""

from __future__ import annotations

from runner.base.text import escape_controls
from runner.results.folder import RunFolder
from runner.results.manifest import Status
from runner.spec.training_settings import TrainingSettings
from runner.training.plan import is_tested_before, part_run_id
from runner.training.stage_log import job_folder
from runner.training.stages import (
    DatasetsBuilt,
    GamesPlayed,
    GroupRecord,
    JobEnded,
    JobWaited,
    ModelSwitch,
    Stages,
    TestPlayed,
    TrainingEnded,
)


def next_steps(folder: RunFolder, stages: Stages, training: TrainingSettings) -> list[str]:
    """Return a line for the next step, or a line for each model group that is being trained."""
    iteration = len(stages.find_all(ModelSwitch))
    test, games = (folder.sibling(part_run_id(folder.run_id, iteration, kind)) for kind in ("benchmark", "training"))
    is_tested = stages.find_last(TestPlayed, iteration) is not None or _is_done(test)
    needs_test = is_tested_before(training, iteration) and not is_tested
    if iteration == training.iterations:
        return [f"the last test{_part_status(test)}" if needs_test else "only the summary is left"]
    if training.rerun_tests is not None:
        return [f"the test before iteration {iteration}{_part_status(test)}"]
    # A run can stop after its games have ended and before the log records this.
    if stages.find_last(GamesPlayed, iteration) is None and not _is_done(games):
        return [f"iteration {iteration}: its games{_part_status(games)}"]
    built = stages.find_last(DatasetsBuilt, iteration)
    if built is None:
        step = f"test{_part_status(test)}" if needs_test else "datasets"
        return [f"iteration {iteration}: its {step}"]
    groups = [group for group, report in built.groups.items() if report.examples >= training.min_examples]
    if not groups:
        return [f"iteration {iteration}: no group has enough examples for training"]
    records = {group: stages.group_records(GroupRecord, iteration, group) for group in groups}
    return [f"iteration {iteration}: {group}: {_training_state(folder, records[group], group)}" for group in groups]


def _is_done(part: RunFolder) -> bool:
    return part.manifest_path.is_file() and part.manifest().status == Status.DONE


def _part_status(part: RunFolder) -> str:
    """Return the id and status of a part of a training run in parentheses, or "" if it has not started."""
    return f" ({part.run_id}, {part.manifest().status})" if part.manifest_path.is_file() else ""


def _training_state(folder: RunFolder, records: list[GroupRecord], group: str) -> str:
    """Return the state of one group's training in its iteration."""
    if not records:
        return "the training is next, or is running"
    last = records[-1]
    if isinstance(last, TrainingEnded):
        return f"trained: {escape_controls(last.model)}"
    if isinstance(last, JobEnded):
        return (
            f"training {last.state}: {escape_controls(last.message)}\n  run the same command again to start a new job"
        )
    if isinstance(last, JobWaited):
        guide = job_folder(folder, last.iteration, group) / "README.txt"
        return f"waits for a model that you train ({guide}); continue with --set-model {group}=NAME"
    return "the training is running, or was running when the run stopped"
