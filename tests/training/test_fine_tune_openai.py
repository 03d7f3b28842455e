"""Fine-tuning jobs over a real server: what is asked for, every state, and one job whatever is lost or killed."""

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
from runner.training.backends.registry import backend_for
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


# What is asked for


def test_a_job_is_asked_for_with_what_the_spec_sets_and_nothing_else(
    server: FineTuningProvider, tmp_path: Path
) -> None:
    job = make_job(tmp_path)
    submit_job(server, job)
    (made,) = server.jobs()
    assert made["body"] == {
        "model": "tiny", "training_file": "file-0", "method": {"type": "supervised"}, "seed": 7, "suffix": "my-run",
        "metadata": {"nip_run": "run/1/m"},
    }  # fmt: skip
    (file,) = server.files()
    assert file["purpose"] == "fine-tune"
    assert file["bytes"] == job.dataset.stat().st_size
    assert file["filename"].startswith("nip-sft-")


def test_a_preference_job_carries_its_hyperparameters_in_its_method(server: FineTuningProvider, tmp_path: Path) -> None:
    chosen = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 0.5, "beta": 0.2}
    submit_job(server, make_job(tmp_path, method="dpo"), suffix="nip", **chosen)
    body = server.jobs()[0]["body"]
    assert body["method"] == {"type": "dpo", "dpo": {"hyperparameters": chosen}}
    assert body["suffix"] == "nip"


def test_beta_is_no_hyperparameter_of_supervised_training(server: FineTuningProvider, tmp_path: Path) -> None:
    submit_job(server, make_job(tmp_path), beta=0.2, n_epochs=3)
    method = server.jobs()[0]["body"]["method"]
    assert method == {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3}}}


def test_a_seed_and_a_name_of_any_size_fit(server: FineTuningProvider, tmp_path: Path) -> None:
    submit_job(server, make_job(tmp_path, seed=2**63 - 1, name="α/" * 100 + "x" * 100, key="k" * 700))
    body = server.jobs()[0]["body"]
    assert 0 <= body["seed"] < 2**31
    assert body["suffix"] == "x" * 63
    assert len(body["metadata"]["nip_run"]) <= 512


@pytest.mark.parametrize(
    ("name", "suffix"), [("a b/c:d", "a-b-c-d"), ("--a--", "a"), ("äöü", ""), ("v1.2_x", "v1.2_x"), ("", "")]
)
def test_a_suffix_has_characters_that_every_name_may_have(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix


def test_a_run_without_a_sayable_name_asks_for_no_suffix(server: FineTuningProvider, tmp_path: Path) -> None:
    submit_job(server, make_job(tmp_path, name="…"))
    assert "suffix" not in server.jobs()[0]["body"]


# States


def test_a_job_runs_through_its_states_and_gives_the_new_model(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"looks": 3})
    job = make_job(tmp_path)
    statuses = poll_to_end(*_with_job(submit_job(server, job), job))
    assert [status.facts["status"] for status in statuses] == ["validating_files", "queued", "running", "succeeded"]
    assert [status.state for status in statuses] == [JobState.RUNNING] * 3 + [JobState.SUCCEEDED]
    assert (statuses[-1].model or "").startswith("ft:tiny:my-run:1x")
    assert statuses[-1].facts["trained_tokens"] > 0
    assert statuses[-1].facts["job"] == "ftjob-0"
    assert "validating the files" in statuses[0].message


def _with_job(
    made: tuple[OpenAiBackend, Mapping[str, Any]], job: FineTuneJob
) -> tuple[OpenAiBackend, FineTuneJob, Mapping[str, Any]]:
    return made[0], job, made[1]


def test_a_paused_job_runs_and_says_that_it_is_paused(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"through": ["paused", "paused", "running"], "looks": 3})
    job = make_job(tmp_path)
    statuses = poll_to_end(*_with_job(submit_job(server, job), job))
    assert ["paused" in status.message for status in statuses] == [True, True, False, False]
    assert statuses[0].state is JobState.RUNNING
    assert statuses[-1].state is JobState.SUCCEEDED


def test_a_state_that_nobody_knows_is_shown_and_awaited(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"through": ["pondering\x1b[2J"]})
    job = make_job(tmp_path)
    statuses = poll_to_end(*_with_job(submit_job(server, job), job))
    assert statuses[0].message == "ftjob-0: pondering\\x1b[2J"
    assert statuses[-1].state is JobState.SUCCEEDED


def test_a_failed_job_says_why_in_the_words_of_the_provider(server: FineTuningProvider, tmp_path: Path) -> None:
    error = {"code": "exceeded_quota", "message": "Too \x1b[31mmuch", "param": "training_file"}
    server.change(script={"end": "failed", "error": error})
    job = make_job(tmp_path)
    status = poll_to_end(*_with_job(submit_job(server, job), job))[-1]
    assert status.state is JobState.FAILED
    for part in ("ftjob-0", "exceeded_quota", "Too \\x1b[31mmuch", "training_file"):
        assert part in status.message


def test_a_file_that_the_provider_finds_wrong_fails_its_job(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.dataset.write_text(json.dumps(EXAMPLE) + "\n")
    status = poll_to_end(*_with_job(submit_job(server, job), job))[-1]
    assert status.state is JobState.FAILED
    assert "1 examples are fewer than 10" in status.message


def test_a_job_that_failed_without_a_word_says_so(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"end": "failed"})
    job = make_job(tmp_path)
    assert "no reason" in poll_to_end(*_with_job(submit_job(server, job), job))[-1].message


def test_a_cancelled_job_has_ended(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    server.set_job("ftjob-0", status="cancelled")
    status = backend.poll(job, handle)
    assert status.state is JobState.CANCELLED
    assert "ftjob-0" in status.message


@pytest.mark.parametrize("model", ["", "a\x1b[2Jb", "x" * 3000])
def test_a_job_that_succeeds_without_a_usable_name_is_an_error(
    server: FineTuningProvider, tmp_path: Path, model: str
) -> None:
    server.change(script={"looks": 0, "model": model})
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    with pytest.raises(RunError, match=r"ftjob-0(.|\n)*training\.trainers\.m\.backend=files(.|\n)*--set-model m=NAME"):
        backend.poll(job, handle)


def test_a_job_stuck_in_validation_is_an_error_the_next_run_awaits_it(
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
    again = make_backend(server, validating_minutes=1)
    again.clock = lambda: now
    assert again.poll(job, again.submit(job, [handle], fail_on_record)).state is JobState.RUNNING
    server.set_job("ftjob-0", status="succeeded")
    now += 61
    assert again.poll(job, handle).state is JobState.SUCCEEDED


def test_looks_that_fail_are_taken_again(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(looks=["error", "drop", "html", "empty", "list"])
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    assert backend.poll(job, handle).state is JobState.RUNNING


def test_a_server_that_stays_away_is_an_error_with_a_next_step(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    server.change(looks=["error"] * 6)
    with pytest.raises(RunError, match=r"ftjob-0, after 6 attempts.*\n.*same command again"):
        backend.poll(job, handle)


def test_a_job_that_the_provider_does_not_know_is_an_error(server: FineTuningProvider, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"ftjob-9(.|\n)*another API key"):
        make_backend(server).poll(make_job(tmp_path), {"job": "ftjob-9"})


# One job


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
def test_a_lost_answer_leaves_one_job(
    server: FineTuningProvider, tmp_path: Path, faults: dict[str, Any], echoes: bool, pages: bool
) -> None:
    _others(server, tmp_path)
    server.change(echoes_metadata=echoes, pages=pages, **faults)
    notes: list[Mapping[str, Any]] = []
    patience = {"timeout": 2.0} if "hang" in faults else {}
    handle = make_backend(server, model=patience).submit(make_job(tmp_path), [], notes.append)
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
def test_one_job_is_created_whatever_is_lost_in_a_sequence(
    server: FineTuningProvider, tmp_path: Path, faults: dict[str, Any]
) -> None:
    _others(server, tmp_path)
    server.change(**faults)
    policy = replace(SHORT_WAITS, attempts=12)
    handle = make_backend(server, model={"timeout": 0.7}, policy=policy).submit(
        make_job(tmp_path), [], lambda note: None
    )
    assert [job["id"] for job in server.jobs()][5:] == [handle["job"]]


def test_a_listing_that_cannot_be_read_never_leads_to_a_second_job(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["after_drop"], lists=["empty", "unfinished", "list", "html", "error"])
    with pytest.raises(RunError, match="Run the same command again"):
        make_backend(server).submit(make_job(tmp_path), [], lambda note: None)
    assert len(server.jobs()) == 1


@pytest.mark.gate
@pytest.mark.parametrize("fault", ["after_drop", "late"])
def test_a_killed_process_leaves_one_job_although_listings_lag(
    server: FineTuningProvider, tmp_path: Path, fault: str
) -> None:
    """SIGKILL arrives while the backend waits for the answer, or before it looks for the job."""
    server.change(creates=[fault, "busy"], hidden=7, hang=60.0)
    notes = tmp_path / "notes.jsonl"
    process = subprocess.Popen([sys.executable, "-c", SUBMIT, server.base_url, str(tmp_path), str(notes)])
    wait_until(lambda: len(server.jobs()) == 1)
    process.kill()
    process.wait()
    known: list[Mapping[str, Any]] = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [list(note) for note in known] == [["file"]]
    handle = make_backend(server).submit(make_job(tmp_path), known, known.append)
    assert [job["id"] for job in server.jobs()] == [handle["job"]]


SUBMIT = """
import json, pathlib, sys, time
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.registry import backend_for
from tests.support.fine_tuning_jobs import make_job

url, folder, notes = sys.argv[1:]

def keep(note):
    with open(notes, "a") as file:
        file.write(json.dumps(dict(note)) + "\\n")

backend = backend_for(
    "m", TrainerSettings(backend="openai"), ModelSettings(model="tiny", base_url=url, timeout=60.0),
    policy=TransientPolicy(), sleep=lambda seconds: time.sleep(60),
)
backend.submit(make_job(pathlib.Path(folder)), [], keep)
"""


def test_a_job_on_a_file_that_expired_is_found_by_its_key(server: FineTuningProvider, tmp_path: Path) -> None:
    """The process that created it was killed, and the provider has deleted the file since."""
    _others(server, tmp_path)
    job, known = make_job(tmp_path), list[Mapping[str, Any]]()
    handle = make_backend(server).submit(job, [], known.append)
    again = make_backend(server).submit(job, [{"file": "file-gone"}], lambda note: None)
    assert again == handle
    assert len(server.jobs()) == 6


def _others(server: FineTuningProvider, folder: Path) -> None:
    """Jobs of other runs, more than a page of them."""
    for index in range(5):
        submit_job(server, make_job(folder / "others", key=f"other/{index}/m"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("echoes", [True, False])
def test_after_any_of_its_notes_a_job_is_taken_up(
    server: FineTuningProvider, tmp_path: Path, left: int, echoes: bool
) -> None:
    server.change(echoes_metadata=echoes)
    _others(server, tmp_path)
    job, notes = make_job(tmp_path), list[Mapping[str, Any]]()
    handle = make_backend(server).submit(job, [], notes.append)
    assert len(notes) == 2
    known = notes[:left]
    for _ in range(3):
        again = make_backend(server).submit(job, known, known.append)
        # With not even its file noted nobody can know the job: that is a process killed before it asked for one.
        assert (again == handle) is (left > 0)
    assert len(server.jobs()) == (6 if left else 7)


@pytest.mark.parametrize("moment", ["file", "create", "job"])
def test_killed_at_any_moment_of_beginning_leaves_one_job(
    server: FineTuningProvider, tmp_path: Path, moment: str
) -> None:
    _others(server, tmp_path)
    job, known = make_job(tmp_path), list[Mapping[str, Any]]()

    def note(record: Mapping[str, Any]) -> None:
        if moment in record and not (moment == "file" and "job" in record):
            raise SimulatedKill
        known.append(record)

    def killed(_: float) -> None:
        raise SimulatedKill

    if moment == "create":
        server.change(creates=["after_drop"])
    backend = make_backend(server) if moment != "create" else _with_sleep(server, killed)
    with pytest.raises(SimulatedKill):
        backend.submit(job, known, note)
    handle = make_backend(server).submit(job, known, known.append)
    assert make_backend(server).submit(job, known, fail_on_record) == handle
    assert [made["id"] for made in server.jobs()][5:] == [handle["job"]]


def _with_sleep(server: FineTuningProvider, sleep: Any) -> Any:
    model = ModelSettings(model="tiny", base_url=server.base_url, timeout=HANG_SECONDS)
    return backend_for("m", TrainerSettings(backend="openai"), model, policy=SHORT_WAITS, sleep=sleep)


def test_a_job_on_the_same_file_that_belongs_to_another_is_not_taken(
    server: FineTuningProvider, tmp_path: Path
) -> None:
    """Some servers give the same id to equal files."""
    _, handle = submit_job(server, make_job(tmp_path, key="another"))
    mine = make_backend(server).submit(make_job(tmp_path), [{"file": "file-0"}], lambda record: None)
    assert mine != handle
    assert len(server.jobs()) == 2


@pytest.mark.full
@pytest.mark.parametrize("end", ["failed", "cancelled"])
@pytest.mark.parametrize("echoes", [True, False])
def test_a_job_that_ended_badly_is_found_and_one_in_its_place_is_another(
    server: FineTuningProvider, tmp_path: Path, end: str, echoes: bool
) -> None:
    server.change(scripts=[{"looks": 0, "end": end}], echoes_metadata=echoes)
    job, known = make_job(tmp_path), list[Mapping[str, Any]]()
    backend = make_backend(server)
    first = backend.submit(job, known, known.append)
    assert backend.poll(job, first).state == end
    assert make_backend(server).submit(job, known, fail_on_record) == first
    server.change(creates=["after_drop"])
    anew, later = replace(job, key="run/1/m/1", replaces=tuple(known)), list[Mapping[str, Any]]()
    second = make_backend(server).submit(anew, later, later.append)
    assert second != first
    for left in (1, 2):
        assert make_backend(server).submit(anew, later[:left], lambda record: None) == second
    assert len(server.jobs()) == 2


def test_a_job_that_succeeded_is_never_begun_anew(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(script={"looks": 0})
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    assert backend.poll(job, handle).state is JobState.SUCCEEDED
    assert backend.submit(job, [handle], fail_on_record) == handle


def test_a_file_that_the_provider_has_thrown_away_is_uploaded_again(server: FineTuningProvider, tmp_path: Path) -> None:
    known: list[Mapping[str, Any]] = [{"file": "file-gone"}]
    handle = make_backend(server).submit(make_job(tmp_path), known, known.append)
    assert known[1:] == [{"file": "file-0"}, {"job": "ftjob-0", "file": "file-0"}]
    assert make_backend(server).submit(make_job(tmp_path), known, fail_on_record) == handle
