"""The records of a training run's log: written as 0.1.0 wrote them, read whatever a later version adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import JournalError
from runner.base.hashing import canonical
from runner.base.storage.log_lines import encode
from runner.results.folder import RunFolder
from runner.training.stage_log import read_stages, stage_log
from runner.training.stages import RECORDS, GroupRecord, JobWaited, RunStarted, StageKind, StageRecord, TrainingEnded
from runner.training.summary import progress_summary
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
"""A record of each stage as 0.1.0 wrote it, or the first version that had it, without what the journal adds."""


def log_of(folder: Path, *records: dict[str, Any]) -> Path:
    (folder / "stages.jsonl").write_bytes(b"".join(encode(i, record) for i, record in enumerate(records)))
    return folder


@pytest.mark.parametrize("stage", list(StageKind))
def test_a_record_is_written_as_0_1_0_wrote_it(stage: StageKind) -> None:
    record = RECORDS[stage].parse(json.loads(LINES[stage]))
    assert canonical(record.to_plain()).decode() == LINES[stage]


def test_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    begun, waited = json.loads(LINES["begun"]), json.loads(LINES["waited"])
    later = {"stage": "evaluated", "iteration": 0, "group": "p"}
    stages = read_stages(log_of(tmp_path, begun, {**waited, "since": 3}, later))
    assert stages.records == [RunStarted(token="205fcc75966fe138"), JobWaited(iteration=0, group="p")]
    report = json.loads(REPORT)
    built = json.loads(LINES["datasets"]) | {"groups": {"p": {**report, "tokens": 12}}}
    assert RECORDS["datasets"].parse(built) == RECORDS["datasets"].parse(json.loads(LINES["datasets"]))


def test_a_record_that_lacks_a_key_is_named(tmp_path: Path) -> None:
    begun, trained = json.loads(LINES["begun"]), json.loads(LINES["trained"])
    del trained["model"]
    with pytest.raises(JournalError, match=r"stages\.jsonl: record 1 of stage 'trained' lacks a key: .*'model'"):
        read_stages(log_of(tmp_path, begun, trained))


def begun_log(folder: Path, *records: StageRecord) -> bytes:
    folder.mkdir()
    with stage_log(RunFolder(folder), "the identity") as stages:
        for record in records:
            stages.add(record)
    return (folder / "stages.jsonl").read_bytes()


def test_a_stage_of_another_log_is_refused(tmp_path: Path) -> None:
    """Two runs of one spec have the same stages; what one has trained is not what the other has."""
    waited = [JobWaited(iteration=index, group="p") for index in range(3)]
    mine = begun_log(tmp_path / "one", *waited).splitlines(keepends=True)
    theirs = begun_log(tmp_path / "two", *waited).splitlines(keepends=True)
    assert read_stages(tmp_path / "one").records[1:] == waited
    log = tmp_path / "one" / "stages.jsonl"
    log.write_bytes(b"".join([*mine[:-1], theirs[-1]]))
    with (
        pytest.raises(JournalError, match=r"stages\.jsonl is damaged at byte \d+: a line there was changed"),
        stage_log(RunFolder(tmp_path / "one"), "the identity"),
    ):
        pass
    log.write_bytes(b"".join(mine))
    with (
        pytest.raises(JournalError, match="belongs to another run, 'one'"),
        stage_log(RunFolder(tmp_path / "one"), "other"),
    ):
        pass
    assert log.read_bytes() == b"".join(mine)


def test_the_stages_of_another_run_are_not_told_as_this_ones(tmp_path: Path) -> None:
    begun_log(tmp_path / "one", JobWaited(iteration=0, group="p"))
    with pytest.raises(JournalError, match="belongs to another run, 'one'"):
        read_stages(tmp_path / "one", "other")
    folder = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    folder.stage_log.write_bytes((tmp_path / "one" / "stages.jsonl").read_bytes())
    with pytest.raises(JournalError, match="belongs to another run, 'one'"):
        progress_summary(folder)


def test_stages_are_found_by_group_and_iteration(tmp_path: Path) -> None:
    waited, ended, trained = (json.loads(LINES[stage]) for stage in ("waited", "ended", "trained"))
    stages = read_stages(log_of(tmp_path, json.loads(LINES["begun"]), waited, ended, trained))
    assert [record.kind for record in stages.group_records(GroupRecord, 0, "v")] == ["ended", "trained"]
    assert (stages.attempt_number(0, "v"), stages.attempt_number(0, "p"), stages.attempt_number(1, "v")) == (1, 0, 0)
    found = stages.training_record(0, "v")
    assert isinstance(found, TrainingEnded)
    assert (found.model, found.attempt) == ("better", 1)
    assert stages.training_record(0, "p") is stages.find_last(TrainingEnded, 1) is None
