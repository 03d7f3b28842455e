"""Fine-tuning jobs on a simulated provider: requests, states, and no duplicate jobs after lost responses or kills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError
from runner.models.settings import ModelSettings
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.interface import FineTuneJob, JobState
from runner.training.backends.openai import OpenAiBackend, suffix_of
from runner.training.backends.registry import TrainedGroup, create_backend
from tests.support.fine_tuning_jobs import (
    EXAMPLE,
    SHORT_WAITS,
    SimulatedKill,
    fail_on_record,
    make_backend,
    make_job,
    poll_to_end,
    submit_job,
)
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until
from tests.support.servers.fine_tune_client import FineTuningProvider, run_fine_tuning_provider


@pytest.fixture
def server() -> Iterator[FineTuningProvider]:
    with run_fine_tuning_provider() as running:
        yield running


# Requests


def test_job_request_has_only_the_values_of_the_spec(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    submit_job(server, job)
    (job_record,) = server.jobs()
    assert job_record["body"] == {
        "model": "tiny", "training_file": "file-0", "method": {"type": "supervised"}, "seed": 7, "suffix": "my-run",
        "metadata": {"nip_run": "run/1/m"},
    }  # fmt: skip
    (file,) = server.files()
    assert file["purpose"] == "fine-tune"
    assert file["bytes"] == job.dataset.stat().st_size
    assert file["filename"].startswith("nip-sft-")


def test_preference_job_sends_its_hyperparameters_in_its_method(server: FineTuningProvider, tmp_path: Path) -> None:
    hyperparameters = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 0.5, "beta": 0.2}
    submit_job(server, make_job(tmp_path, method="dpo"), suffix="nip", **hyperparameters)
    body = server.jobs()[0]["body"]
    assert body["method"] == {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}
    assert body["suffix"] == "nip"


def test_supervised_job_does_not_send_beta(server: FineTuningProvider, tmp_path: Path) -> None:
    submit_job(server, make_job(tmp_path), beta=0.2, n_epochs=3)
    method = server.jobs()[0]["body"]["method"]
    assert method == {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3}}}


def test_large_seeds_and_long_names_are_shortened_to_the_providers_limits(
    server: FineTuningProvider, tmp_path: Path
) -> None:
    submit_job(server, make_job(tmp_path, seed=2**63 - 1, name="α/" * 100 + "x" * 100, key="k" * 700))
    body = server.jobs()[0]["body"]
    assert 0 <= body["seed"] < 2**31
    assert body["suffix"] == "x" * 63
    assert len(body["metadata"]["nip_run"]) <= 512


@pytest.mark.parametrize(
    ("name", "suffix"), [("a b/c:d", "a-b-c-d"), ("--a--", "a"), ("äöü", ""), ("v1.2_x", "v1.2_x"), ("", "")]
)
def test_suffix_has_only_allowed_characters(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix


def test_job_of_an_unprintable_run_name_has_no_suffix(server: FineTuningProvider, tmp_path: Path) -> None:
    submit_job(server, make_job(tmp_path, name="…"))
    assert "suffix" not in server.jobs()[0]["body"]


# States


def test_job_passes_through_its_states_and_returns_the_new_model(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"looks": 3})
    job = make_job(tmp_path)
    statuses = poll_to_end(*_insert_job(submit_job(server, job), job))
    assert [status.facts["status"] for status in statuses] == ["validating_files", "queued", "running", "succeeded"]
    assert [status.state for status in statuses] == [JobState.RUNNING] * 3 + [JobState.SUCCEEDED]
    assert (statuses[-1].model or "").startswith("ft:tiny:my-run:1x")
    assert statuses[-1].facts["trained_tokens"] > 0
    assert statuses[-1].facts["job"] == "ftjob-0"
    assert "validating the files" in statuses[0].message


def _insert_job(
    submitted: tuple[OpenAiBackend, Mapping[str, Any]], job: FineTuneJob
) -> tuple[OpenAiBackend, FineTuneJob, Mapping[str, Any]]:
    return submitted[0], job, submitted[1]


def test_paused_job_is_reported_as_paused_and_running(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"through": ["paused", "paused", "running"], "looks": 3})
    job = make_job(tmp_path)
    statuses = poll_to_end(*_insert_job(submit_job(server, job), job))
    assert ["paused" in status.message for status in statuses] == [True, True, False, False]
    assert statuses[0].state is JobState.RUNNING
    assert statuses[-1].state is JobState.SUCCEEDED


def test_unknown_job_state_is_shown_and_treated_as_running(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"through": ["pondering\x1b[2J"]})
    job = make_job(tmp_path)
    statuses = poll_to_end(*_insert_job(submit_job(server, job), job))
    assert statuses[0].message == "ftjob-0: pondering\\x1b[2J"
    assert statuses[-1].state is JobState.SUCCEEDED


def test_failed_job_reports_the_providers_reason(server: FineTuningProvider, tmp_path: Path) -> None:
    error = {"code": "exceeded_quota", "message": "Too \x1b[31mmuch", "param": "training_file"}
    server.change(script={"end": "failed", "error": error})
    job = make_job(tmp_path)
    status = poll_to_end(*_insert_job(submit_job(server, job), job))[-1]
    assert status.state is JobState.FAILED
    for part in ("ftjob-0", "exceeded_quota", "Too \\x1b[31mmuch", "training_file"):
        assert part in status.message


def test_invalid_training_file_fails_its_job(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.dataset.write_text(json.dumps(EXAMPLE) + "\n")
    status = poll_to_end(*_insert_job(submit_job(server, job), job))[-1]
    assert status.state is JobState.FAILED
    assert "1 examples are fewer than 10" in status.message


def test_failed_job_without_a_reason_says_so(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"end": "failed"})
    job = make_job(tmp_path)
    assert "no reason" in poll_to_end(*_insert_job(submit_job(server, job), job))[-1].message


def test_cancelled_job_is_reported_as_cancelled(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    server.set_job("ftjob-0", status="cancelled")
    status = backend.poll(job, handle)
    assert status.state is JobState.CANCELLED
    assert "ftjob-0" in status.message


@pytest.mark.parametrize("model", ["", "a\x1b[2Jb", "x" * 3000])
def test_succeeded_job_without_a_usable_model_name_is_an_error(
    server: FineTuningProvider, tmp_path: Path, model: str
) -> None:
    server.change(script={"looks": 0, "model": model})
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    with pytest.raises(RunError, match=r"ftjob-0(.|\n)*training\.trainers\.m\.backend=files(.|\n)*--set-model m=NAME"):
        backend.poll(job, handle)


def test_job_stuck_in_validation_is_an_error_and_awaited_by_the_next_run(
    server: FineTuningProvider, tmp_path: Path
) -> None:
    server.change(script={"through": ["validating_files"], "end": None})
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job, validating_minutes=1)
    now = 0.0
    backend.clock = lambda: now
    assert backend.poll(job, handle).state is JobState.RUNNING
    now += 61
    with pytest.raises(RunError, match=r"ftjob-0.*run the same command again"):
        backend.poll(job, handle)
    second_backend = make_backend(server, validating_minutes=1)
    second_backend.clock = lambda: now
    assert second_backend.poll(job, second_backend.submit(job, [handle], fail_on_record)).state is JobState.RUNNING
    server.set_job("ftjob-0", status="succeeded")
    now += 61
    assert second_backend.poll(job, handle).state is JobState.SUCCEEDED


def test_failed_status_requests_are_retried(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(looks=["error", "drop", "html", "empty", "list"])
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    assert backend.poll(job, handle).state is JobState.RUNNING


def test_new_job_that_the_server_does_not_find_yet_is_requested_again(
    server: FineTuningProvider, tmp_path: Path
) -> None:
    """Otherwise, the run would stop with the advice to start over, and the job would be paid for twice."""
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    server.change(looks=["unknown_model", "no_route"])
    assert backend.poll(job, handle).state is JobState.RUNNING
    server.change(looks=["unknown_model"] * 6)
    with pytest.raises(RunError, match="The server does not know the job"):
        backend.poll(job, handle)


def test_unreachable_provider_is_an_error_with_a_next_step(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    server.change(looks=["error"] * 6)
    with pytest.raises(RunError, match=r"ftjob-0, after 6 attempts.*\n.*same command again"):
        backend.poll(job, handle)


def test_unknown_job_is_an_error(server: FineTuningProvider, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"ftjob-9(.|\n)*another API key"):
        make_backend(server).poll(make_job(tmp_path), {"job": "ftjob-9"})


# No duplicate jobs


@pytest.mark.sample(4)
@pytest.mark.parametrize("echoes", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize(
    "faults",
    [
        {"creates": ["after_drop"]},
        pytest.param({"creates": ["after_error"]}, marks=pytest.mark.full),
        pytest.param({"creates": ["after_html"]}, marks=pytest.mark.full),
        {"creates": ["late"], "hang": 3600.0},
        {"creates": ["drop", "after_drop"]},
        pytest.param({"creates": ["busy", "after_error"]}, marks=pytest.mark.full),
        {"creates": ["after_drop"], "lists": ["error", "drop"]},
        pytest.param({"creates": ["after_drop"], "lists": ["html", "list"]}, marks=pytest.mark.full),
        pytest.param({"creates": ["after_drop"], "hidden": 2}, marks=pytest.mark.full),
        {"uploads": ["after_drop", "error", "html", "empty"]},
        pytest.param({"uploads": ["late"], "hang": 3600.0}, marks=pytest.mark.full),
    ],
)
def test_lost_response_leads_to_one_job(
    server: FineTuningProvider, tmp_path: Path, faults: dict[str, Any], echoes: bool, pages: bool
) -> None:
    _submit_other_jobs(server, tmp_path)
    server.change(echoes_metadata=echoes, pages=pages, **faults)
    notes: list[Mapping[str, Any]] = []
    model_changes = {"timeout": 2.0} if "hang" in faults else {}
    handle = make_backend(server, model=model_changes).submit(make_job(tmp_path), [], notes.append)
    jobs = server.jobs()
    assert len(jobs) == 6
    assert handle == {"job": jobs[-1]["id"]}
    assert notes == [{"file": jobs[-1]["training_file"]}, {**handle, "file": jobs[-1]["training_file"]}]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "faults",
    [
        # The listings lag, so only a look before the third creation finds the job.
        {"creates": ["after_drop", "busy", ""], "hidden": 6},
        {"creates": ["after_drop", "busy", "after_error", "busy"], "hidden": 8},
        {"creates": ["after_drop"], "lists": ["empty", "unfinished", "list", "html"]},
        {"creates": ["after_drop"], "lists": ["unfinished"], "echoes_metadata": False},
        {"creates": ["after_error", "busy", "error"], "hidden": 7},
        {"creates": ["busy", "after_drop", "busy"], "hidden": 6},
        {"creates": ["error", "busy", "after_html"], "hidden": 4},
        {"creates": ["drop", "late", "busy"], "hidden": 6, "hang": 1.5},
        {"creates": ["after_empty", "busy", "after_drop"], "hidden": 6},
        {"creates": ["after_html", "busy"], "hidden": 6, "lists": ["", "error", "", "drop"]},
    ],
)
def test_one_job_is_created_despite_a_sequence_of_lost_responses(
    server: FineTuningProvider, tmp_path: Path, faults: dict[str, Any]
) -> None:
    _submit_other_jobs(server, tmp_path)
    server.change(**faults)
    policy = replace(SHORT_WAITS, attempts=12)
    handle = make_backend(server, model={"timeout": 0.7}, policy=policy).submit(
        make_job(tmp_path), [], lambda note: None
    )
    assert [job["id"] for job in server.jobs()][5:] == [handle["job"]]


def test_unreadable_job_listing_never_leads_to_a_second_job(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["after_drop"], lists=["empty", "unfinished", "list", "html", "error"])
    with pytest.raises(RunError, match="Run the same command again"):
        make_backend(server).submit(make_job(tmp_path), [], lambda note: None)
    assert len(server.jobs()) == 1


@pytest.mark.gate
@pytest.mark.parametrize("fault", ["after_drop", "late"])
def test_killed_process_leaves_one_job_even_if_listings_lag(
    server: FineTuningProvider, tmp_path: Path, fault: str
) -> None:
    """The process is killed while it waits for the response, or before it searches for the job."""
    server.change(creates=[fault, "busy"], hidden=7, hang=60.0)
    notes = tmp_path / "notes.jsonl"
    process = subprocess.Popen([sys.executable, "-c", SUBMIT, server.base_url, str(tmp_path), str(notes)])
    wait_until(lambda: len(server.jobs()) == 1)
    process.kill()
    process.wait()
    known_notes: list[Mapping[str, Any]] = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [list(note) for note in known_notes] == [["file"]]
    handle = make_backend(server).submit(make_job(tmp_path), known_notes, known_notes.append)
    assert [job["id"] for job in server.jobs()] == [handle["job"]]


SUBMIT = """
import json, pathlib, sys, time
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.registry import TrainedGroup, create_backend
from tests.support.fine_tuning_jobs import make_job

url, folder, notes = sys.argv[1:]

def keep(note):
    with open(notes, "a") as file:
        file.write(json.dumps(dict(note)) + "\\n")

backend = create_backend(TrainedGroup(
    "m", TrainerSettings(backend="openai"), ModelSettings(model="tiny", base_url=url, timeout=60.0),
    policy=TransientPolicy(), sleep=lambda seconds: time.sleep(60),
))
backend.submit(make_job(pathlib.Path(folder)), [], keep)
"""


def test_job_with_an_expired_file_is_found_by_its_key(server: FineTuningProvider, tmp_path: Path) -> None:
    """The process that created the job was killed, and the provider has deleted the file."""
    _submit_other_jobs(server, tmp_path)
    job, known_notes = make_job(tmp_path), list[Mapping[str, Any]]()
    handle = make_backend(server).submit(job, [], known_notes.append)
    found_handle = make_backend(server).submit(job, [{"file": "file-gone"}], lambda note: None)
    assert found_handle == handle
    assert len(server.jobs()) == 6


def _submit_other_jobs(server: FineTuningProvider, folder: Path) -> None:
    """Create jobs of other runs, more than one page."""
    for index in range(5):
        submit_job(server, make_job(folder / "others", key=f"other/{index}/m"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("noted_count", [0, 1, 2])
@pytest.mark.parametrize("echoes", [True, False])
def test_job_is_found_again_after_any_of_its_notes(
    server: FineTuningProvider, tmp_path: Path, noted_count: int, echoes: bool
) -> None:
    server.change(echoes_metadata=echoes)
    _submit_other_jobs(server, tmp_path)
    job, notes = make_job(tmp_path), list[Mapping[str, Any]]()
    handle = make_backend(server).submit(job, [], notes.append)
    assert len(notes) == 2
    known_notes = notes[:noted_count]
    for _ in range(3):
        found_handle = make_backend(server).submit(job, known_notes, known_notes.append)
        # Without a noted file the job is unknown, as after a kill before its creation.
        assert (found_handle == handle) is (noted_count > 0)
    assert len(server.jobs()) == (6 if noted_count else 7)


@pytest.mark.parametrize("moment", ["file", "create", "job"])
def test_kill_at_any_point_of_the_submission_leaves_one_job(
    server: FineTuningProvider, tmp_path: Path, moment: str
) -> None:
    _submit_other_jobs(server, tmp_path)
    job, known_notes = make_job(tmp_path), list[Mapping[str, Any]]()

    def note(record: Mapping[str, Any]) -> None:
        if moment in record and not (moment == "file" and "job" in record):
            raise SimulatedKill
        known_notes.append(record)

    def kill(_: float) -> None:
        raise SimulatedKill

    if moment == "create":
        server.change(creates=["after_drop"])
    backend = make_backend(server) if moment != "create" else _make_backend_with_sleep(server, kill)
    with pytest.raises(SimulatedKill):
        backend.submit(job, known_notes, note)
    handle = make_backend(server).submit(job, known_notes, known_notes.append)
    assert make_backend(server).submit(job, known_notes, fail_on_record) == handle
    assert [job_record["id"] for job_record in server.jobs()][5:] == [handle["job"]]


def _make_backend_with_sleep(server: FineTuningProvider, sleep: Any) -> Any:
    model = ModelSettings(model="tiny", base_url=server.base_url, timeout=HANG_SECONDS)
    return create_backend(TrainedGroup("m", TrainerSettings(backend="openai"), model, policy=SHORT_WAITS, sleep=sleep))


def test_job_with_the_same_file_but_another_key_is_not_reused(server: FineTuningProvider, tmp_path: Path) -> None:
    """Some servers give the same id to equal files."""
    _, handle = submit_job(server, make_job(tmp_path, key="another"))
    own_handle = make_backend(server).submit(make_job(tmp_path), [{"file": "file-0"}], lambda record: None)
    assert own_handle != handle
    assert len(server.jobs()) == 2


@pytest.mark.full
@pytest.mark.parametrize("end", ["failed", "cancelled"])
@pytest.mark.parametrize("echoes", [True, False])
def test_failed_job_is_found_again_and_its_replacement_is_a_new_job(
    server: FineTuningProvider, tmp_path: Path, end: str, echoes: bool
) -> None:
    server.change(scripts=[{"looks": 0, "end": end}], echoes_metadata=echoes)
    job, known_notes = make_job(tmp_path), list[Mapping[str, Any]]()
    backend = make_backend(server)
    first = backend.submit(job, known_notes, known_notes.append)
    assert backend.poll(job, first).state == end
    assert make_backend(server).submit(job, known_notes, fail_on_record) == first
    server.change(creates=["after_drop"])
    new_job, new_notes = replace(job, key="run/1/m/1", replaces=tuple(known_notes)), list[Mapping[str, Any]]()
    second = make_backend(server).submit(new_job, new_notes, new_notes.append)
    assert second != first
    for noted_count in (1, 2):
        assert make_backend(server).submit(new_job, new_notes[:noted_count], lambda record: None) == second
    assert len(server.jobs()) == 2


def test_succeeded_job_is_never_started_again(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"looks": 0})
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    assert backend.poll(job, handle).state is JobState.SUCCEEDED
    assert backend.submit(job, [handle], fail_on_record) == handle


def test_deleted_training_file_is_uploaded_again(server: FineTuningProvider, tmp_path: Path) -> None:
    known_notes: list[Mapping[str, Any]] = [{"file": "file-gone"}]
    handle = make_backend(server).submit(make_job(tmp_path), known_notes, known_notes.append)
    assert known_notes[1:] == [{"file": "file-0"}, {"job": "ftjob-0", "file": "file-0"}]
    assert make_backend(server).submit(make_job(tmp_path), known_notes, fail_on_record) == handle
