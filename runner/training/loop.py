"""A training run, stage by stage: play, measure, build datasets, fine-tune, switch models, and again.

What each stage did is in a log before the next begins, so that a run that was killed goes on at that stage.
Games have journals of their own, datasets are functions of the games, and a backend begins a job once however often it
is told to; so nothing is paid for twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.errors import RunError, Waiting
from runner.hashing import derived_seed, file_hash, tagged_hash
from runner.models.settings import FineTuneStep, ModelSettings
from runner.results.folder import RunFolder
from runner.spec.load import Spec
from runner.training.backends.base import Backend, FineTuneJob, JobState, JobStatus
from runner.training.backends.connect import check_startable
from runner.training.build_datasets import Report, build_datasets
from runner.training.plan import TrainingPlan, part_id
from runner.training.report import check_part
from runner.training.stage_log import (
    DATASETS,
    ITERATIONS,
    JOB,
    JOB_ENDED,
    PLAYED,
    SWITCHED,
    TESTED,
    TOO_FEW,
    TRAINED,
    WAITED,
    StageLog,
    models_after,
    state_of,
)

log = logging.getLogger("nip_run.training")


Play = Callable[[Spec, str, str, int], RunFolder]
"""Plays a spec as a run of that id, kind and iteration, going on where it stopped; its folder when it is done."""

Connect = Callable[[str, ModelSettings, bool], Backend]
"""A model group's backend, told whether an earlier process has asked the user for the job's model."""


@dataclass
class Loop:
    """One process's work on a training run."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    play: Play
    connect: Connect
    formats: Mapping[str, str]
    """Each trained group's dataset format."""
    switched: Callable[[RunFolder, Mapping[str, Any]], None]
    """Told of an iteration's games and of what became of each group's model."""
    sleep: Callable[[float], None] = time.sleep
    models: dict[str, ModelSettings] = field(init=False)

    def __post_init__(self) -> None:
        self.models = dict(self.plan.spec.experiment.models)

    def run(self) -> None:
        """All iterations, and the tests of the scheme.

        Raises:
            Waiting: a model is to be trained by hand.
            RunError: games, a dataset or a job failed; the message says what to do.
            ProviderRefusal, BudgetExhausted, Interrupted: see `runner.errors`.
        """
        for record in (*self.stages.all(PLAYED), *self.stages.all(TESTED)):
            check_part(self.folder, record)
        if len(self.stages.all(SWITCHED)) < self.plan.training.iterations:
            check_startable(self.plan.training.trainers)
        for iteration in range(self.plan.training.iterations):
            self._iterate(iteration)
        self._test(self.plan.training.iterations)

    def _iterate(self, iteration: int) -> None:
        switched = self.stages.one(SWITCHED, iteration)
        if switched is None:
            self._play(iteration)
            self._test(iteration)
            outcomes = self._train(iteration, self._datasets(iteration))
            states = {group: state_of(self._after(iteration, group, outcome)) for group, outcome in outcomes.items()}
            self.stages.add(SWITCHED, iteration, models=states, outcomes=outcomes)
            switched = self.stages.one(SWITCHED, iteration)
            assert switched is not None
        self.models = models_after(self.models, switched)
        self.switched(self._games(iteration), switched["outcomes"])

    # Games

    def _games(self, iteration: int) -> RunFolder:
        return RunFolder(self.folder.path.with_name(part_id(self.folder.run_id, iteration, "training")))

    def _play(self, iteration: int) -> None:
        if self.stages.one(PLAYED, iteration) is None:
            log.info("iteration %d: playing", iteration)
            spec = self.plan.played(iteration, self.models)
            played = self.play(spec, self._games(iteration).run_id, "training", iteration)
            self.stages.add(PLAYED, iteration, run_id=played.run_id)

    def _test(self, iteration: int) -> None:
        if self.plan.tests_before(iteration) and self.stages.one(TESTED, iteration) is None:
            log.info("iteration %d: measuring", iteration)
            spec = self.plan.tested(self.models)
            tested = self.play(spec, part_id(self.folder.run_id, iteration, "benchmark"), "benchmark", iteration)
            self.stages.add(TESTED, iteration, run_id=tested.run_id)

    # Datasets

    def _datasets(self, iteration: int) -> Mapping[str, Report]:
        """Each group's dataset; built anew where a file is gone, was edited, or is to have another format.

        A file that is edited by a user who trains by hand is theirs: it is kept, and so is its format.

        Raises:
            RunError: what is built anew is not what the log says, so that the games are not those it was built from.
        """
        built = self.stages.one(DATASETS, iteration)
        before: Mapping[str, Report] = {} if built is None else built["groups"]
        formats = self._formats_to_build(iteration, before)
        if not formats:
            return before
        folder = self._datasets_folder(iteration)
        first = 0 if self.plan.training.on_all_previous_rollouts else iteration
        runs = [self._games(earlier) for earlier in range(first, iteration + 1)]
        new = build_datasets(self.plan, iteration, runs, folder, formats)
        for group, report in before.items():
            now = new.get(group, report)
            if report["format"] == now["format"] and report["sha256"] != now["sha256"]:
                raise RunError(
                    f"{folder / report['file']} cannot be built again as it was; were the games of iteration "
                    f"{iteration} edited? Restore them, or begin anew with --again"
                )
        reports = {group: new.get(group) or before[group] for group in self.formats}
        self.stages.add(DATASETS, iteration, groups=reports)
        return reports

    def _formats_to_build(self, iteration: int, before: Mapping[str, Report]) -> dict[str, str]:
        """The format of each group's file that is to be built; what a model was trained on is left as it is.

        A job that goes on keeps the format that it was begun with, as long as its backend is the same.
        """
        formats = {}
        for group, chosen in self.formats.items():
            report = before.get(group)
            if report is None:
                formats[group] = chosen
            elif self.stages.one(TRAINED, iteration, group=group) is None:
                this = {"group": group, "attempt": self.attempt(iteration, group), "backend": self.backend_of(group)}
                begun = self.stages.one(JOB, iteration, **this)
                format_ = chosen if begun is None else report["format"]
                if not self._is_there(iteration, group, report, format_):
                    formats[group] = format_
        return formats

    def _is_there(self, iteration: int, group: str, report: Report, format_: str) -> bool:
        path = self._datasets_folder(iteration) / report["file"]
        if self.edited(group, path, report):
            return True
        if report["written"] and path.is_file() and file_hash(path) != report["sha256"]:
            log.warning("iteration %d: %s was edited; it is built again from the games", iteration, path)
            return False
        return bool((not report["written"] or path.is_file()) and report["format"] == format_)

    def edited(self, group: str, path: Path, report: Report) -> bool:
        """Whether a user who trains by hand has made a dataset of their own of this one."""
        by_hand = self.plan.training.trainers[group].traits.by_hand
        return bool(by_hand and report["written"] and path.is_file() and file_hash(path) != report["sha256"])

    def backend_of(self, group: str) -> str:
        return self.plan.training.trainers[group].backend

    def attempt(self, iteration: int, group: str) -> int:
        """How many jobs of a group have failed in an iteration: the number of the one that is next, or goes on."""
        return len(list(self.stages.find(JOB_ENDED, iteration, group=group)))

    def _datasets_folder(self, iteration: int) -> Path:
        return self.folder.path / ITERATIONS / str(iteration)

    # Jobs

    def _train(self, iteration: int, reports: Mapping[str, Report]) -> dict[str, dict[str, Any]]:
        """Every group's job, all at once; what became of each group, and why examples were left out."""
        fewest = self.plan.training.min_examples
        jobs = {
            group: _Job(self, iteration, group, report)
            for group, report in reports.items()
            if report["examples"] >= fewest
        }
        for job in jobs.values():
            job.submit()
        self._await(iteration, list(jobs.values()))
        outcomes = {}
        for group, report in reports.items():
            if group in jobs:
                became = jobs[group].outcome()
            else:
                became = {"outcome": TOO_FEW, "min_examples": fewest}
                log.info("iteration %d: %s has %d examples, of %d", iteration, group, report["examples"], fewest)
            why = {name: report[name] for name in ("left_out", "notes") if report[name]}
            outcomes[group] = {"examples": report["examples"], **why, **became}
        return outcomes

    def _await(self, iteration: int, jobs: Sequence[_Job]) -> None:
        """Look at the jobs until all have ended, or wait for the user.

        Raises:
            RunError: some failed; what waits is asked for when the command is run again.
            Waiting: what has not ended is to be trained by hand.
        """
        while sum(job.ended() for job in jobs) < len(jobs):
            running = [job for job in jobs if job.status.state == JobState.RUNNING]
            if not running:
                break  # nothing more happens by itself
            self.sleep(min(self.plan.training.trainers[job.group].seconds_between_polls for job in running))
        failed = [job for job in jobs if job.status.state in (JobState.FAILED, JobState.CANCELLED)]
        if failed:
            lines = [
                f"iteration {iteration}: training {job.group} {job.status.state}: {job.status.message}"
                for job in failed
            ]
            raise RunError("\n".join([*lines, "The same command, run again, begins a new job in its place."]))
        waiting = [job for job in jobs if job.status.state == JobState.WAITING]
        if waiting:
            for job in waiting:
                job.note_waiting()
            raise Waiting("\n".join(job.status.message for job in waiting), [job.group for job in waiting])

    def models_of(self, iteration: int, group: str) -> frozenset[str]:
        """Every model that a group has had until an iteration's games, and what those came from."""
        now, untrained = self.models[group], self.plan.spec.experiment.models[group]
        trained = {r["model"] for r in self.stages.all(TRAINED) if r["group"] == group and r["iteration"] < iteration}
        lineage = {name for step in now.lineage for name in (step.model, step.from_model)}
        return frozenset({untrained.name, now.name, *trained, *lineage})

    def base_of(self, group: str) -> str:
        """The model that a group's next job starts from."""
        untrained = self.plan.spec.experiment.models[group]
        return untrained.name if self.plan.training.from_scratch else self.models[group].name

    def _after(self, iteration: int, group: str, outcome: Mapping[str, Any]) -> ModelSettings:
        settings = self.models[group]
        if outcome["outcome"] == TOO_FEW:
            return settings
        step = FineTuneStep(
            model=outcome["model"],
            from_model=self.base_of(group),
            run_id=self.folder.run_id,
            iteration=iteration,
            method=self.plan.method,
            dataset_sha256=outcome["dataset_sha256"],
            job=outcome["job"],
        )
        return lineage_grown(settings, self.plan.spec.experiment.models[group], step)


def lineage_grown(settings: ModelSettings, untrained: ModelSettings, step: FineTuneStep) -> ModelSettings:
    """A model after one more training; one that began from scratch has only that behind it."""
    before = settings.lineage if step.from_model == settings.name else untrained.lineage
    base = untrained.base_model or untrained.name
    return replace(settings, model=step.model, base_model=base, lineage=(*before, step))


class _Job:
    """One group's fine-tune job of one iteration, perhaps not its first: a job that failed is begun anew on request."""

    def __init__(self, loop: Loop, iteration: int, group: str, report: Report) -> None:
        self.group, self.report = group, report
        self._loop, self._iteration = loop, iteration
        self._attempt = loop.attempt(iteration, group)
        # A name is taken for a model that somebody was asked for, not for one whose dataset nobody has seen.
        self._was_asked_for = any(True for _ in loop.stages.find(WAITED, iteration, group=group))
        self._backend = loop.connect(group, loop.models[group], self._was_asked_for)
        self._handle: Mapping[str, Any] = {}
        self.status = JobStatus(JobState.RUNNING)
        folder = loop.folder.path / ITERATIONS / str(iteration)
        dataset = folder / report["file"]
        self._edited = loop.edited(group, dataset, report)
        key = f"{loop.folder.run_id}/{iteration}/{group}/{self._attempt}"
        self._job = FineTuneJob(
            # Two results folders may hold runs of one id; their jobs are not each other's.
            key=f"{key}/{tagged_hash('job', [loop.stages.token, key])[:8]}",
            group=group,
            method=loop.plan.method,
            base_model=loop.base_of(group),
            dataset=dataset,
            dataset_sha256=file_hash(dataset) if self._edited else report["sha256"],
            folder=folder / f"{group}.job",
            seed=derived_seed("job", loop.plan.identity, iteration, group),
            name=loop.plan.spec.experiment.name,
            had=loop.models_of(iteration, group),
            ended=tuple(
                record["note"]
                for record in loop.stages.find(JOB, iteration, group=group)
                if record["attempt"] < self._attempt
            ),
        )

    def outcome(self) -> dict[str, Any]:
        """What became of a job that has succeeded; `job` is the provider's own name of it."""
        trained = self._loop.stages.one(TRAINED, self._iteration, group=self.group)
        assert trained is not None
        job = trained["handle"].get("job")
        return {
            "outcome": "trained",
            "model": trained["model"],
            "dataset_sha256": trained["dataset_sha256"],
            "job": None if job is None else str(job),
            **trained["facts"],
        }

    def submit(self) -> None:
        """Begin the job, or find it again; what ended before is not looked at again."""
        stages, facts = self._loop.stages, {"group": self.group, "attempt": self._attempt}
        trained = stages.one(TRAINED, self._iteration, **facts)
        if trained is not None:
            self._handle = trained["handle"]
            self.status = JobStatus(JobState.SUCCEEDED, trained["model"], facts=trained["facts"])
            return
        known = [record["note"] for record in stages.find(JOB, self._iteration, **facts)]

        def note(found: Mapping[str, Any]) -> None:
            sha256, backend = self._job.dataset_sha256, self._loop.backend_of(self.group)
            stages.add(JOB, self._iteration, **facts, backend=backend, dataset_sha256=sha256, note=dict(found))

        self._job.folder.mkdir(parents=True, exist_ok=True)
        if self._edited:
            log.warning("iteration %d: %s: %s", self._iteration, self.group, self._edit_note())
        self._handle = self._backend.submit(self._job, known, note)
        log.info("iteration %d: training %s from %s", self._iteration, self.group, self._job.base_model)

    def _edit_note(self) -> str:
        return f"{self._job.dataset.name} was edited after it was built, and is trained on as it is now"

    def _edit_facts(self) -> dict[str, Any]:
        """What a dataset that the user edited changes in the outcome."""
        if not self._edited:
            return {}
        lines = self._job.dataset.read_bytes().splitlines()
        examples = sum(1 for line in lines if line.strip())
        return {"edited": True, "examples": examples, "notes": [*self.report["notes"], self._edit_note()]}

    def note_waiting(self) -> None:
        """Keep that the user was asked for this job's model."""
        if not self._was_asked_for:
            self._loop.stages.add(WAITED, self._iteration, group=self.group)

    def ended(self) -> bool:
        """Look at the job, unless it has ended, and keep how it ended."""
        if self.status.state not in (JobState.RUNNING, JobState.WAITING):
            return True
        before, self.status = self.status, self._backend.poll(self._job, self._handle)
        if self.status.message != before.message:
            log.info("iteration %d: %s: %s", self._iteration, self.group, self.status.message or self.status.state)
        if self.status.state in (JobState.RUNNING, JobState.WAITING):
            return False
        facts: dict[str, Any] = {"group": self.group, "attempt": self._attempt, "facts": dict(self.status.facts)}
        if self.status.state == JobState.SUCCEEDED:
            facts["facts"].update(self._edit_facts())
            sha256 = self._job.dataset_sha256
            facts.update(model=self.status.model, handle=dict(self._handle), dataset_sha256=sha256)
            self._loop.stages.add(TRAINED, self._iteration, **facts)
        else:
            facts.update(state=str(self.status.state), message=self.status.message)
            self._loop.stages.add(JOB_ENDED, self._iteration, **facts)
        return True
