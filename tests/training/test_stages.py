"""Records of a training run's log: written as in 0.1.0, and readable if a later version adds keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import JournalError
from runner.base.hashing import canonical
from runner.base.storage.log_lines import encode
from runner.results.folder import RunFolder
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.dummy import DummyBackend
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, SaveNote
from runner.training.jobs import GroupJob
from runner.training.stage_log import read_stages, stage_log
from runner.training.stages import (
    RECORDS,
    GroupRecord,
    JobNoted,
    JobWaited,
    RunStarted,
    StageKind,
    StageRecord,
    TrainingEnded,
)
from runner.training.summary import progress_summary
from tests.support.fine_tuning_jobs import make_job
from tests.support.runs import run_spec
from tests.support.specs import spec_file

REPORT = (
    '{"agents":["prover"],"examples":4,"file":"p.sft.jsonl","for":"p","format":"openai","left_out":{"repeated":1},'
    '"notes":["a note"],"sha256":"4f8d","trace":"p.sft.jsonl.trace.jsonl","why_not_written":null,"written":true}'
)
MODEL = (
    '{"base_model":"dummy","lineage":[{"dataset_sha256":"4f8d","from_model":"dummy","iteration":0,"job":null,'
    '"method":"sft","model":"first","run_id":"learning"}],"model":"first"}'
)
OUTCOME = '{"dataset_sha256":"4f8d","examples":4,"job":null,"model":"first","outcome":"trained"}'
LINES = {
    "begun": '{"iteration":-1,"stage":"begun","token":"205fcc75966fe138"}',
    "begun since": '{"format":1,"iteration":-1,"stage":"begun","token":"205fcc75966fe138"}',
    "played": '{"iteration":0,"run_id":"learning-i0","stage":"played"}',
    "tested": '{"iteration":0,"run_id":"learning-t0","stage":"tested"}',
    "datasets": f'{{"groups":{{"p":{REPORT}}},"iteration":0,"stage":"datasets"}}',
    "job": '{"attempt":0,"backend":"command","dataset_sha256":"57f5","group":"v","iteration":0,'
    '"note":{"after":"","attempt":1},"stage":"job"}',
    "waited": '{"group":"p","iteration":0,"stage":"waited"}',
    "ended": '{"attempt":0,"facts":{"code":1},"group":"v","iteration":0,"message":"failed","stage":"ended",'
    '"state":"failed"}',
    "trained": '{"attempt":1,"dataset_sha256":"57f5","facts":{"code":0},"group":"v","handle":{"attempt":2},'
    '"iteration":0,"model":"better","stage":"trained"}',
    "switched": f'{{"iteration":0,"models":{{"p":{MODEL}}},"outcomes":{{"p":{OUTCOME}}},"stage":"switched"}}',
    "adapter": '{"base_url":"http://h:1/v1","group":"p","is_loaded":true,"iteration":0,"name":"x","stage":"adapter"}',
}
"""A record of each stage, in the format of the first version that had it."""


def write_stage_log(folder: Path, *records: dict[str, Any]) -> Path:
    (folder / "stages.jsonl").write_bytes(b"".join(encode(i, record) for i, record in enumerate(records)))
    return folder


@pytest.mark.parametrize("stage", list(StageKind))
def test_record_is_written_in_the_format_of_0_1_0(stage: StageKind) -> None:
    record = RECORDS[stage].parse(json.loads(LINES[stage]))
    assert canonical(record.to_plain()).decode() == LINES[stage]


def test_keys_and_stages_of_later_versions_are_ignored(tmp_path: Path) -> None:
    started, waited = json.loads(LINES["begun"]), json.loads(LINES["waited"])
    later = {"stage": "evaluated", "iteration": 0, "group": "p"}
    stages = read_stages(write_stage_log(tmp_path, started, {**waited, "since": 3}, later))
    assert stages.records == [RunStarted(token="205fcc75966fe138"), JobWaited(iteration=0, group="p")]
    report = json.loads(REPORT)
    datasets_record = json.loads(LINES["datasets"]) | {"groups": {"p": {**report, "tokens": 12}}}
    assert RECORDS["datasets"].parse(datasets_record) == RECORDS["datasets"].parse(json.loads(LINES["datasets"]))


def test_error_names_the_record_with_a_missing_key(tmp_path: Path) -> None:
    started, trained = json.loads(LINES["begun"]), json.loads(LINES["trained"])
    del trained["model"]
    with pytest.raises(JournalError, match=r"stages\.jsonl: record 1 of stage 'trained' lacks a key: .*'model'"):
        read_stages(write_stage_log(tmp_path, started, trained))


def start_stage_log(folder: Path, *records: StageRecord) -> bytes:
    folder.mkdir()
    with stage_log(RunFolder(folder), "the identity") as stages:
        for record in records:
            stages.add(record)
    return (folder / "stages.jsonl").read_bytes()


def test_stage_copied_from_another_log_is_rejected(tmp_path: Path) -> None:
    """Two runs of one spec have the same stages, but different models."""
    waited = [JobWaited(iteration=index, group="p") for index in range(3)]
    own_lines = start_stage_log(tmp_path / "one", *waited).splitlines(keepends=True)
    other_lines = start_stage_log(tmp_path / "two", *waited).splitlines(keepends=True)
    assert read_stages(tmp_path / "one").records[1:] == waited
    log = tmp_path / "one" / "stages.jsonl"
    log.write_bytes(b"".join([*own_lines[:-1], other_lines[-1]]))
    with (
        pytest.raises(JournalError, match=r"stages\.jsonl is damaged at byte \d+: a line there was changed"),
        stage_log(RunFolder(tmp_path / "one"), "the identity"),
    ):
        pass
    log.write_bytes(b"".join(own_lines))
    with (
        pytest.raises(JournalError, match="belongs to another run, 'one'"),
        stage_log(RunFolder(tmp_path / "one"), "other"),
    ):
        pass
    assert log.read_bytes() == b"".join(own_lines)


def test_stages_of_another_run_are_rejected(tmp_path: Path) -> None:
    start_stage_log(tmp_path / "one", JobWaited(iteration=0, group="p"))
    with pytest.raises(JournalError, match="belongs to another run, 'one'"):
        read_stages(tmp_path / "one", "other")
    folder = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    folder.stage_log.write_bytes((tmp_path / "one" / "stages.jsonl").read_bytes())
    with pytest.raises(JournalError, match="belongs to another run, 'one'"):
        progress_summary(folder)


def test_stages_are_found_by_group_and_iteration(tmp_path: Path) -> None:
    waited, ended, trained = (json.loads(LINES[stage]) for stage in ("waited", "ended", "trained"))
    stages = read_stages(write_stage_log(tmp_path, json.loads(LINES["begun"]), waited, ended, trained))
    assert [record.kind for record in stages.group_records(GroupRecord, 0, "v")] == ["ended", "trained"]
    assert (stages.attempt_number(0, "v"), stages.attempt_number(0, "p"), stages.attempt_number(1, "v")) == (1, 0, 0)
    training_record = stages.training_record(0, "v")
    assert isinstance(training_record, TrainingEnded)
    assert (training_record.model, training_record.attempt) == ("better", 1)
    assert stages.training_record(0, "p") is stages.find_last(TrainingEnded, 1) is None


def test_backend_does_not_get_notes_of_another_backend(tmp_path: Path) -> None:
    """A job's id at one provider would be taken for a job at another one."""

    class RecordingBackend(DummyBackend):
        def submit(self, job: FineTuneJob, notes: Sequence[JobNote], save_note: SaveNote) -> JobHandle:
            received.extend(notes)
            return super().submit(job, notes, save_note)

    received: list[JobNote] = []
    with stage_log(RunFolder(tmp_path), "me") as stages:
        for backend in ("together", "openai"):
            note = {"job": f"{backend}-job"}
            stages.add(JobNoted(iteration=0, group="m", attempt=0, backend=backend, dataset_sha256="57f5", note=note))
        trainer = TrainerSettings(backend="openai")
        GroupJob(make_job(tmp_path), 0, 0, trainer, RecordingBackend(), stages, None, was_requested=False).submit()
    assert received == [{"job": "openai-job"}]
