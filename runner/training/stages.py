"""The records of a training run's finished stages, and queries on them.

`runner.training.stage_log` stores a record as the JSON of its fields with the name of its stage. Unknown keys and
stages, which a later version wrote, are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self, TypedDict, TypeVar


class StageKind(StrEnum):
    """The names of the stages, as stored in the log."""

    STARTED = "begun"
    PLAYED = "played"
    TESTED = "tested"
    DATASETS = "datasets"
    JOB = "job"
    WAITED = "waited"
    JOB_ENDED = "ended"
    TRAINED = "trained"
    SWITCHED = "switched"
    ADAPTER = "adapter"


class ModelState(TypedDict):
    """A model in the log and in `state.json`: its name, its base model, and all fine-tuning steps between them."""

    model: str
    base_model: str
    lineage: list[dict[str, Any]]


class GroupResult(StrEnum):
    """The outcome of an iteration for a model group."""

    TRAINED = "trained"
    TOO_FEW = "too_few_examples"


GroupOutcome = Mapping[str, Any]
"""A `GroupResult` under `outcome`, and facts about the group's dataset and training job, for tables and messages."""


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """A report on the dataset of one model group: its file, and the numbers of examples written and omitted."""

    file: str
    format: str
    group: str
    examples: int
    written: bool
    left_out: Mapping[str, int]
    why_not_written: str | None
    sha256: str | None
    trace: str | None
    agents: Sequence[str]
    notes: Sequence[str]
    chat_format: str | None = None
    """The format of the dataset's chats; None for a dataset of 0.1.0, which built chats in another way."""
    as_played: bool = False
    """Whether this is also the chat format of the games."""

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        fields_ = {field.name: plain[field.name] for field in fields(cls) if field.name in plain}
        return cls(**{**fields_, "group": plain["for"]})

    def to_plain(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["for"] = plain.pop("group")
        if self.chat_format is None:
            del plain["chat_format"], plain["as_played"]
        return plain


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """The record of one stage of an iteration."""

    kind: ClassVar[StageKind]
    iteration: int

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        """Return the record that `to_plain` has converted to this mapping.

        Raises:
            TypeError, KeyError: a key is missing.
        """
        return cls(**{field.name: plain[field.name] for field in fields(cls) if field.name in plain})

    def to_plain(self) -> dict[str, Any]:
        return {"stage": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True, kw_only=True)
class RunRecord(StageRecord):
    """The record of a stage that is a separate run."""

    run_id: str


@dataclass(frozen=True, kw_only=True)
class GroupRecord(StageRecord):
    """The record of a stage of one model group."""

    group: str


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(GroupRecord):
    """The record of a stage of one of a model group's jobs."""

    attempt: int
    """The number of the group's jobs in this iteration that failed before this job."""


@dataclass(frozen=True, kw_only=True)
class RunStarted(StageRecord):
    """The run was created."""

    kind = StageKind.STARTED
    iteration: int = -1
    token: str
    format: int = 0
    """The version of the log's format; 0 for logs of 0.1.0, which had no version."""
    run: str = ""
    """The identity of the run, from format 2 on; see `storage.log_lines`."""
    run_id: str = ""
    """The id of the run, from format 2 on."""

    def to_plain(self) -> dict[str, Any]:
        plain = super().to_plain()
        return {name: value for name, value in plain.items() if value or name not in ("format", "run", "run_id")}


@dataclass(frozen=True, kw_only=True)
class GamesPlayed(RunRecord):
    """The games that an iteration trains on are finished."""

    kind = StageKind.PLAYED


@dataclass(frozen=True, kw_only=True)
class TestPlayed(RunRecord):
    """The test before an iteration is finished."""

    kind = StageKind.TESTED


@dataclass(frozen=True, kw_only=True)
class DatasetsBuilt(StageRecord):
    """The datasets of all groups were built or rebuilt. This record replaces earlier ones of the same iteration."""

    kind = StageKind.DATASETS
    groups: Mapping[str, DatasetReport]

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        reports = {group: DatasetReport.parse(report) for group, report in plain["groups"].items()}
        return super().parse({**plain, "groups": reports})

    def to_plain(self) -> dict[str, Any]:
        return {**super().to_plain(), "groups": {group: report.to_plain() for group, report in self.groups.items()}}


@dataclass(frozen=True, kw_only=True)
class JobNoted(AttemptRecord):
    """A backend has saved a note about a job while submitting it; see `Backend.submit`."""

    kind = StageKind.JOB
    backend: str
    dataset_sha256: str
    note: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class JobWaited(GroupRecord):
    """The user was asked to train the group's model by hand."""

    kind = StageKind.WAITED


@dataclass(frozen=True, kw_only=True)
class JobEnded(AttemptRecord):
    """A job has failed or was canceled."""

    kind = StageKind.JOB_ENDED
    state: str
    message: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrainingEnded(AttemptRecord):
    """A job has succeeded."""

    kind = StageKind.TRAINED
    model: str
    dataset_sha256: str
    handle: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def provider_job(self) -> str | None:
        """The provider's id of the job."""
        job = self.handle.get("job")
        return None if job is None else str(job)


@dataclass(frozen=True, kw_only=True)
class ModelSwitch(StageRecord):
    """The end of an iteration: the models that the next iteration plays with."""

    kind = StageKind.SWITCHED
    models: Mapping[str, ModelState]
    outcomes: Mapping[str, GroupOutcome]


@dataclass(frozen=True, kw_only=True)
class AdapterChanged(GroupRecord):
    """A server is about to load a group's adapter, or has unloaded the adapter."""

    kind = StageKind.ADAPTER
    name: str
    base_url: str
    is_loaded: bool


RECORDS: Mapping[str, type[StageRecord]] = {
    record.kind: record
    for record in (
        RunStarted, GamesPlayed, TestPlayed, DatasetsBuilt, JobNoted, JobWaited, JobEnded, TrainingEnded, ModelSwitch,
        AdapterChanged,
    )
}  # fmt: skip
"""The record class of each stage."""

AnyRecord = TypeVar("AnyRecord", bound=StageRecord)
AnyGroupRecord = TypeVar("AnyGroupRecord", bound=GroupRecord)


@dataclass(frozen=True)
class Stages:
    """The records of a training run, oldest first."""

    records: list[StageRecord]

    @property
    def token(self) -> str:
        """A random token that distinguishes this run from other runs with the same id in other results folders."""
        return self.find_all(RunStarted)[0].token

    def find_all(self, stage: type[AnyRecord]) -> list[AnyRecord]:
        """Return the records of a stage in all iterations."""
        return [record for record in self.records if isinstance(record, stage)]

    def find_last(self, stage: type[AnyRecord], iteration: int) -> AnyRecord | None:
        """Return the last record of a stage in an iteration; None if there is none."""
        records = [record for record in self.find_all(stage) if record.iteration == iteration]
        return records[-1] if records else None

    def group_records(self, stage: type[AnyGroupRecord], iteration: int, group: str) -> list[AnyGroupRecord]:
        """Return a group's records of a stage in an iteration; for `GroupRecord`, those of all stages of the group."""
        return [record for record in self.find_all(stage) if record.iteration == iteration and record.group == group]

    def attempt_number(self, iteration: int, group: str) -> int:
        """Return the number of a group's current or next job in an iteration, counted from 0."""
        return len(self.group_records(JobEnded, iteration, group))

    def training_record(self, iteration: int, group: str) -> TrainingEnded | None:
        """Return the record of a group's successful job in an iteration; None if no job has succeeded yet."""
        records = self.group_records(TrainingEnded, iteration, group)
        return records[-1] if records else None
