"""What a training run has done, stage by stage: a record of each, and what can be asked of them.

A record is the JSON of its fields under the name of its stage. Of a later version's records, keys and stages that are
not known here are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self, TypedDict, TypeVar


class StageKind(StrEnum):
    """The names of the stages in the log."""

    BEGUN = "begun"
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
    """A model as the log and `state.json` have it: its name, what it began as, and every training since."""

    model: str
    base_model: str
    lineage: list[dict[str, Any]]


class Became(StrEnum):
    """What became of a model group in an iteration."""

    TRAINED = "trained"
    TOO_FEW = "too_few_examples"


GroupOutcome = Mapping[str, Any]
"""`Became` under `outcome`, with whatever the group's dataset and backend had to say: for tables and people."""


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """One group's dataset: its file, and what was left out of it."""

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
    """The format of its chats; None: 0.1.0 wrote it, which built chats of its own."""
    as_played: bool = False

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
    """One stage of one iteration."""

    kind: ClassVar[StageKind]
    iteration: int

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        """The record of what `to_plain` gave.

        Raises:
            TypeError, KeyError: a key is missing.
        """
        return cls(**{field.name: plain[field.name] for field in fields(cls) if field.name in plain})

    def to_plain(self) -> dict[str, Any]:
        return {"stage": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True, kw_only=True)
class RunRecord(StageRecord):
    """A stage that is a run of its own."""

    run_id: str


@dataclass(frozen=True, kw_only=True)
class GroupRecord(StageRecord):
    """A stage of one model group."""

    group: str


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(GroupRecord):
    """Of one of its jobs: `attempt` says how many failed before it in this iteration."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class RunBegun(StageRecord):
    """The run was made."""

    kind = StageKind.BEGUN
    iteration: int = -1
    token: str
    format: int = 0
    """The version of the log's format; 0.1.0 wrote none."""
    run: str = ""
    run_id: str = ""
    """The identity of the run and its id, from format 2 on; see `storage.log_lines`."""

    def to_plain(self) -> dict[str, Any]:
        plain = super().to_plain()
        return {name: value for name, value in plain.items() if value or name not in ("format", "run", "run_id")}


@dataclass(frozen=True, kw_only=True)
class GamesPlayed(RunRecord):
    """The games that an iteration is trained on are finished."""

    kind = StageKind.PLAYED


@dataclass(frozen=True, kw_only=True)
class TestPlayed(RunRecord):
    """The test before an iteration is finished."""

    kind = StageKind.TESTED


@dataclass(frozen=True, kw_only=True)
class DatasetsBuilt(StageRecord):
    """Each group's dataset was built, some perhaps again; this takes the place of earlier such records."""

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
    """A backend has noted a fact about a job that it is submitting; see `Backend.submit`."""

    kind = StageKind.JOB
    backend: str
    dataset_sha256: str
    note: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Waited(GroupRecord):
    """The user was asked for the group's model."""

    kind = StageKind.WAITED


@dataclass(frozen=True, kw_only=True)
class JobEnded(AttemptRecord):
    """A job has failed or was cancelled."""

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
        """The provider's own name of the job."""
        job = self.handle.get("job")
        return None if job is None else str(job)


@dataclass(frozen=True, kw_only=True)
class Switched(StageRecord):
    """The next iteration plays with these models: the end of an iteration."""

    kind = StageKind.SWITCHED
    models: Mapping[str, ModelState]
    outcomes: Mapping[str, GroupOutcome]


@dataclass(frozen=True, kw_only=True)
class AdapterNoted(GroupRecord):
    """A server is about to be told to load a group's adapter, or has unloaded it."""

    kind = StageKind.ADAPTER
    name: str
    base_url: str
    is_loaded: bool


RECORDS: Mapping[str, type[StageRecord]] = {
    record.kind: record
    for record in (
        RunBegun,
        GamesPlayed,
        TestPlayed,
        DatasetsBuilt,
        JobNoted,
        Waited,
        JobEnded,
        TrainingEnded,
        Switched,
        AdapterNoted,
    )
}
"""The record of each stage."""

AnyRecord = TypeVar("AnyRecord", bound=StageRecord)
AnyGroupRecord = TypeVar("AnyGroupRecord", bound=GroupRecord)


@dataclass(frozen=True)
class Stages:
    """The records of a training run, the oldest first."""

    records: list[StageRecord]

    @property
    def token(self) -> str:
        """What tells this run from others of its id; the same in every process."""
        return self.all(RunBegun)[0].token

    def all(self, stage: type[AnyRecord]) -> list[AnyRecord]:
        """The records of a stage, of all iterations."""
        return [record for record in self.records if isinstance(record, stage)]

    def last(self, stage: type[AnyRecord], iteration: int) -> AnyRecord | None:
        """The last record of a stage of an iteration."""
        found = [record for record in self.all(stage) if record.iteration == iteration]
        return found[-1] if found else None

    def of_group(self, stage: type[AnyGroupRecord], iteration: int, group: str) -> list[AnyGroupRecord]:
        """A group's records of a stage of an iteration; `GroupRecord`: those of all its stages."""
        return [record for record in self.all(stage) if record.iteration == iteration and record.group == group]

    def attempt(self, iteration: int, group: str) -> int:
        """How many jobs of a group have failed in an iteration: the number of its next job, or of the one going on."""
        return len(self.of_group(JobEnded, iteration, group))

    def trained(self, iteration: int, group: str) -> TrainingEnded | None:
        """How a group's training ended in an iteration; None where it has not."""
        found = self.of_group(TrainingEnded, iteration, group)
        return found[-1] if found else None
